//! The other APIs at the proxy: what goes upstream, what comes back, what is settled, how a refusal looks.

use serde_json::{Value, json};
use tallygate::units::VirtualTokens;

use super::cost;
use crate::door::{Setup, Upstream, once, usual};

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

#[tokio::test]
async fn a_message_stream_passes_as_it_is_and_its_caches_are_settled() {
    let (gateway, mut upstream) = usual().await;
    let mut client = gateway.client().await;
    client.post("/v1/messages", "", &messages(true).to_string()).await;
    let mut exchange = upstream.next().await;
    assert_eq!(exchange.body, messages(true).to_string().into_bytes(), "nothing is asked for");
    exchange.begin().await;
    exchange.chunk(START).await;
    exchange.chunk(STOP).await;
    client.read_until("message_stop").await;
    // Nine uncached at 1, twenty cached at 0.1, six out at 2; settled although the upstream has not closed.
    assert_eq!(gateway.ended().await, (VirtualTokens::whole(9 + 2 + 12), once("completed")));
    exchange.end().await;
    assert_eq!(client.answer().await.body, format!("{START}{STOP}"));
}

#[tokio::test]
async fn a_client_that_leaves_a_message_pays_for_the_input_told_and_the_output_counted() {
    let (gateway, mut upstream) = usual().await;
    let mut client = gateway.client().await;
    client.post("/v1/messages", "", &messages(true).to_string()).await;
    let mut exchange = upstream.next().await;
    exchange.begin().await;
    exchange.chunk(START).await;
    client.read_until("one two three").await;
    drop(client);
    exchange.closed().await;
    assert_eq!(gateway.ended().await, (VirtualTokens::whole(9 + 2 + 6), once("client_aborted")));
}

#[tokio::test]
async fn a_refusal_is_in_the_callers_own_shape() {
    let upstream = Upstream::start().await;
    let policy = "pools: [{name: chat, models: ['served']}]";
    let gateway = Setup::policy(policy).start(&upstream.url()).await;
    let mut client = gateway.client().await;
    client.post("/v1/messages", "", &messages(false).to_string()).await;
    let answer = client.answer().await;
    answer.refusal(404, "model_not_found");
    let body = answer.json();
    assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!("not_found_error")));
    assert_eq!(body["request_id"], answer.header("request-id"));
    // An Anthropic client is answered so wherever it goes.
    client.post("/v1/files", "anthropic-version: 2023-06-01\r\n", "{}").await;
    let answer = client.answer().await;
    answer.refusal(400, "unsupported");
    assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
    for path in ["/v1/completions", "/v1/responses", "/v1/embeddings"] {
        client.post(path, "", r#"{"model":"other","prompt":"x","input":"x"}"#).await;
        let answer = client.answer().await;
        answer.refusal(404, "model_not_found");
        assert_eq!(answer.json()["error"]["param"], "model");
        assert_eq!(answer.header("x-request-id"), answer.header("x-tallygate-decision"));
    }
    client.post("/v1/responses", "", r#"{"model":"served","input":"x","background":true}"#).await;
    client.answer().await.refusal(400, "unsupported");
}

#[tokio::test]
async fn embeddings_and_responses_are_settled_for_what_they_report() {
    let (gateway, mut upstream) = usual().await;
    let mut client = gateway.client().await;
    client.post("/v1/embeddings", "", r#"{"model":"m","input":["hello","world"]}"#).await;
    upstream.next().await.answer("200 OK", r#"{"data":[],"usage":{"prompt_tokens":7,"total_tokens":7}}"#).await;
    assert_eq!(client.answer().await.status, 200);
    assert_eq!(gateway.ended().await, (cost(7, 0), once("completed")));
    client.post("/v1/responses", "", r#"{"model":"m","input":"hello"}"#).await;
    upstream.next().await.answer("200 OK", r#"{"output":[],"usage":{"input_tokens":5,"output_tokens":3}}"#).await;
    assert_eq!(client.answer().await.status, 200);
    assert_eq!(gateway.ended().await.0, cost(7, 0) + cost(5, 3));
}

#[tokio::test]
async fn an_upstreams_529_passes_and_costs_nothing() {
    let (gateway, mut upstream) = usual().await;
    let mut client = gateway.client().await;
    client.post("/v1/messages", "", &messages(true).to_string()).await;
    let body = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    upstream.next().await.answer("529 Overloaded", body).await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.body.as_str()), (529, body));
    assert_eq!(gateway.ended().await, (VirtualTokens::ZERO, once("upstream_failed")));
}

#[tokio::test]
async fn counting_passes_unmetered_to_the_models_own_pool() {
    let mut upstream = Upstream::start().await;
    let policy = "pools: [{name: chat, models: ['big'], aliases: [{from: 'm*', to: big}]}]";
    let gateway = Setup::policy(policy).start(&upstream.url()).await;
    let mut client = gateway.client().await;
    for path in ["/v1/messages/count_tokens", "/v1/responses/input_tokens"] {
        client.post(path, "", r#"{"model":"m1","input":"x"}"#).await;
        let mut exchange = upstream.next().await;
        assert!(exchange.head.starts_with(&format!("POST {path} ")), "{}", exchange.head);
        assert_eq!(exchange.body, br#"{"model":"big","input":"x"}"#);
        exchange.answer("200 OK", r#"{"input_tokens":3}"#).await;
        assert_eq!(client.answer().await.body, r#"{"input_tokens":3}"#);
    }
    client.post("/v1/messages/count_tokens", "", r#"{"model":"other"}"#).await;
    client.answer().await.refusal(404, "model_not_found");
    assert!(gateway.outcomes().is_empty());
}

#[tokio::test]
async fn other_paths_pass_where_the_policy_says_so_and_no_spelling_gets_round_the_meter() {
    let mut upstream = Upstream::start().await;
    let policy = "unmetered: pass\npools: [{name: chat, models: ['*']}]";
    let gateway = Setup::policy(policy).start(&upstream.url()).await;
    let mut client = gateway.client().await;
    client.post("/v1/audio/transcriptions", "content-type: multipart/form-data; boundary=x\r\n", "--x--").await;
    let mut exchange = upstream.next().await;
    assert_eq!(exchange.body, b"--x--");
    assert_eq!(exchange.header("content-type"), Some("multipart/form-data; boundary=x"));
    exchange.answer("200 OK", "{}").await;
    assert_eq!(client.answer().await.status, 200);
    for path in ["/v1/chat/completions/", "/v1//completions", "/V1/messages", "/v1/realtime/sessions"] {
        client.post(path, "", "{}").await;
        client.answer().await.refusal(400, "unsupported");
    }
    assert!(upstream.is_untouched());
}
