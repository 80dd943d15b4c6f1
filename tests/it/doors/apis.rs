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

both_doors! {
    gemini, |_| Setup::policy("pools: [{name: chat, models: ['gemini*'], aliases: [{from: 'flash', to: gemini-2.5-flash}], \
        window: {requests: 1}}]"),
    [
        // First, while the pool has no speed: a scripted upstream answers in no time, and at that speed whoever leaves a
        // slow machine's stream would have had all of its output.
        a_client_that_leaves_a_stream_of_geminis_pays_for_what_was_told,
        an_alias_of_geminis_changes_the_path_and_the_usage_is_settled,
        a_stream_of_geminis_ends_with_its_last_candidate,
        a_stream_of_geminis_that_is_one_array_is_settled_for_its_last_usage,
        geminis_clients_are_refused_in_googles_own_shape,
    ]
}

const GEMINI_USAGE: &str =
    r#"{"promptTokenCount": 30, "cachedContentTokenCount": 20, "candidatesTokenCount": 4, "thoughtsTokenCount": 2}"#;

fn contents() -> String {
    json!({"contents": [{"role": "user", "parts": [{"text": "hello"}]}], "generationConfig": {"maxOutputTokens": 40}})
        .to_string()
}

/// One part of an answer of Gemini's.
fn part(text: &str, ending: &str) -> String {
    format!(
        r#"{{"candidates": [{{"content": {{"parts": [{{"text": "{text}"}}], "role": "model"}}{ending}}}], "usageMetadata": {GEMINI_USAGE}}}"#
    )
}

async fn an_alias_of_geminis_changes_the_path_and_the_usage_is_settled(stage: &mut Stage) {
    let mut client = stage.client().await;
    client.post("/v1beta/models/flash:generateContent?prettyPrint=false", "", &contents()).await;
    let mut exchange = stage.upstream.next().await;
    let first = "POST /v1beta/models/gemini-2.5-flash:generateContent?prettyPrint=false HTTP/1.1";
    assert!(exchange.head.starts_with(first), "{}", exchange.head);
    assert_eq!(exchange.body, contents().into_bytes(), "the body is as it was");
    exchange.answer("200 OK", &part("Hi", "")).await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.body), (200, part("Hi", "")));
    // Ten uncached at 1, twenty cached at 0.1, four out and two thought at 2.
    assert_eq!(stage.ended().await, (VirtualTokens::whole(10 + 2 + 12), once("completed")));
}

async fn a_stream_of_geminis_ends_with_its_last_candidate(stage: &mut Stage) {
    let mut client = stage.client().await;
    client.post("/v1beta/models/gemini-x:streamGenerateContent?alt=sse", "", &contents()).await;
    let mut exchange = stage.upstream.next().await;
    exchange.begin().await;
    exchange.chunk(&format!("data: {}\r\n\r\n", part("one two", ""))).await;
    exchange.chunk(&format!("data: {}\r\n\r\n", part(" three", r#", "finishReason": "STOP""#))).await;
    client.read_until("STOP").await;
    // Settled although the upstream has not closed.
    assert_eq!(stage.ended().await, (VirtualTokens::whole(24), once("completed")));
    exchange.end().await;
    assert!(client.answer().await.whole);
}

async fn a_stream_of_geminis_that_is_one_array_is_settled_for_its_last_usage(stage: &mut Stage) {
    let mut client = stage.client().await;
    client.post("/v1/models/gemini-x:streamGenerateContent", "", &contents()).await;
    let body = format!("[{},\n{}]", part("one", "").replace("4,", "1,"), part(" two", ""));
    stage.upstream.next().await.answer("200 OK", &body).await;
    assert_eq!(client.answer().await.body, body);
    assert_eq!(stage.ended().await, (VirtualTokens::whole(24), once("completed")));
}

async fn a_client_that_leaves_a_stream_of_geminis_pays_for_what_was_told(stage: &mut Stage) {
    let mut client = stage.client().await;
    client.post("/v1beta/models/gemini-x:streamGenerateContent?alt=sse", "", &contents()).await;
    let mut exchange = stage.upstream.next().await;
    exchange.begin().await;
    exchange.chunk(&format!("data: {}\n\n", part("one two", ""))).await;
    client.read_until("one two").await;
    drop(client);
    exchange.closed().await;
    assert_eq!(stage.ended().await, (VirtualTokens::whole(24), once("client_aborted")));
}

async fn geminis_clients_are_refused_in_googles_own_shape(stage: &mut Stage) {
    let mut client = stage.client().await;
    client.post("/v1beta/models/other:generateContent", "", &contents()).await;
    let refused = client.answer().await;
    assert_eq!((refused.status, refused.header("x-tallygate-reason")), (404, "model_not_found"));
    let error = &refused.json()["error"];
    assert_eq!((&error["code"], &error["status"]), (&json!(404), &json!("NOT_FOUND")));
    assert_eq!(error["details"][0]["reason"], "tallygate_model_not_found");
    client.post("/v1beta/models/gemini-x:generateContent/", "", &contents()).await;
    let spelled = client.answer().await;
    assert_eq!((spelled.status, spelled.header("x-tallygate-reason")), (400, "unsupported"), "{}", spelled.body);
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
