//! Reads an answer, whole or event by event.

use serde::Deserialize;
use serde_json::Value;

use crate::costing::Encoding;
use crate::units::{Tokens, Usage};
use crate::wire::dialect::observer::{Show, StreamEnd, Tally};
use crate::wire::dialect::openai::usage::Nested;
use crate::wire::dialect::reply::{Fragment, Reply};

/// Reads a whole answer.
pub(in crate::wire::dialect) fn read(body: &[u8], encoding: Encoding) -> Reply {
    #[derive(Deserialize)]
    struct Answer {
        usage: Option<Value>,
        output: Option<Vec<Value>>,
    }
    let Ok(answer) = serde_json::from_slice::<Answer>(body) else { return Reply::Unreadable };
    Reply::reported_or(answer.usage.as_ref().and_then(read_usage), || match &answer.output {
        Some(output) => Reply::count(output.iter().flat_map(fragments), encoding),
        None => Reply::Unreadable,
    })
}

/// `cached_tokens` and `cache_write_tokens` lie inside `input_tokens`, `reasoning_tokens` inside `output_tokens`.
fn read_usage(usage: &Value) -> Option<Usage> {
    let number = |value: &Value| value.as_u64().map(Tokens::new);
    let (input, output) = (number(&usage["input_tokens"])?, number(&usage["output_tokens"])?);
    let part = |group: &str, name: &str| number(&usage[group][name]).unwrap_or(Tokens::ZERO);
    let cached = part("input_tokens_details", "cached_tokens");
    let written = part("input_tokens_details", "cache_write_tokens");
    let reasoning = part("output_tokens_details", "reasoning_tokens");
    Some(Nested { input, cached, written, output, reasoning }.disjoint())
}

/// The texts in an item of the output.
fn fragments(item: &Value) -> Vec<Fragment<'_>> {
    let texts = |member: &'static str| item[member].as_array().into_iter().flatten();
    let mut found = Vec::new();
    if item["type"] == "reasoning" {
        let parts = texts("summary").chain(texts("content"));
        found.extend(parts.filter_map(|part| part["text"].as_str()).map(Fragment::Reasoning));
    } else {
        let parts = texts("content").filter_map(|part| part["text"].as_str().or_else(|| part["refusal"].as_str()));
        found.extend(parts.map(Fragment::Visible));
        let call = ["name", "arguments", "input"].iter().filter_map(|name| item[*name].as_str());
        found.extend(call.map(Fragment::Visible));
    }
    found
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    delta: Value,
    #[serde(default)]
    output_index: Value,
    #[serde(default)]
    response: Value,
}

/// Notes what an event says.
pub(in crate::wire::dialect) fn observe(data: &str, tally: &mut Tally) -> Show {
    // What is not an event is not ours to judge; it passes.
    let Ok(event) = serde_json::from_str::<Event>(data) else { return Show::All };
    let index = event.output_index.as_u64().and_then(|index| usize::try_from(index).ok()).unwrap_or(0);
    match event.kind.as_str() {
        "response.completed" | "response.incomplete" | "response.failed" => {
            if let Some(usage) = read_usage(&event.response["usage"]) {
                tally.report(usage);
            }
            let failed = event.kind == "response.failed";
            tally.end_as(if failed { StreamEnd::Failed } else { StreamEnd::Final });
        }
        "error" => tally.end_as(StreamEnd::Failed),
        kind => {
            if let (Some(text), Some(rest)) = (event.delta.as_str(), kind.strip_suffix(".delta")) {
                // `response.reasoning_text` and `response.reasoning_summary_text`.
                let reasoning = rest.starts_with("response.reasoning");
                tally.add(index, if reasoning { Fragment::Reasoning(text) } else { Fragment::Visible(text) });
            }
        }
    }
    Show::All
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Reply, read};
    use crate::costing::Encoding;
    use crate::units::{Tokens, Usage};

    #[test]
    fn overlapping_buckets_become_disjoint_and_zero_is_zero() {
        let read = |usage: serde_json::Value| read(json!({"usage": usage}).to_string().as_bytes(), Encoding::O200k);
        let full = json!({
            "input_tokens": 100, "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10},
            "output_tokens": 50, "output_tokens_details": {"reasoning_tokens": 30}, "total_tokens": 150,
        });
        let [uncached_input, cached_input, cache_write, visible_output, reasoning_output] =
            [30, 60, 10, 20, 30].map(Tokens::new);
        let usage = Usage { uncached_input, cached_input, cache_write, visible_output, reasoning_output };
        assert_eq!(read(full), Reply::Reported(usage));
        assert_eq!(read(json!({"input_tokens": 0, "output_tokens": 0})), Reply::Reported(Usage::default()));
        assert_eq!(read(json!({"input_tokens": 5})), Reply::Unreadable, "missing is missing");
    }

    #[test]
    fn an_answer_without_usage_is_counted() {
        let body = json!({"output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hello"}]},
            {"type": "message", "content": [{"type": "output_text", "text": "hello world"}]},
            {"type": "function_call", "name": "hello", "arguments": "hello"},
        ]});
        let counted = Reply::Counted { visible: Tokens::new(4), reasoning: Tokens::new(1) };
        assert_eq!(read(body.to_string().as_bytes(), Encoding::O200k), counted);
    }
}
