//! What an answer says it used.
//!
//! The reported buckets overlap and are made disjoint here: cached and cache-written input lie inside
//! `prompt_tokens`, reasoning inside `completion_tokens`. An explicit zero is a zero; what is missing is missing, and
//! a usage without both totals is no usage. A part larger than its whole is cut down to it.

use serde_json::Value;

use crate::units::{Tokens, Usage};

/// Reads a `usage` object; `None` when a total is missing.
pub(in super::super) fn read_usage(usage: &Value) -> Option<Usage> {
    let number = |value: &Value| value.as_u64().map(Tokens::new);
    let part = |group: &str, name: &str| number(&usage[group][name]);
    let total = number(&usage["total_tokens"]);
    let (input, output) = match (number(&usage["prompt_tokens"]), number(&usage["completion_tokens"]), total) {
        (Some(input), Some(output), _) => (input, output),
        (Some(input), None, Some(total)) => (input, total.saturating_sub(input)),
        (None, Some(output), Some(total)) => (total.saturating_sub(output), output),
        _ => return None,
    };
    let none = Tokens::ZERO;
    // SGLang reports reasoning beside the totals instead of among the details.
    let reasoning = part("completion_tokens_details", "reasoning_tokens")
        .or_else(|| number(&usage["reasoning_tokens"]))
        .unwrap_or(none);
    let cached = part("prompt_tokens_details", "cached_tokens").unwrap_or(none);
    let written = part("prompt_tokens_details", "cache_write_tokens").unwrap_or(none);
    Some(Nested { input, cached, written, output, reasoning }.disjoint())
}

/// Usage as OpenAI reports it: what was cached and written lies inside the input, what was reasoned inside the output.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nested {
    pub(super) input: Tokens,
    pub(super) cached: Tokens,
    pub(super) written: Tokens,
    pub(super) output: Tokens,
    pub(super) reasoning: Tokens,
}

impl Nested {
    /// The same in buckets that do not overlap. A part is never more than what it lies in.
    pub(super) fn disjoint(self) -> Usage {
        let Self { input, output, .. } = self;
        let cached = self.cached.min(input);
        let written = self.written.min(input.saturating_sub(cached));
        let reasoning = self.reasoning.min(output);
        Usage {
            uncached_input: input.saturating_sub(cached + written),
            cached_input: cached,
            cache_write: written,
            visible_output: output.saturating_sub(reasoning),
            reasoning_output: reasoning,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::read_usage;
    use crate::units::{Tokens, Usage};

    fn usage(buckets: [u64; 5]) -> Usage {
        let [uncached_input, cached_input, cache_write, visible_output, reasoning_output] = buckets.map(Tokens::new);
        Usage { uncached_input, cached_input, cache_write, visible_output, reasoning_output }
    }

    #[test]
    fn overlapping_buckets_become_disjoint() {
        let full = json!({
            "prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150,
            "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10},
            "completion_tokens_details": {"reasoning_tokens": 30, "rejected_prediction_tokens": 5},
        });
        assert_eq!(read_usage(&full), Some(usage([30, 60, 10, 20, 30])));
        let nulls = json!({"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": null});
        assert_eq!(read_usage(&nulls), Some(usage([7, 0, 0, 3, 0])));
        let sglang = json!({"prompt_tokens": 7, "completion_tokens": 3, "reasoning_tokens": 2});
        assert_eq!(read_usage(&sglang), Some(usage([7, 0, 0, 1, 2])));
    }

    #[test]
    fn zero_is_zero_and_missing_is_missing() {
        assert_eq!(read_usage(&json!({"prompt_tokens": 0, "completion_tokens": 0})), Some(usage([0; 5])));
        assert_eq!(read_usage(&json!({"prompt_tokens": 5, "total_tokens": 9})), Some(usage([5, 0, 0, 4, 0])));
        for missing in [json!({}), json!(null), json!({"prompt_tokens": 5}), json!({"completion_tokens": 5})] {
            assert_eq!(read_usage(&missing), None, "{missing}");
        }
        for wrong in [json!(-5), json!(1.5), json!("5"), json!(null)] {
            assert_eq!(read_usage(&json!({"prompt_tokens": wrong, "completion_tokens": 5})), None, "{wrong}");
        }
    }

    #[test]
    fn a_part_is_never_larger_than_its_whole() {
        let wrong = json!({
            "prompt_tokens": 10, "completion_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 8},
            "completion_tokens_details": {"reasoning_tokens": 99},
        });
        let read = read_usage(&wrong).expect("totals are there");
        assert_eq!(read, usage([0, 8, 2, 0, 5]));
    }
}
