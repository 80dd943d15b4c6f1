//! Many requests held at once, and the official SDK, through Envoy.

use std::process::Command;

use super::fronted_as;
use crate::door::{Front, Setup};
use crate::proxy::chat;

const ANSWER: &str = "{\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}";

/// How many wait: a hundred, or in a full run more than twice Envoy's own default bound.
fn crowd() -> u32 {
    if std::env::var_os("TALLYGATE_FULL").is_some() { 2_000 } else { 100 }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_is_held_and_served_one_after_the_other() {
    let policy = "classes: [{name: standard, rank: 0, max_wait: 10m}]\n\
                  pools: [{name: chat, models: ['*'], window: {requests: 1}, \
                  queue: {requests: 4000, per_tenant_requests: 4000, per_session_requests: 4000}}]";
    let Some((gateway, mut upstream, front)) = fronted_as(Setup::policy(policy)).await else { return };
    let mut first = front.client().await;
    first.chat("", &chat(false)).await;
    let mut exchange = upstream.next().await;
    let mut clients = Vec::new();
    for _ in 0..crowd() {
        let mut client = front.client().await;
        client.chat("", &chat(false)).await;
        clients.push(client);
    }
    gateway.until_queued(crowd()).await;
    // Every tenth leaves again, and only those.
    let mut place = 0;
    clients.retain(|_| {
        place += 1;
        place % 10 != 0
    });
    gateway.until_queued(crowd() - crowd() / 10).await;
    exchange.answer("200 OK", ANSWER).await;
    assert_eq!(first.answer().await.status, 200);
    for _ in 0..clients.len() {
        upstream.next().await.answer("200 OK", ANSWER).await;
    }
    for client in &mut clients {
        assert_eq!(client.answer().await.status, 200);
    }
    let (_, outcomes) = gateway.ended().await;
    assert_eq!(outcomes.get("completed"), Some(&(u64::from(crowd() - crowd() / 10) + 1)), "{outcomes:?}");
    assert_eq!(outcomes.len(), 1, "{outcomes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn openai_python_works_unchanged_and_waits_as_told() {
    let Some(python) = std::env::var_os("TALLYGATE_PYTHON") else {
        println!("SKIPPED: TALLYGATE_PYTHON does not name a Python with the openai package; tests/run makes one");
        return;
    };
    let policy = "pools: [{name: chat, models: ['demo'], window: {requests: 1}, queue: {requests: 0}}]";
    let gateway = Setup { demo: true, ..Setup::policy(policy) }.start("").await;
    let engine: http::Uri = gateway.app.upstreams()[0].1.parse().expect("an address");
    let engine = engine.authority().expect("an address").as_str().parse().expect("an address");
    let Some(front) = Front::start(&gateway, engine).await else { return };
    let url = format!("http://{}/v1", front.address());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sdk/openai_chat.py");
    let running = tokio::task::spawn_blocking(move || Command::new(python).arg(script).arg(url).output());
    let output = running.await.expect("it runs").expect("the interpreter starts");
    let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{said}{complained}");
    assert!(output.status.success(), "{complained}");
    let (settled, outcomes) = gateway.ended().await;
    assert!(settled.is_positive());
    assert!(outcomes.get("completed").is_some_and(|completed| *completed >= 4), "{outcomes:?}");
}
