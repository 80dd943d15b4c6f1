//! The chain: a real Envoy verifies a token, asks us, and then an endpoint picker in FULL_DUPLEX_STREAMED mode.

use serde_json::{Value, json};
use tallygate::settings::{self, Door};

use super::{ANSWER, DONE, USAGE, chat, cost, delta};
use crate::door::{Chain, Config, Picker, Setup, bearer, with_picker};

const POLICY: &str = "identity: {tenant: [{metadata: envoy.filters.http.jwt_authn/payload.org}]}\n\
    classes: [{name: interactive, rank: 0, max_wait: 10m}]\n\
    pools: [{name: chat, models: ['*'], window: {requests: 1}}]";

/// A gateway that tells the picker who and what.
fn told(policy: &str) -> Setup {
    Setup { door: Door { picker: settings::Picker::Told, ..Door::default() }, ..Setup::policy(policy) }
}

#[tokio::test]
async fn a_token_names_the_tenant_we_decide_when_and_the_picker_where() {
    let Some(mut chain) = Chain::set(Config::Picker, told(POLICY), |text, _| text).await else { return };
    let mut nobody = chain.client().await;
    nobody.chat("", &chat(true)).await;
    assert_eq!(nobody.answer().await.status, 401, "Envoy lets nobody through without a token");

    let forged = "x-llm-d-inference-fairness-id: other\r\nx-llm-d-inference-objective: first\r\n\
        x-gateway-inference-fairness-id: other\r\nx-gateway-inference-objective: first\r\n\
        x-gateway-destination-endpoint: 127.0.0.1:1\r\n";
    let headers = format!("{}{forged}", bearer("acme"));
    let mut client = chain.client().await;
    client.chat(&headers, &chat(true)).await;
    let mut exchange = chain.upstream.next().await;
    let mut waiting = chain.client().await;
    waiting.chat(&bearer("bob"), &chat(false)).await;
    chain.gateway.until_queued(1).await;
    assert_eq!(chain.picker.asked(), 1, "what waits has no endpoint");
    let told = chain.picker.last();
    let endpoint = chain.upstream.address().to_string();
    for (name, value) in [
        ("x-llm-d-inference-fairness-id", Some("acme")),
        ("x-llm-d-inference-objective", Some("interactive")),
        ("x-gateway-inference-fairness-id", None),
        ("x-gateway-inference-objective", None),
    ] {
        assert_eq!(told.get(name).map(String::as_str), value, "{name}, to the picker");
        assert_eq!(exchange.header(name), value, "{name}, to the upstream");
    }
    assert_eq!(exchange.header("x-gateway-destination-endpoint"), Some(endpoint.as_str()));
    let sent: Value = serde_json::from_slice(&exchange.body).expect("all of the body");
    assert_eq!(sent["stream_options"]["include_usage"], true);

    exchange.begin().await;
    exchange.chunk(&delta("one two three")).await;
    client.read_until("one two three").await;
    exchange.chunk(&format!("{USAGE}{DONE}")).await;
    exchange.end().await;
    let answer = client.answer().await;
    assert!(answer.whole && answer.body.ends_with(DONE) && !answer.body.contains("prompt_tokens"), "{}", answer.body);

    chain.upstream.next().await.answer("200 OK", ANSWER).await;
    assert_eq!(waiting.answer().await.status, 200);
    let (settled, outcomes) = chain.gateway.ended().await;
    assert_eq!((settled, outcomes.get("completed")), (cost(11, 6) + cost(1, 1), Some(&2)), "{outcomes:?}");
    let decision = chain.decision(answer.header("x-tallygate-decision")).await;
    assert_eq!(decision["caller"]["tenant"], "acme");
    assert_eq!(decision["picked"], json!({"endpoint": endpoint, "cost": 17.0}), "{decision:#}");
}

#[tokio::test]
async fn requests_go_by_records_and_trailers_made_for_usage_pass_a_picker() {
    let policy = "pools: [{name: chat, models: ['*'], window: {requests: 1}}]";
    let with_picker = |text: String, picker: &Picker| with_picker(&text, picker);
    let Some(mut chain) = Chain::set(Config::BodyFree, told(policy), with_picker).await else { return };
    let json = r#"{"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":6,"total_tokens":17}}"#;
    let mut streamed = chat(true);
    streamed["stream_options"] = json!({"include_usage": true});
    for (number, body) in [chat(false), streamed.clone(), streamed].iter().enumerate() {
        let mut client = chain.client().await;
        client.chat("", body).await;
        let mut exchange = chain.upstream.next().await;
        assert_eq!(exchange.body, body.to_string().into_bytes(), "all of it");
        if body["stream"] == true {
            exchange.begin().await;
            exchange.chunk(&delta("one two three")).await;
            exchange.chunk(&format!("{USAGE}{DONE}")).await;
            exchange.end().await;
        } else {
            exchange.answer("200 OK", json).await;
        }
        let answer = client.answer().await;
        assert!(answer.whole && answer.body.contains("total_tokens"), "{number}: {answer:?}");
        let (settled, outcomes) = chain.gateway.ended().await;
        assert_eq!(settled, cost(11 * (number as u64 + 1), 6 * (number as u64 + 1)), "{outcomes:?}");
    }
    let metrics = chain.gateway.admin().await.get("/metrics", "").await.body;
    for counted in ["quote_source_total{source=\"record\"} 3", "usage_source_total{source=\"parsed\"} 3"] {
        assert!(metrics.contains(counted), "{counted}");
    }
    assert_eq!(chain.picker.asked(), 3);
}
