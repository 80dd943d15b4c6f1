//! The numbers of a simulated serving engine: how much it holds and how long its steps take.
//!
//! An engine of the continuous-batching kind is described well by a handful of constants (memory in KV
//! tokens, a linear model of step time, how often it looks at its queue), which is why a fairness result
//! measured on a GPU can be reproduced without one. The defaults are Llama-2-7B on one A10G, fitted to the
//! profile published with the VTC paper. Milliseconds are what people write; inside, every number has a unit.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::units::{Instant, Span, Tokens};

use super::engine::Job;

/// The most KV tokens, and the longest step constant, an engine file may state: far beyond real hardware,
/// near enough that no sum of them overflows.
const MOST_TOKENS: u64 = 1_000_000_000;
const MOST_MS: f64 = 60_000.0;
/// Slow-downs: how many, until when, and by how much.
const MOST_SLOWDOWNS: usize = 1_000;
const MOST_SECONDS: f64 = 1e6;
const LEAST_FACTOR: f64 = 0.01;
const MOST_FACTOR: f64 = 1e3;

/// A simulated serving engine, as its YAML file describes it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "EngineForm")]
pub struct EngineSpec {
    /// Tokens its memory holds, input and output of all running requests together.
    pub kv_tokens: Tokens,
    /// What a decode step takes.
    pub decode: DecodeCost,
    /// What a prefill takes, and how much it takes at once.
    pub prefill: PrefillCost,
    /// Decode steps between looks at the queue, while something runs.
    pub admit_every_steps: u32,
    /// The most requests running at once.
    pub max_sequences: usize,
    /// When it is slower, or faster, than that.
    pub slowdowns: Vec<Slowdown>,
}

/// A time in which every step that begins takes `factor` times as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slowdown {
    /// From when on.
    pub from: Instant,
    /// Until when.
    pub until: Instant,
    /// In thousandths.
    pub factor: u32,
}

/// One decode step yields one token for every running request and takes
/// `base + per_sequence × requests + per_resident_token × resident tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeCost {
    /// Whatever the batch.
    pub base: Span,
    /// For every running request.
    pub per_sequence: Span,
    /// For every token in memory.
    pub per_resident_token: Span,
}

/// One prefill yields the first token of every request in it and takes
/// `max(floor, per_token × input tokens) + overhead`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefillCost {
    /// The least it takes.
    pub floor: Span,
    /// For every input token that is not cached.
    pub per_token: Span,
    /// Whatever the input.
    pub overhead: Span,
    /// The most input tokens taken at once; a longer single input goes alone.
    pub batch_tokens: Tokens,
}

impl Default for EngineSpec {
    fn default() -> Self {
        Self::try_from(EngineForm::default()).expect("the default engine is a valid one; a test builds it")
    }
}

impl EngineSpec {
    /// Whether a job fits an empty engine.
    ///
    /// # Errors
    /// When it never will.
    pub fn check(&self, job: &Job) -> Result<(), NeverFits> {
        let (needed, kv_tokens) = (job.input + job.output.max(Tokens::new(1)), self.kv_tokens);
        if needed < kv_tokens { Ok(()) } else { Err(NeverFits { needed, kv_tokens }) }
    }

    /// How long a decode step takes.
    #[must_use]
    pub fn decode_span(&self, sequences: usize, resident: Tokens) -> Span {
        let sequences = u64::try_from(sequences).unwrap_or(u64::MAX);
        let part = |each: Span, count: u64| Span::from_nanos(each.as_nanos().saturating_mul(count));
        self.decode
            .base
            .saturating_add(part(self.decode.per_sequence, sequences))
            .saturating_add(part(self.decode.per_resident_token, resident.get()))
    }

    /// How long a step takes that begins now and would otherwise take this long: the first slow-down that fits decides.
    #[must_use]
    pub fn paced(&self, now: Instant, span: Span) -> Span {
        let slow = self.slowdowns.iter().find(|slow| slow.from <= now && now < slow.until);
        slow.map_or(span, |slow| Span::from_nanos(span.as_nanos().saturating_mul(u64::from(slow.factor)) / 1_000))
    }

    /// How long a prefill of this much uncached input takes.
    #[must_use]
    pub fn prefill_span(&self, input: Tokens) -> Span {
        let work = Span::from_nanos(self.prefill.per_token.as_nanos().saturating_mul(input.get()));
        work.max(self.prefill.floor).saturating_add(self.prefill.overhead)
    }
}

