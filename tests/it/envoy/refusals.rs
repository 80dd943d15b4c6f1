//! What is refused is refused in the client's dialect, who calls cannot be forged, and no door opens by accident.

use serde_json::json;
use tallygate::settings::Door;
use tallygate::units::{Bytes, VirtualTokens};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::{fronted, fronted_as, streaming};
use crate::door::{Front, Gateway, Setup, within};
use crate::proxy::{DONE, USAGE, chat};

const FULL: &str = "pools: [{name: chat, models: ['*'], window: {requests: 1}, queue: {requests: 0}}]";
const ANSWER: &str = "{\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}";

async fn admitted(gateway: &Gateway, tenant: &str) -> u64 {
    let rows = gateway.admin().await.get(&format!("/v1/tenants/{tenant}"), "").await;
    if rows.status == 404 { 0 } else { rows.json()[0]["admitted_total"].as_u64().expect("a count") }
}

#[tokio::test]
async fn a_full_queue_refuses_in_words_the_sdks_understand() {
    let Some((_gateway, mut upstream, front)) = fronted_as(Setup::policy(FULL)).await else { return };
    let (_running, _exchange) = streaming(&front, &mut upstream).await;
    let mut client = front.client().await;
    client.chat("", &chat(true)).await;
    let answer = client.answer().await;
    let message = answer.refusal(429, "queue_full");
    assert!(message.contains("try again in"), "{message}");
    let secs: u64 = answer.header("retry-after").parse().expect("whole seconds");
    let millis: u64 = answer.header("retry-after-ms").parse().expect("milliseconds");
    assert!(secs >= 1 && millis.div_ceil(1_000) == secs, "{secs} s, {millis} ms");
    assert_eq!(answer.header("content-type"), "application/json");
    assert!(upstream.is_untouched());
    let record = front.record(answer.header("x-tallygate-decision")).await;
    assert_eq!(record["details"], "tallygate_queue_full", "{record}");
}

#[tokio::test]
async fn what_cannot_be_served_is_told_so() {
    let policy = "pools: [{name: chat, models: ['m'], window: {requests: 1}, max_request_tokens: 100}]";
    let door = Door { body_most: Bytes::new(5_000), ..Door::default() };
    let Some((gateway, _upstream, front)) = fronted_as(Setup { door, ..Setup::policy(policy) }).await else { return };
    let with = |name: &str, value: serde_json::Value| {
        let mut body = chat(false);
        body[name] = value;
        body.to_string()
    };
    let long = with("messages", json!([{"role": "user", "content": "hello ".repeat(200)}]));
    let path = "/v1/chat/completions";
    for (path, headers, body, status, reason) in [
        (path, "", "{".to_owned(), 400, "malformed"),
        (path, "", long, 413, "too_large"),
        (path, "", with("model", json!("other")), 404, "model_not_found"),
        (path, "", with("x", json!("x".repeat(6_000))), 413, "too_large"),
        (path, "content-encoding: gzip\r\n", with("x", json!(1)), 400, "malformed"),
        (path, "content-encoding: br\r\n", with("x", json!(1)), 400, "unsupported"),
        (path, "x-tallygate-deadline-ms: soon\r\n", with("x", json!(1)), 400, "malformed"),
        (path, "x-tenant-id: a\r\nx-tenant-id: b\r\n", with("x", json!(1)), 400, "malformed"),
        ("/v1/files", "", "{}".to_owned(), 400, "unsupported"),
    ] {
        let mut client = front.client().await;
        client.post(path, headers, &body).await;
        client.answer().await.refusal(status, reason);
    }
    assert_eq!(gateway.ended().await.0, VirtualTokens::ZERO, "no trace");
}

#[tokio::test]
async fn a_body_too_large_for_envoy_is_refused_in_the_clients_dialect() {
    let (gateway, upstream) = crate::door::usual().await;
    let narrow = |config: String| {
        config.replace("per_connection_buffer_limit_bytes: 33554432", "per_connection_buffer_limit_bytes: 65536")
    };
    let Some(front) = Front::edited(&gateway, upstream.address(), narrow).await else { return };
    let mut client = front.client().await;
    let mut body = chat(false);
    body["x"] = json!("x".repeat(200_000));
    client.chat("", &body).await;
    let message = client.answer().await.refusal(413, "too_large");
    assert!(message.contains("the proxy in front"), "{message}");
}

