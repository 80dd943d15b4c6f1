//! Through a real Envoy: what the proxy's tests say of the proxy holds of Envoy with Tallygate deciding.

use serde_json::{Value, json};
use tallygate::units::VirtualTokens;

use crate::door::{Client, Exchange, Front, Gateway, Upstream, once, usual};

/// Input tokens of [`chat`]: one of text, four of markup, three for the reply.
const INPUT: u64 = 8;

fn chat(stream: bool) -> Value {
    json!({"model": "m", "stream": stream, "max_tokens": 40, "messages": [{"role": "user", "content": "hello"}]})
}

/// What so much input and output costs by the default weights.
fn cost(input: u64, output: u64) -> VirtualTokens {
    VirtualTokens::whole(input + 2 * output)
}

fn delta(text: &str) -> String {
    let chunk = json!({"choices": [{"index": 0, "delta": {"content": text}}], "usage": null});
    format!("data: {chunk}\n\n")
}

fn shown(text: &str) -> String {
    delta(text).replace(",\"usage\":null", "")
}

const USAGE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":6,\"total_tokens\":17}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

/// A gateway with the usual setup, its upstream, and an Envoy in front; nothing where there is no Envoy.
async fn fronted() -> Option<(Gateway, Upstream, Front)> {
    let (gateway, upstream) = usual().await;
    let front = Front::start(&gateway, upstream.address()).await?;
    Some((gateway, upstream, front))
}

/// A client whose streamed request has reached the upstream and got three tokens.
async fn streaming(front: &Front, upstream: &mut Upstream) -> (Client, Exchange) {
    let mut client = front.client().await;
    client.chat("", &chat(true)).await;
    let mut exchange = upstream.next().await;
    exchange.begin().await;
    exchange.chunk(&delta("one two three")).await;
    client.read_until("one two three").await;
    (client, exchange)
}

#[tokio::test]
async fn a_stream_completes_and_its_usage_is_settled_and_hidden() {
    let Some((gateway, mut upstream, front)) = fronted().await else { return };
    let (mut client, mut exchange) = streaming(&front, &mut upstream).await;
    let sent: Value = serde_json::from_slice(&exchange.body).expect("JSON");
    assert_eq!(sent["stream_options"]["include_usage"], true, "asked for on the client's behalf");
    assert_eq!(exchange.header("accept-encoding"), Some("identity"));
    exchange.chunk(&delta(" four")).await;
    client.read_until(" four").await;
    exchange.chunk(&format!("{USAGE}{DONE}")).await;
    exchange.end().await;
    let answer = client.answer().await;
    assert!(answer.whole && answer.status == 200, "{answer:?}");
    assert_eq!(answer.body, format!("{}{}{DONE}", shown("one two three"), shown(" four")));
    assert_eq!(answer.header("x-tallygate-queue-ms"), "0");
    assert_eq!(gateway.ended().await, (cost(11, 6), once("completed")));
    let record = front.record(answer.header("x-tallygate-decision")).await;
    assert_eq!((&record["tenant"], &record["charge"]), (&json!("anonymous"), &json!(23)), "{record}");
}
