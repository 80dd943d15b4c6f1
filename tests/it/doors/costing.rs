//! What usage teaches: the next request of the same kind is expected to be what it will be.

use serde_json::{Value, json};
use tallygate::units::{Tokens, Usage};

use super::chat;
use crate::door::{Client, Gateway, Setup, Upstream, usual};

/// A chat of some four hundred tokens, for a model whose tokenizer is not known.
fn long_chat() -> Value {
    let mut body = chat(false);
    body["model"] = json!("m");
    body["messages"][0]["content"] = json!("one two three four ".repeat(100));
    body
}

fn reported(input: u64, cached: u64) -> String {
    let details = json!({"cached_tokens": cached});
    json!({"usage": {"prompt_tokens": input, "completion_tokens": 5, "prompt_tokens_details": details}}).to_string()
}

async fn answered(client: &mut Client, upstream: &mut Upstream, session: &str, body: &Value, answer: &str) {
    client.chat(session, body).await;
    upstream.next().await.answer("200 OK", answer).await;
    assert_eq!(client.answer().await.status, 200);
}

/// What the one request in flight is expected to use.
fn expected(gateway: &Gateway) -> Usage {
    let requests = gateway.gate().look(|seen| seen.engine.requests()).expect("not broken");
    assert_eq!(requests.len(), 1, "one in flight");
    requests[0].expected
}

#[tokio::test]
async fn what_usage_reports_corrects_the_next_count_and_the_error_is_told() {
    let (gateway, mut upstream) = usual().await;
    let mut client = gateway.client().await;
    client.chat("", &long_chat()).await;
    let mut first = upstream.next().await;
    let counted = expected(&gateway).input();
    assert_eq!(counted, Tokens::new(408), "four hundred words and markup");
    first.answer("200 OK", &reported(532, 0)).await;
    assert_eq!(client.answer().await.status, 200);
    for _ in 0..10 {
        answered(&mut client, &mut upstream, "", &long_chat(), &reported(532, 0)).await;
    }
    client.chat("", &long_chat()).await;
    let mut last = upstream.next().await;
    let corrected = expected(&gateway).input();
    assert!((Tokens::new(515)..=Tokens::new(540)).contains(&corrected), "{corrected} for 532");
    let mut admin = gateway.admin().await;
    let rows = admin.get("/v1/accuracy", "").await.json();
    assert_eq!((rows[0]["model"].as_str(), rows[1]["model"].as_str()), (Some("*"), Some("m")), "{rows}");
    let error = |of: &str| rows[1][of].as_f64().expect("a number");
    assert_eq!((&rows[1]["inputs"], &rows[1]["outputs"]), (&json!(11), &json!(11)));
    assert!((error("counted_error") - 124.0).abs() < 1e-9, "{rows}");
    assert!(error("input_error") < 40.0, "{rows}");
    let metrics = admin.get("/metrics", "").await.body;
    assert!(metrics.contains("tallygate_input_error_tokens{measure=\"counted_bias\"} -124"), "{metrics}");
    last.answer("200 OK", &reported(532, 0)).await;
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test]
async fn reports_that_are_too_high_never_shut_a_request_out() {
    let mut upstream = Upstream::start().await;
    let policy = "pools: [{name: chat, models: ['*'], window: {requests: 1}, max_request_tokens: 500}]";
    let gateway = Setup::policy(policy).start(&upstream.url()).await;
    let mut client = gateway.client().await;
    for _ in 0..20 {
        answered(&mut client, &mut upstream, "", &long_chat(), &reported(1_200, 0)).await;
    }
    let mut larger = long_chat();
    larger["messages"][0]["content"] = json!("one two three four ".repeat(200));
    client.chat("", &larger).await;
    client.answer().await.refusal(413, "too_large");
}

#[tokio::test]
async fn a_session_is_expected_to_have_cached_what_it_had_until_it_ends_untold() {
    const SESSION: &str = "x-session-id: s1\r\n";
    let (gateway, mut upstream) = usual().await;
    let mut client = gateway.client().await;
    answered(&mut client, &mut upstream, SESSION, &long_chat(), &reported(408, 380)).await;
    for (session, cached) in [("x-session-id: s2\r\n", 0), ("", 0), (SESSION, 380)] {
        let mut client = gateway.client().await;
        client.chat(session, &long_chat()).await;
        let exchange = upstream.next().await;
        let expected = expected(&gateway);
        assert!(expected.cached_input.get().abs_diff(cached) <= 3, "{session}{expected:?}");
        // The client leaves, and what was cached is not told.
        drop(client);
        exchange.closed().await;
        gateway.ended().await;
    }
    client.chat(SESSION, &long_chat()).await;
    let mut exchange = upstream.next().await;
    assert_eq!(expected(&gateway).cached_input, Tokens::ZERO, "forgotten");
    exchange.answer("200 OK", &reported(408, 0)).await;
    assert_eq!(client.answer().await.status, 200);
}