/// A simulated serving engine. Every key may be left out; the defaults are Llama-2-7B on one A10G.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EngineForm {
    /// Tokens its memory holds, input and output of all running requests together.
    #[schemars(range(min = 2, max = 1_000_000_000))]
    kv_tokens: u64,
    /// What a decode step takes.
    decode_step: DecodeForm,
    /// What a prefill takes, and how much it takes at once.
    prefill: PrefillForm,
    /// Decode steps between looks at the queue, while something runs.
    #[schemars(range(min = 1, max = 1_000_000))]
    admit_every_steps: u32,
    /// The most requests running at once.
    #[schemars(range(min = 1, max = 1_000_000))]
    max_sequences: u32,
    /// When it is slower, or faster, than that. The first that fits decides.
    #[schemars(length(max = 1000))]
    slowdowns: Vec<SlowdownForm>,
}

/// A time in which the engine is slower.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SlowdownForm {
    /// Its first second.
    #[schemars(range(min = 0, max = 1_000_000))]
    from_s: f64,
    /// Its end, in seconds.
    #[schemars(range(min = 0, max = 1_000_000))]
    until_s: f64,
    /// How many times as long every step takes.
    #[schemars(range(min = 0.01, max = 1_000))]
    factor: f64,
}

/// What a decode step takes, in milliseconds.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct DecodeForm {
    /// Whatever the batch.
    #[schemars(range(min = 0, max = 60_000))]
    base_ms: f64,
    /// For every running request.
    #[schemars(range(min = 0, max = 60_000))]
    per_sequence_ms: f64,
    /// For every token in memory.
    #[schemars(range(min = 0, max = 60_000))]
    per_resident_token_ms: f64,
}

/// What a prefill takes, in milliseconds, and how much it takes at once.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct PrefillForm {
    /// The least it takes.
    #[schemars(range(min = 0, max = 60_000))]
    floor_ms: f64,
    /// For every input token that is not cached.
    #[schemars(range(min = 0, max = 60_000))]
    per_token_ms: f64,
    /// Whatever the input.
    #[schemars(range(min = 0, max = 60_000))]
    overhead_ms: f64,
    /// The most input tokens taken at once; a longer single input goes alone.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    batch_tokens: u64,
}

impl Default for EngineForm {
    fn default() -> Self {
        Self {
            kv_tokens: 10_000,
            decode_step: DecodeForm::default(),
            prefill: PrefillForm::default(),
            admit_every_steps: 10,
            max_sequences: 1_000,
            slowdowns: Vec::new(),
        }
    }
}

impl Default for DecodeForm {
    fn default() -> Self {
        Self { base_ms: 20.3, per_sequence_ms: 0.245, per_resident_token_ms: 0.002_02 }
    }
}

impl Default for PrefillForm {
    fn default() -> Self {
        Self { floor_ms: 30.0, per_token_ms: 0.213, overhead_ms: 4.0, batch_tokens: 3_072 }
    }
}

/// Why an engine does not take a job: it would not fit even an empty one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{needed} tokens can never fit an engine whose memory holds {kv_tokens}")]
pub struct NeverFits {
    /// Its input and output together.
    pub needed: Tokens,
    /// The engine's memory; a job must stay below it.
    pub kv_tokens: Tokens,
}

/// What is wrong with an engine file, every mistake in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct BadEngine(pub Vec<String>);

impl TryFrom<EngineForm> for EngineSpec {
    type Error = BadEngine;

    fn try_from(form: EngineForm) -> Result<Self, BadEngine> {
        let mut mistakes = Vec::new();
        let (decode, prefill) = (&form.decode_step, &form.prefill);
        let mut count = |key: &str, value: u64, least: u64, most: u64| {
            if !(least..=most).contains(&value) {
                mistakes.push(format!("{key} must be between {least} and {most}, not {value}"));
            }
        };
        count("kv_tokens", form.kv_tokens, 2, MOST_TOKENS);
        count("prefill.batch_tokens", prefill.batch_tokens, 1, MOST_TOKENS);
        count("admit_every_steps", form.admit_every_steps.into(), 1, 1_000_000);
        count("max_sequences", form.max_sequences.into(), 1, 1_000_000);
        let mut span = |key: &str, ms: f64| {
            if !(0.0..=MOST_MS).contains(&ms) {
                mistakes.push(format!("{key} must be between 0 and {MOST_MS} milliseconds, not {ms}"));
            }
            Span::from_secs_f64(ms / 1e3)
        };
        let decode = DecodeCost {
            base: span("decode_step.base_ms", decode.base_ms),
            per_sequence: span("decode_step.per_sequence_ms", decode.per_sequence_ms),
            per_resident_token: span("decode_step.per_resident_token_ms", decode.per_resident_token_ms),
        };
        let prefill = PrefillCost {
            floor: span("prefill.floor_ms", prefill.floor_ms),
            per_token: span("prefill.per_token_ms", prefill.per_token_ms),
            overhead: span("prefill.overhead_ms", prefill.overhead_ms),
            batch_tokens: Tokens::new(prefill.batch_tokens),
        };
        let slowdowns = slowdowns(&form.slowdowns, &mut mistakes);
        if !mistakes.is_empty() {
            return Err(BadEngine(mistakes));
        }
        Ok(Self {
            kv_tokens: Tokens::new(form.kv_tokens),
            decode,
            prefill,
            admit_every_steps: form.admit_every_steps,
            max_sequences: usize::try_from(form.max_sequences).unwrap_or(usize::MAX),
            slowdowns,
        })
    }
}