#[tokio::test]
async fn a_body_of_twenty_megabytes_passes() {
    let Some((gateway, mut upstream, front)) = fronted().await else { return };
    let mut client = front.client().await;
    let mut body = chat(true);
    body["messages"][0]["content"] = json!([
        {"type": "text", "text": "hello"},
        {"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{}", "A".repeat(20_000_000))}},
    ]);
    client.chat("", &body).await;
    let mut exchange = upstream.next().await;
    assert!(exchange.body.len() > 20_000_000, "{}", exchange.body.len());
    exchange.begin().await;
    exchange.chunk(&format!("{USAGE}{DONE}")).await;
    exchange.end().await;
    assert!(client.answer().await.whole);
    gateway.ended().await;
}

#[tokio::test]
async fn an_envoy_that_waits_less_than_the_queue_does_lets_nothing_through() {
    for (patient, hurried, refused_by_us) in [
        // Envoy ends the conversation and answers on its own.
        (" message_timeout: 3600s", " message_timeout: 0.3s", false),
        // Envoy shows its answer, which is said in the client's dialect.
        ("stream_idle_timeout: 0s", "stream_idle_timeout: 0.3s", true),
    ] {
        let (gateway, mut upstream) = crate::door::usual().await;
        let edit = |config: String| config.replace(patient, hurried);
        let Some(front) = Front::edited(&gateway, upstream.address(), edit).await else { return };
        let mut running = gateway.client().await;
        running.chat("", &chat(true)).await;
        let _exchange = upstream.next().await;
        let mut client = front.client().await;
        client.chat("", &chat(true)).await;
        let answer = client.answer().await;
        if refused_by_us {
            answer.refusal(429, "expired");
            assert!(!answer.header("retry-after").is_empty());
        } else {
            assert_eq!(answer.status, 504);
        }
        gateway.until_queued(0).await;
        assert!(upstream.is_untouched(), "{hurried}");
    }
}

#[tokio::test]
async fn headers_and_forged_ones_count_for_nothing_where_they_are_not_trusted() {
    let policy = "identity: {tenant: [{header: x-tenant-id}, {fallback: nobody}], trust: [proxy]}\n\
                  pools: [{name: chat, models: ['*'], window: {requests: 1}}]";
    let Some((gateway, mut upstream, front)) = fronted_as(Setup::policy(policy)).await else { return };
    let mut client = front.client().await;
    let headers = "x-tenant-id: acme\r\nx-tallygate-decision: forged\r\nx-tallygate-tenant: acme\r\nx-custom: kept\r\n";
    client.chat(headers, &chat(false)).await;
    let mut exchange = upstream.next().await;
    assert!(!exchange.head.contains("x-tallygate"), "{}", exchange.head);
    assert_eq!(exchange.header("x-custom"), Some("kept"));
    let head =
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-tallygate-decision: forged\r\nx-tallygate-reason: forged\r\n\r\n{}";
    exchange.send(head).await;
    let answer = client.answer().await;
    assert_ne!(answer.header("x-tallygate-decision"), "forged");
    assert_eq!(answer.header("x-tallygate-reason"), "");
    gateway.ended().await;
    assert_eq!((admitted(&gateway, "nobody").await, admitted(&gateway, "acme").await), (1, 0));
}

