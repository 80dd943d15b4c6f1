//! The chunks of a streamed completion, of a chat or plain.
//!
//! Usage comes in a last chunk without choices, where `stream_options.include_usage` asks for it, and every other
//! chunk then carries `"usage": null`; with vLLM's `continuous_usage_stats`, in every chunk.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::super::json::{given, present, span};
use super::super::observer::{Show, StreamEnd, Tally};
use super::super::reply::is_believable;
use super::reply::fragments;
use super::usage::read_usage;

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    usage: Option<&'a RawValue>,
    #[serde(default)]
    choices: Option<Vec<Choice>>,
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    index: Option<usize>,
    #[serde(default)]
    delta: Value,
    #[serde(default)]
    text: Value,
}

/// Notes what a chunk says.
pub(in super::super) fn observe(data: &str, tally: &mut Tally) -> Show {
    // What is not a chunk is not ours to judge; it passes.
    let Ok(chunk) = serde_json::from_str::<Chunk<'_>>(data) else { return Show::All };
    if chunk.error.is_some() {
        tally.end_as(StreamEnd::Failed);
        return Show::All;
    }
    let choices = chunk.choices.unwrap_or_default();
    for choice in &choices {
        let index = choice.index.unwrap_or(0);
        fragments(&choice.delta).into_iter().for_each(|fragment| tally.add(index, fragment));
        if let Some(text) = choice.text.as_str() {
            tally.add_echoed(index, text);
        }
    }
    let reported = given(chunk.usage).and_then(|usage| serde_json::from_str::<Value>(usage.get()).ok());
    if let Some(usage) = reported.as_ref().and_then(read_usage) {
        tally.report(usage);
        if choices.is_empty() {
            tally.end_as(StreamEnd::Whole);
        } else if is_believable(&usage) {
            tally.tell(usage.output());
        }
    }
    match chunk.usage {
        Some(_) if reported.is_some() && choices.is_empty() => Show::Nothing,
        Some(usage) => Show::AllBut(span(data, usage)),
        None => Show::All,
    }
}