fn slowdowns(forms: &[SlowdownForm], mistakes: &mut Vec<String>) -> Vec<Slowdown> {
    if forms.len() > MOST_SLOWDOWNS {
        mistakes.push(format!("slowdowns must be at most {MOST_SLOWDOWNS}, not {}", forms.len()));
    }
    let slowdown = |(index, form): (usize, &SlowdownForm)| {
        let at = format!("slowdowns[{index}]");
        if !(0.0..=MOST_SECONDS).contains(&form.from_s) || !(0.0..=MOST_SECONDS).contains(&form.until_s) {
            mistakes.push(format!("{at}: from_s and until_s must be between 0 and {MOST_SECONDS} seconds"));
        } else if form.from_s >= form.until_s {
            mistakes.push(format!("{at}: until_s must be after from_s, {}, not {}", form.from_s, form.until_s));
        }
        if !(LEAST_FACTOR..=MOST_FACTOR).contains(&form.factor) {
            mistakes.push(format!("{at}.factor must be between {LEAST_FACTOR} and {MOST_FACTOR}, not {}", form.factor));
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above; `as` saturates")]
        let factor = (form.factor * 1_000.0).round() as u32;
        Slowdown { from: Instant::from_secs_f64(form.from_s), until: Instant::from_secs_f64(form.until_s), factor }
    };
    forms.iter().enumerate().map(slowdown).collect()
}

impl JsonSchema for EngineSpec {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        EngineForm::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        EngineForm::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::{EngineForm, EngineSpec};
    use crate::units::{Instant, Span, Tokens};

    #[test]
    fn the_defaults_are_the_published_engine() {
        let spec = EngineSpec::default();
        assert_eq!(
            spec.decode_span(30, Tokens::new(9_000)),
            Span::from_nanos(20_300_000 + 30 * 245_000 + 9_000 * 2_020)
        );
        assert_eq!(spec.prefill_span(Tokens::new(10)), Span::from_millis(34));
        assert_eq!(spec.prefill_span(Tokens::new(1_000)), Span::from_millis(217));
    }

    #[test]
    fn a_slow_down_is_a_time_and_a_factor() {
        let spec = |slowdowns: serde_json::Value| {
            serde_json::from_value::<EngineSpec>(serde_json::json!({ "slowdowns": slowdowns }))
                .map_err(|e| e.to_string())
        };
        let slow = spec(serde_json::json!([{"from_s": 1, "until_s": 2, "factor": 2.5}])).expect("valid");
        let paced = |millis: u64| slow.paced(Instant::EPOCH + Span::from_millis(millis), Span::from_millis(10));
        let (usual, slower) = (Span::from_millis(10), Span::from_millis(25));
        assert_eq!([paced(999), paced(1_000), paced(1_999), paced(2_000)], [usual, slower, slower, usual]);
        for (bad, told) in [
            (serde_json::json!([{"from_s": 2, "until_s": 1, "factor": 2}]), "until_s must be after from_s"),
            (serde_json::json!([{"from_s": 1, "until_s": 2, "factor": 0}]), "factor must be between"),
            (serde_json::json!([{"from_s": -1, "until_s": 2, "factor": 2}]), "between 0 and"),
        ] {
            let error = spec(bad).expect_err("refused");
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn every_mistake_is_told() {
        let form: EngineForm = serde_json::from_value(serde_json::json!({
            "kv_tokens": 0, "admit_every_steps": 0, "decode_step": {"base_ms": -1.0}
        }))
        .expect("well-formed");
        let told = EngineSpec::try_from(form).expect_err("three mistakes").0;
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(serde_json::from_value::<EngineSpec>(serde_json::json!({"kv_token": 5})).is_err(), "a typo is refused");
    }
}
