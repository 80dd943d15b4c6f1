//! A real Envoy that shows everything and waits for nothing: what would have been decided is counted, remembered and
//! charged as if, and nothing about the traffic changes.

use serde_json::{Value, json};

use super::{ANSWER, DONE, INPUT, USAGE, chat, cost, delta};
use crate::door::{Client, Config, Exchange, Front, Gateway, Setup, Upstream, once, within};

struct Scene {
    gateway: Gateway,
    upstream: Upstream,
    front: Front,
}

impl Scene {
    async fn set(policy: &str) -> Option<Self> {
        let upstream = Upstream::start().await;
        let gateway = Setup::policy(policy).start(&upstream.url()).await;
        let front = Front::of(Config::Shadow, &gateway, upstream.address()).await?;
        Some(Self { gateway, upstream, front })
    }

    /// A client whose streamed request has reached the upstream and got three tokens.
    async fn streaming(&mut self) -> (Client, Exchange) {
        let mut client = self.front.client().await;
        client.chat("", &chat(true)).await;
        let mut exchange = self.upstream.next().await;
        exchange.begin().await;
        exchange.chunk(&delta("one two three")).await;
        client.read_until("one two three").await;
        (client, exchange)
    }

    /// How often a verdict would have been given.
    async fn tried(&self, verdict: &str, reason: &str) -> u64 {
        let metrics = self.gateway.admin().await.get("/metrics", "").await.body;
        let counter = format!("tallygate_trial_total{{reason=\"{reason}\",verdict=\"{verdict}\"}} ");
        metrics.lines().find_map(|line| line.strip_prefix(&counter)?.parse().ok()).unwrap_or(0)
    }
}

#[tokio::test]
async fn what_would_have_been_refused_passes_untouched_and_is_remembered_with_its_reason() {
    let policy = "pools: [{name: chat, models: ['*'], window: {requests: 1}, queue: {requests: 0}}]";
    let Some(mut scene) = Scene::set(policy).await else { return };
    let (mut first, mut exchange) = scene.streaming().await;
    assert_eq!(exchange.body, chat(true).to_string().into_bytes(), "nothing is asked for");
    scene.gateway.until("the first is let through", |seen| seen.engine.requests().len() == 1).await;

    let mut second = scene.front.client().await;
    second.chat("x-tallygate-class: kept\r\nx-custom: kept\r\n", &chat(false)).await;
    let mut other = scene.upstream.next().await;
    assert_eq!((other.header("x-tallygate-class"), other.header("x-custom")), (Some("kept"), Some("kept")));
    assert_eq!(other.body, chat(false).to_string().into_bytes());
    other.answer("200 OK", ANSWER).await;
    let answer = second.answer().await;
    assert_eq!((answer.status, answer.body.as_str()), (200, ANSWER));
    assert!(answer.headers.keys().all(|name| !name.starts_with("x-tallygate")), "{:?}", answer.headers);

    exchange.chunk(&format!("{USAGE}{DONE}")).await;
    exchange.end().await;
    let answer = first.answer().await;
    assert!(answer.whole);
    assert_eq!(answer.body, format!("{}{USAGE}{DONE}", delta("one two three")), "nothing is hidden");
    let (settled, outcomes) = scene.gateway.ended().await;
    assert_eq!((settled, outcomes), (cost(11, 6), once("completed")), "what is refused costs nothing");
    assert_eq!((scene.tried("admitted", "").await, scene.tried("refused", "queue_full").await), (1, 1));

    let decisions = scene.gateway.admin().await.get("/v1/decisions?outcome=refused", "").await.json();
    let id = decisions[0]["decision"].as_str().expect("a name");
    let decision: Value = scene.gateway.admin().await.get(&format!("/v1/decisions/{id}"), "").await.json();
    assert_eq!((&decision["trial"], &decision["reason"]), (&json!(true), &json!("queue_full")), "{decision:#}");
}

#[tokio::test]
async fn what_would_have_waited_runs_at_once_and_is_charged_as_if_it_had_run_later() {
    let policy = "classes: [{name: standard, rank: 0, max_wait: 10m}]\n\
        pools: [{name: chat, models: ['*'], window: {requests: 1}}]";
    let Some(mut scene) = Scene::set(policy).await else { return };
    let (mut first, mut exchange) = scene.streaming().await;
    scene.gateway.until("the first is let through", |seen| seen.engine.requests().len() == 1).await;
    let mut second = scene.front.client().await;
    second.chat("", &chat(false)).await;
    scene.upstream.next().await.answer("200 OK", ANSWER).await;
    assert_eq!(second.answer().await.status, 200, "it is not held");
    scene.gateway.until_queued(1).await;
    // Nor is its place given up before its turn, though it has long been answered.
    assert_eq!(scene.tried("waited", "").await, 0);
    exchange.chunk(&format!("{USAGE}{DONE}")).await;
    exchange.end().await;
    assert!(first.answer().await.whole);
    let (settled, outcomes) = scene.gateway.ended().await;
    assert_eq!((settled, outcomes.get("completed")), (cost(11, 6) + cost(1, 1), Some(&2)), "{outcomes:?}");
    assert_eq!((scene.tried("admitted", "").await, scene.tried("waited", "").await), (1, 1));
}

#[tokio::test]
async fn a_client_that_leaves_is_charged_for_what_it_got() {
    let Some(mut scene) = Scene::set("pools: [{name: chat, models: ['*']}]").await else { return };
    let (client, exchange) = scene.streaming().await;
    scene.gateway.until("it is let through", |seen| seen.engine.requests().len() == 1).await;
    drop(client);
    exchange.closed().await;
    assert_eq!(scene.gateway.ended().await, (cost(INPUT, 3), once("client_aborted")));
}

#[tokio::test]
async fn a_filter_that_shows_too_little_costs_no_request_and_is_counted() {
    let upstream = Upstream::start().await;
    let gateway = Setup::default().start(&upstream.url()).await;
    let edit = |config: String| config.replace("request_body_mode: STREAMED", "request_body_mode: NONE");
    let front = Front::asking(Config::Shadow, gateway.app.grpc(), upstream.address(), edit).await;
    let (Some(front), mut upstream) = (front, upstream) else { return };
    let mut client = front.client().await;
    client.chat("", &chat(false)).await;
    upstream.next().await.answer("200 OK", ANSWER).await;
    assert_eq!(client.answer().await.status, 200);
    let scene = Scene { gateway, upstream, front };
    let counted = async {
        while scene.tried("unread", "body").await == 0 {
            tokio::task::yield_now().await;
        }
    };
    within("it to be counted", counted).await;
}
