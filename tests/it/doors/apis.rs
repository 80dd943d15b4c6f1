//! The other APIs: what goes upstream, what comes back, what is settled, how a refusal looks.

use serde_json::{Value, json};
use tallygate::units::VirtualTokens;

use super::cost;
use crate::door::{Setup, Stage, Way, both_doors, cases, once};

both_doors! {
    speak, |_| Setup::default(),
    [
        a_client_that_leaves_a_message_pays_for_the_input_told_and_the_output_counted,
        a_message_stream_passes_as_it_is_and_its_caches_are_settled,
        embeddings_and_responses_are_settled_for_what_they_report,
        an_upstreams_529_passes_and_costs_nothing,
    ]
}

both_doors! {
    refuse, |_| Setup::policy("pools: [{name: chat, models: ['served']}]"),
    [
        a_refusal_is_in_the_callers_own_shape,
    ]
}

fn messages(stream: bool) -> Value {
    json!({"model": "m", "stream": stream, "max_tokens": 40, "messages": [{"role": "user", "content": "hello"}]})
}

const START: &str = concat!(
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":",
    "{\"input_tokens\":9,\"cache_read_input_tokens\":20,\"output_tokens\":1}}}\n\n",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":",
    "{\"type\":\"text_delta\",\"text\":\"one two three\"}}\n\n",
);
const STOP: &str = concat!(
    "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{},\"usage\":{\"output_tokens\":6}}\n\n",
    "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
);

async fn a_message_stream_passes_as_it_is_and_its_caches_are_settled(stage: &mut Stage) {
    let mut client = stage.client().await;
    client.post("/v1/messages", "", &messages(true).to_string()).await;
    let mut exchange = stage.upstream.next().await;
    assert_eq!(exchange.body, messages(true).to_string().into_bytes(), "nothing is asked for");
    exchange.begin().await;
    exchange.chunk(START).await;
    exchange.chunk(STOP).await;
    client.read_until("message_stop").await;
    // Nine uncached at 1, twenty cached at 0.1, six out at 2; settled although the upstream has not closed.
    assert_eq!(stage.ended().await, (VirtualTokens::whole(9 + 2 + 12), once("completed")));
    exchange.end().await;
    stage.assert_passed(&client.answer().await.body, &format!("{START}{STOP}"));
}

async fn a_client_that_leaves_a_message_pays_for_the_input_told_and_the_output_counted(stage: &mut Stage) {
    let mut client = stage.client().await;
    client.post("/v1/messages", "", &messages(true).to_string()).await;
    let mut exchange = stage.upstream.next().await;
    exchange.begin().await;
    exchange.chunk(START).await;
    client.read_until("one two three").await;
    drop(client);
    exchange.closed().await;
    // Without bodies nothing is told before the end: the input is as estimated, and time says nothing of output yet.
    let blind = cost(stage.input(&messages(true), 0), 0);
    let paid = if stage.way == Way::BodyFree { blind } else { VirtualTokens::whole(9 + 2 + 6) };
    assert_eq!(stage.ended().await, (paid, once("client_aborted")));
}

async fn a_refusal_is_in_the_callers_own_shape(stage: &mut Stage) {
    let mut client = stage.client().await;
    client.post("/v1/messages", "", &messages(false).to_string()).await;
    let answer = client.answer().await;
    answer.refusal(404, "model_not_found");
    let body = answer.json();
    assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!("not_found_error")));
    assert_eq!(body["request_id"], answer.header("request-id"));
    // An Anthropic client is answered so wherever it goes.
    let mut client = stage.client().await;
    client.post("/v1/files", "anthropic-version: 2023-06-01\r\n", "{}").await;
    let answer = client.answer().await;
    answer.refusal(400, "unsupported");
    assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
    for path in ["/v1/completions", "/v1/responses", "/v1/embeddings"] {
        let mut client = stage.client().await;
        client.post(path, "", r#"{"model":"other","prompt":"x","input":"x"}"#).await;
        let answer = client.answer().await;
        answer.refusal(404, "model_not_found");
        assert_eq!(answer.json()["error"]["param"], "model");
        assert_eq!(answer.header("x-request-id"), answer.header("x-tallygate-decision"));
    }
    let mut client = stage.client().await;
    client.post("/v1/responses", "", r#"{"model":"served","input":"x","background":true}"#).await;
    client.answer().await.refusal(400, "unsupported");
}

async fn embeddings_and_responses_are_settled_for_what_they_report(stage: &mut Stage) {
    let mut client = stage.client().await;
    client.post("/v1/embeddings", "", r#"{"model":"m","input":["hello","world"]}"#).await;
    stage.upstream.next().await.answer("200 OK", r#"{"data":[],"usage":{"prompt_tokens":7,"total_tokens":7}}"#).await;
    assert_eq!(client.answer().await.status, 200);
    assert_eq!(stage.ended().await, (cost(7, 0), once("completed")));
    client.post("/v1/responses", "", r#"{"model":"m","input":"hello"}"#).await;
    stage.upstream.next().await.answer("200 OK", r#"{"output":[],"usage":{"input_tokens":5,"output_tokens":3}}"#).await;
    assert_eq!(client.answer().await.status, 200);
    assert_eq!(stage.ended().await, (cost(5, 3), once("completed")));
}

async fn an_upstreams_529_passes_and_costs_nothing(stage: &mut Stage) {
    let mut client = stage.client().await;
    client.post("/v1/messages", "", &messages(true).to_string()).await;
    let body = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    stage.upstream.next().await.answer("529 Overloaded", body).await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.body.as_str()), (529, body));
    assert_eq!(stage.ended().await, (VirtualTokens::ZERO, once("upstream_failed")));
}
