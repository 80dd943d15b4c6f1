//! The same calls on a clock that stands still are quoted and decided alike through the proxy and through Envoy.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tallygate::shell::Seen;
use tallygate::units::RequestId;

use crate::door::{Client, Front, Gateway, Setup, Upstream};

/// Two at a time, two waiting, and nobody larger than 5,000 tokens.
const POLICY: &str = "identity: {tenant: [{header: x-tenant-id}, {fallback: nobody}]}\n\
    tenants: [{match: a, weight: 4}]\n\
    pools: [{name: chat, models: ['m*'], window: {requests: 2}, queue: {requests: 2}, max_request_tokens: 5000}]";

/// Tenant, and what differs from the plainest call.
fn calls() -> Vec<(&'static str, Value)> {
    vec![
        ("a", json!({"stream": true})),
        ("b", json!({"max_tokens": 100, "n": 3})),
        ("a", json!({"reasoning_effort": "high", "max_completion_tokens": 900})),
        ("c", json!({"messages": [{"role": "user", "content": "Wie spät ist es? 几点了?"}], "stream": true})),
        ("c", json!({"model": "unknown"})),
        ("b", json!({"max_tokens": 100_000})),
        ("b", json!({"n": 0})),
        ("d", json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]})),
        ("a", json!({"max_tokens": 1})),
    ]
}

/// The requests the core knows.
fn ids(seen: &Seen<'_>) -> Vec<RequestId> {
    seen.engine.requests().iter().map(|request| request.request).collect()
}

/// Sends the calls one after the other, and tells what the core knows after each, and what was answered.
async fn decisions(gateway: &Gateway, door: SocketAddr) -> Vec<String> {
    let mut told = Vec::new();
    let mut waiting = Vec::new();
    for (tenant, differs) in calls() {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]});
        for (name, value) in differs.as_object().expect("an object") {
            body[name] = value.clone();
        }
        let known = gateway.gate().look(|seen| ids(&seen)).expect("not broken");
        let mut client = Client::connect(door).await;
        client.chat(&format!("x-tenant-id: {tenant}\r\n"), &body).await;
        // Either the core knows this request, or it is answered.
        let answer = tokio::select! {
            answer = client.answer() => Some(answer),
            () = gateway.until("a decision", |seen| ids(seen) != known) => None,
        };
        let (_, after_epoch) = answer
            .as_ref()
            .map_or(("", ""), |answer| answer.header("x-tallygate-decision").split_once('-').expect("a decision"));
        told.push(format!(
            "{after_epoch} {:?}",
            answer.as_ref().map(|answer| {
                (
                    answer.status,
                    answer.header("x-tallygate-reason").to_owned(),
                    answer.header("retry-after-ms").to_owned(),
                    answer.body.clone(),
                )
            })
        ));
        told.push(
            gateway
                .gate()
                .look(|seen| format!("{:?} {:?} {:?}", seen.engine.requests(), seen.engine.tenants(), seen.now))
                .expect("not broken"),
        );
        waiting.push(client);
    }
    told
}

async fn compare() {
    let upstream = Upstream::start().await;
    let (by_proxy, by_envoy) =
        (Setup::policy(POLICY).start(&upstream.url()).await, Setup::policy(POLICY).start(&upstream.url()).await);
    let Some(front) = Front::start(&by_envoy, upstream.address()).await else { return };
    let (proxied, fronted) =
        (decisions(&by_proxy, by_proxy.app.proxy()).await, decisions(&by_envoy, front.address()).await);
    assert_eq!(proxied.len(), calls().len() * 2);
    for (proxied, fronted) in proxied.iter().zip(&fronted) {
        assert_eq!(proxied, fronted);
    }
    assert!(proxied.iter().any(|told| told.contains("InFlight")) && proxied.iter().any(|told| told.contains("Queued")));
}

#[tokio::test(start_paused = true)]
async fn equal_calls_get_equal_quotes_and_verdicts() {
    // A paused clock moves on when there is nothing to do. There always is.
    let busy = async {
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(30) {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = compare() => {}
        () = busy => panic!("thirty seconds were not enough"),
    }
}
