//! What only Envoy can show: how it is set up, what it answers by itself, what it vouches for, and that it can die.

use serde_json::json;
use tallygate::units::VirtualTokens;

use super::{ANSWER, INPUT, chat, cost, delta};
use crate::door::{Client, Exchange, Front, Gateway, Setup, Shut, Upstream, once, usual};

/// A gateway with this setup, its upstream, and an Envoy in front; nothing where there is no Envoy.
async fn fronted_as(setup: Setup) -> Option<(Gateway, Upstream, Front)> {
    let upstream = Upstream::start().await;
    let gateway = setup.start(&upstream.url()).await;
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

async fn admitted(gateway: &Gateway, tenant: &str) -> u64 {
    let rows = gateway.admin().await.get(&format!("/v1/tenants/{tenant}"), "").await;
    if rows.status == 404 { 0 } else { rows.json()[0]["admitted_total"].as_u64().expect("a count") }
}

#[tokio::test]
async fn a_body_too_large_for_envoy_is_refused_in_the_clients_dialect() {
    let (gateway, upstream) = usual().await;
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
async fn an_envoy_that_waits_less_than_the_queue_does_lets_nothing_through() {
    for (patient, hurried, refused_by_us) in [
        // Envoy ends the conversation and answers on its own.
        (" message_timeout: 3600s", " message_timeout: 0.3s", false),
        // Envoy shows its answer, which is said in the client's dialect.
        ("stream_idle_timeout: 0s", "stream_idle_timeout: 0.3s", true),
    ] {
        let (gateway, mut upstream) = usual().await;
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
        let (gateway, mut upstream) = usual().await;
        let edit = |config: String| config.replace(right, wrong);
        let Some(front) = Front::edited(&gateway, upstream.address(), edit).await else { return };
        let mut client = front.client().await;
        client.chat("", &chat(true)).await;
        assert_eq!(client.answer().await.status, 503, "{wrong}");
        assert!(upstream.is_untouched(), "{wrong}");
    }
}

#[tokio::test]
async fn an_upstream_that_gives_no_answer_is_said_in_the_clients_dialect() {
    let Some((gateway, mut upstream, front)) = fronted_as(Setup::default()).await else { return };
    let mut client = front.client().await;
    client.chat("", &chat(true)).await;
    drop(upstream.next().await);
    let message = client.answer().await.refusal(502, "upstream_unreachable");
    assert!(message.contains("upstream_reset_before_response_started"), "{message}");
    assert_eq!(gateway.ended().await, (VirtualTokens::ZERO, once("upstream_failed")));

    let shut = Shut::start();
    let front = Front::start(&gateway, shut.address()).await.expect("there is one");
    let mut client = front.client().await;
    client.chat("", &chat(true)).await;
    client.answer().await.refusal(502, "upstream_unreachable");
    gateway.ended().await;
}

#[tokio::test]
async fn an_upstream_that_is_too_late_for_envoy_is_a_504_in_the_clients_dialect() {
    let (gateway, mut upstream) = usual().await;
    let hurried = |config: String| {
        config.replace("timeout: 0s\n                http_filters", "timeout: 0.1s\n                http_filters")
    };
    let Some(front) = Front::edited(&gateway, upstream.address(), hurried).await else { return };
    let mut client = front.client().await;
    client.chat("", &chat(true)).await;
    let exchange = upstream.next().await;
    client.answer().await.refusal(504, "upstream_timed_out");
    exchange.closed().await;
    assert_eq!(gateway.ended().await, (cost(INPUT, 0), once("timed_out")));
}

#[tokio::test]
async fn an_envoy_that_is_killed_gives_everything_back() {
    let Some((gateway, mut upstream, front)) = fronted_as(Setup::default()).await else { return };
    let (_client, exchange) = streaming(&front, &mut upstream).await;
    let mut queued = front.client().await;
    queued.chat("", &chat(true)).await;
    gateway.until_queued(1).await;
    front.kill().await;
    exchange.closed().await;
    gateway.until_queued(0).await;
    let (settled, outcomes) = gateway.ended().await;
    // The slot may reach the one that waited a moment before its own end does. Then that pays for its input.
    assert!(settled >= cost(INPUT, 3) && settled <= cost(2 * INPUT, 3), "{settled:?}");
    assert_eq!(outcomes.keys().collect::<Vec<_>>(), ["client_aborted"]);
    assert!(upstream.is_untouched(), "nothing more went upstream");
}
