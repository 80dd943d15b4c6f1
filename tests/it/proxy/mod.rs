//! The proxy on real sockets: every ending of a request settles as the design's table of the flow of money says, and
//! the books balance to the last millionth.

mod apis;
mod endings;
mod fanout;
mod passing;
mod refusals;

use serde_json::{Value, json};
use tallygate::units::VirtualTokens;

use crate::door::{Client, Exchange, Gateway, Upstream};

/// Input tokens of [`chat`]: one of text, four of markup, three for the reply.
pub(crate) const INPUT: u64 = 8;

pub(crate) fn chat(stream: bool) -> Value {
    json!({"model": "m", "stream": stream, "max_tokens": 40, "messages": [{"role": "user", "content": "hello"}]})
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

/// A client whose streamed request has reached the upstream and got three tokens.
async fn streaming(gateway: &Gateway, upstream: &mut Upstream) -> (Client, Exchange) {
    let mut client = gateway.client().await;
    client.chat("", &chat(true)).await;
    let mut exchange = upstream.next().await;
    exchange.begin().await;
    exchange.chunk(&delta("one two three")).await;
    client.read_until("one two three").await;
    (client, exchange)
}
