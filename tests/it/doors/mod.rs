//! Both doors on real sockets: what goes in, what comes out, and what is settled are the same by the proxy and through a
//! real Envoy. The tables are written once and played on each; what only one door can show stands in its own file.

mod apis;
mod authz;
mod breaker;
mod costing;
mod crowd;
mod endings;
mod envoy;
mod fair;
mod fanout;
mod limits;
mod load;
mod passing;
mod picker;
mod proxy;
mod rate_limit;
mod recorded;
mod refusals;
mod restarts;
mod retries;

mod stopping;
mod trial;

use serde_json::{Value, json};
use tallygate::units::VirtualTokens;

/// Input tokens of [`chat`]: one of text, four of markup, three for the reply.
pub(crate) const INPUT: u64 = 8;

/// A model whose tokenizer is ours: what is counted for it is exact, and not corrected by what other tests report.
const MODEL: &str = "gpt-4o";

pub(crate) fn chat(stream: bool) -> Value {
    json!({"model": MODEL, "stream": stream, "max_tokens": 40, "messages": [{"role": "user", "content": "hello"}]})
}

/// What so much input and output costs by the default weights.
pub(crate) fn cost(input: u64, output: u64) -> VirtualTokens {
    VirtualTokens::whole(input + 2 * output)
}

pub(crate) fn delta(text: &str) -> String {
    let chunk = json!({"choices": [{"index": 0, "delta": {"content": text}}], "usage": null});
    format!("data: {chunk}\n\n")
}

pub(crate) fn shown(text: &str) -> String {
    delta(text).replace(",\"usage\":null", "")
}

pub(crate) const USAGE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":6,\"total_tokens\":17}}\n\n";
pub(crate) const DONE: &str = "data: [DONE]\n\n";
/// An answer in one piece that cost next to nothing.
pub(crate) const ANSWER: &str = "{\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}";