#[tokio::test]
async fn a_header_counts_where_envoy_is_trusted_and_metadata_wherever_it_comes_from_envoy() {
    let policy = "identity: {tenant: [{metadata: envoy.filters.http.jwt_authn/payload.org}, {header: x-tenant-id}], trust: [grpc]}\n\
                  pools: [{name: chat, models: ['*'], window: {requests: 1}}]";
    let Some((gateway, mut upstream, front)) = fronted_as(Setup::policy(policy)).await else { return };
    let mut client = front.client().await;
    client.chat("x-tenant-id: by-header\r\n", &chat(false)).await;
    upstream.next().await.answer("200 OK", ANSWER).await;
    assert_eq!(client.answer().await.status, 200);
    let mut nobody = front.client().await;
    nobody.chat("", &chat(false)).await;
    let message = nobody.answer().await.refusal(401, "unidentified");
    assert!(message.contains("envoy.filters.http.jwt_authn/payload.org"), "{message}");

    // Stands for jwt_authn, which writes a verified token's claims there.
    let verified = |config: String| {
        let ours = "                  - name: envoy.filters.http.ext_proc\n";
        let before = "                  - name: envoy.filters.http.set_metadata\n                    \
            typed_config: {\"@type\": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config, \
            metadata: [{metadata_namespace: envoy.filters.http.jwt_authn, value: {payload: {org: by-token}}}]}\n";
        config.replace(ours, &format!("{before}{ours}"))
    };
    let front = Front::edited(&gateway, upstream.address(), verified).await.expect("there is one");
    let mut client = front.client().await;
    client.chat("x-tenant-id: by-header\r\n", &chat(false)).await;
    upstream.next().await.answer("200 OK", ANSWER).await;
    assert_eq!(client.answer().await.status, 200);
    gateway.ended().await;
    assert_eq!((admitted(&gateway, "by-header").await, admitted(&gateway, "by-token").await), (1, 1));
}

#[tokio::test]
async fn a_filter_that_is_set_up_wrongly_lets_nothing_through() {
    for (right, wrong) in [
        ("request_body_mode: BUFFERED", "request_body_mode: STREAMED"),
        ("response_body_mode: STREAMED", "response_body_mode: NONE"),
    ] {
        let (gateway, mut upstream) = crate::door::usual().await;
        let edit = |config: String| config.replace(right, wrong);
        let Some(front) = Front::edited(&gateway, upstream.address(), edit).await else { return };
        let mut client = front.client().await;
        client.chat("", &chat(true)).await;
        assert_eq!(client.answer().await.status, 503, "{wrong}");
        assert!(upstream.is_untouched(), "{wrong}");
    }
}

#[tokio::test]
async fn what_needs_no_metering_passes() {
    let Some((gateway, mut upstream, front)) = fronted().await else { return };
    let asking = async { front.client().await.get("/v1/models?limit=5", "").await };
    let answering = async {
        let mut exchange = upstream.next().await;
        assert!(exchange.head.starts_with("GET /v1/models?limit=5 HTTP/1.1"), "{}", exchange.head);
        exchange.answer("200 OK", "{\"data\":[]}").await;
    };
    let (answer, ()) = tokio::join!(asking, answering);
    assert_eq!((answer.status, answer.body.as_str()), (200, "{\"data\":[]}"));
    assert!(answer.header("x-tallygate-decision").contains('-'));
    assert!(gateway.outcomes().is_empty());
}

#[tokio::test]
async fn going_down_is_said_before_it_happens_and_finishes_what_runs() {
    let Some((gateway, mut upstream, front)) = fronted().await else { return };
    let (mut running, mut exchange) = streaming(&front, &mut upstream).await;
    let address = format!("http://{}", gateway.app.grpc());
    let channel = tonic::transport::Endpoint::from_shared(address).expect("an address").connect_lazy();
    let mut health = HealthClient::new(channel);
    let service = "envoy.service.ext_proc.v3.ExternalProcessor";
    let mut status = async || {
        let asked = health.check(HealthCheckRequest { service: service.into() }).await;
        asked.expect("it is there").into_inner().status()
    };
    assert_eq!(status().await, ServingStatus::Serving);
    let gate = gateway.gate().clone();
    let stopping = tokio::spawn(gateway.app.stop());
    within("the announcement", async { while status().await == ServingStatus::Serving {} }).await;
    let mut late = front.client().await;
    late.chat("", &chat(true)).await;
    late.answer().await.refusal(503, "draining");
    exchange.chunk(&format!("{USAGE}{DONE}")).await;
    exchange.end().await;
    assert!(running.answer().await.whole, "finished");
    within("the end", stopping).await.expect("it stops");
    assert_eq!(gate.look(|seen| seen.ledger.total().live()), Ok(VirtualTokens::ZERO));
}
