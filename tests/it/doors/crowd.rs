//! Many requests held at once, through Envoy.

use super::{ANSWER, chat};
use crate::door::{Setup, Stage, Way};

/// How many wait: a hundred, or in a full run more than twice Envoy's own default bound.
fn crowd() -> u32 {
    if std::env::var_os("TALLYGATE_FULL").is_some() { 2_000 } else { 100 }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_is_held_and_served_one_after_the_other() {
    let policy = "classes: [{name: standard, rank: 0, max_wait: 10m}]\n\
                  pools: [{name: chat, models: ['*'], window: {requests: 1}, \
                  queue: {requests: 4000, per_tenant_requests: 4000, per_session_requests: 4000}}]";
    let Some(mut stage) = Stage::set(Way::Envoy, Setup::policy(policy)).await else { return };
    let mut first = stage.client().await;
    first.chat("", &chat(false)).await;
    let mut exchange = stage.upstream.next().await;
    let mut clients = Vec::new();
    for _ in 0..crowd() {
        let mut client = stage.client().await;
        client.chat("", &chat(false)).await;
        clients.push(client);
    }
    stage.gateway.until_queued(crowd()).await;
    // Every tenth leaves again, and only those.
    let mut place = 0;
    clients.retain(|_| {
        place += 1;
        place % 10 != 0
    });
    stage.gateway.until_queued(crowd() - crowd() / 10).await;
    exchange.answer("200 OK", ANSWER).await;
    assert_eq!(first.answer().await.status, 200);
    for _ in 0..clients.len() {
        stage.upstream.next().await.answer("200 OK", ANSWER).await;
    }
    for client in &mut clients {
        assert_eq!(client.answer().await.status, 200);
    }
    let (_, outcomes) = stage.ended().await;
    assert_eq!(outcomes.get("completed"), Some(&(u64::from(crowd() - crowd() / 10) + 1)), "{outcomes:?}");
    assert_eq!(outcomes.len(), 1, "{outcomes:?}");
}
