//! What is restarted, what is large and what is many: nothing hangs, nothing is cut short, every ticket settles.

use std::net::SocketAddr;

use serde_json::json;
use tallygate::units::VirtualTokens;
use tokio::runtime::Runtime;

use super::{ANSWER, DONE, USAGE, chat, delta};
use crate::door::{Chain, Config, Front, Gateway, IDENTITY, Picker, Setup, Upstream, caller, with_picker, within};

/// A change to a configuration.
type Edit = fn(String, &Picker) -> String;

const HOLDING: [Config; 3] = [Config::ExtProc, Config::BodyFree, Config::Picker];

fn policy() -> String {
    format!(
        "{IDENTITY}classes: [{{name: standard, rank: 0, max_wait: 10m}}]\n\
         pools: [{{name: chat, models: ['*'], window: {{requests: 1}}, max_request_tokens: 100000000, \
         queue: {{requests: 4000, tokens: 1000000000000, per_tenant_requests: 4000, per_session_requests: 4000}}}}]"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn an_envoy_that_is_killed_and_started_again_loses_nothing_of_ours() {
    for config in HOLDING {
        let Some(chain) = Chain::set(config, Setup::policy(&policy()), |text, _| text).await else { return };
        let Chain { gateway, mut upstream, picker, front, .. } = chain;
        let mut running = front.client().await;
        running.chat(&caller(config, "acme"), &chat(true)).await;
        let exchange = upstream.next().await;
        let mut waiting = front.client().await;
        waiting.chat(&caller(config, "acme"), &chat(true)).await;
        gateway.until_queued(1).await;
        front.kill().await;
        exchange.closed().await;
        gateway.until_queued(0).await;
        let (_, outcomes) = gateway.ended().await;
        assert_eq!(outcomes.keys().collect::<Vec<_>>(), ["client_aborted"], "{config:?}");
        let front = Chain::front(config, gateway.app.grpc(), &upstream, &picker, |text, _| text).await;
        let mut again = front.as_ref().expect("there is one").client().await;
        again.chat(&caller(config, "acme"), &chat(false)).await;
        upstream.next().await.answer("200 OK", ANSWER).await;
        assert_eq!(again.answer().await.status, 200, "{config:?}");
        let (_, outcomes) = gateway.ended().await;
        assert_eq!(outcomes.get("completed"), Some(&1), "{config:?}");
    }
}

/// A gateway that dies with all its sockets when this is dropped.
struct Mortal {
    gateway: Option<Gateway>,
    runtime: Option<Runtime>,
}

impl Mortal {
    async fn start(upstream: &Upstream, grpc: SocketAddr) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let setup = Setup { grpc, ..Setup::policy(&policy()) };
        let url = upstream.url();
        let gateway = runtime.spawn(async move { setup.start(&url).await }).await.expect("it starts");
        Self { gateway: Some(gateway), runtime: Some(runtime) }
    }

    fn gateway(&self) -> &Gateway {
        self.gateway.as_ref().expect("it lives")
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Whoever is served and whoever waits while the gateway dies, whoever comes while it is dead, and whoever comes after.
async fn gateway_dies(config: Config, open: bool) -> Option<()> {
    let mut upstream = Upstream::start().await;
    let picker = Picker::start(upstream.address()).await;
    let first = Mortal::start(&upstream, SocketAddr::from(([127, 0, 0, 1], 0))).await;
    let grpc = first.gateway().app.grpc();
    let edit = |text: String, _: &Picker| {
        let closed = "                      failure_mode_allow: false\n";
        assert!(text.contains(closed));
        if open { text.replacen(closed, &closed.replace("false", "true"), 1) } else { text }
    };
    let front: Front = Chain::front(config, grpc, &upstream, &picker, edit).await?;
    let headers = caller(config, "acme");
    let mut running = front.client().await;
    running.chat(&headers, &chat(true)).await;
    let mut exchange = upstream.next().await;
    exchange.begin().await;
    exchange.chunk(&delta("one two three")).await;
    running.read_until("one two three").await;
    let mut waiting = front.client().await;
    waiting.chat(&headers, &chat(false)).await;
    first.gateway().until_queued(1).await;
    drop(first);

    let mut while_dead = front.client().await;
    if open {
        upstream.next().await.answer("200 OK", ANSWER).await;
        assert_eq!(waiting.answer().await.status, 200, "{config:?}: what waited goes on, uncounted");
        while_dead.chat(&headers, &chat(false)).await;
        upstream.next().await.answer("200 OK", ANSWER).await;
        assert_eq!(while_dead.answer().await.status, 200, "{config:?}");
        exchange.chunk(&format!("{USAGE}{DONE}")).await;
        exchange.end().await;
        assert!(running.answer().await.whole, "{config:?}: what ran goes on to its end");
    } else {
        assert_eq!(waiting.answer().await.status, 503, "{config:?}: what waited is not let through");
        while_dead.chat(&headers, &chat(false)).await;
        assert_eq!(while_dead.answer().await.status, 503, "{config:?}");
        assert!(!running.answer().await.whole, "{config:?}: what ran is cut short, visibly");
        exchange.closed().await;
    }
    assert!(upstream.is_untouched(), "{config:?}");

    let second = Mortal::start(&upstream, grpc).await;
    let mut after = front.client().await;
    after.chat(&headers, &chat(false)).await;
    upstream.next().await.answer("200 OK", ANSWER).await;
    assert_eq!(after.answer().await.status, 200, "{config:?}: asked again at once");
    let (settled, outcomes) = second.gateway().ended().await;
    assert!(settled > VirtualTokens::ZERO && outcomes.get("completed") == Some(&1), "{config:?}: {outcomes:?}");
    Some(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_dies_lets_nothing_through_and_is_asked_again_when_it_is_back() {
    for config in HOLDING {
        gateway_dies(config, false).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_dies_lets_everything_through_where_the_operator_says_so() {
    for config in HOLDING {
        gateway_dies(config, true).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_dies_on_trial_costs_no_request() {
    let mut upstream = Upstream::start().await;
    let picker = Picker::start(upstream.address()).await;
    let first = Mortal::start(&upstream, SocketAddr::from(([127, 0, 0, 1], 0))).await;
    let grpc = first.gateway().app.grpc();
    let Some(front) = Chain::front(Config::Shadow, grpc, &upstream, &picker, |text, _| text).await else { return };
    let mut running = front.client().await;
    running.chat("", &chat(true)).await;
    let mut exchange = upstream.next().await;
    exchange.begin().await;
    first.gateway().until("it is known", |seen| seen.engine.requests().len() == 1).await;
    drop(first);
    exchange.chunk(&format!("{}{USAGE}{DONE}", delta("x"))).await;
    exchange.end().await;
    assert!(running.answer().await.whole, "the stream goes on");
    let mut late = front.client().await;
    late.chat("", &chat(false)).await;
    upstream.next().await.answer("200 OK", ANSWER).await;
    assert_eq!(late.answer().await.status, 200, "and so do others");
}

/// Bodies of 5 and 25 MB both ways, to the last byte.
async fn large(config: Config, edit: Edit) -> Option<()> {
    let mut chain = Chain::set(config, Setup::policy(&policy()), edit).await?;
    for size in [5_000_000, 25_000_000] {
        let settled = |seen: &tallygate::shell::Seen<'_>| seen.ledger.total().settled;
        let before = chain.gateway.gate().look(|seen| settled(&seen)).expect("not broken");
        let mut body = chat(false);
        body["messages"][0]["content"] = json!("word ".repeat(size / 5));
        let body = body.to_string();
        let answer = json!({
            "choices": [{"message": {"content": "y".repeat(size)}}],
            "usage": {"prompt_tokens": 11, "completion_tokens": 6, "total_tokens": 17},
        });
        let answer = answer.to_string();
        let mut client = chain.client().await;
        let headers = chain.headers("acme");
        let exchanged = async {
            let asking = client.post("/v1/chat/completions", &headers, &body);
            let ((), mut exchange) = tokio::join!(asking, chain.upstream.next());
            assert_eq!(exchange.body.len(), body.len(), "{config:?}, {size}");
            assert!(exchange.body == body.as_bytes(), "{config:?}, {size}: the same bytes");
            let ((), got) = tokio::join!(exchange.answer("200 OK", &answer), client.answer());
            got
        };
        let got = within("a large exchange", exchanged).await;
        assert!(got.whole && got.status == 200, "{config:?}, {size}");
        assert_eq!(got.body.len(), answer.len(), "{config:?}, {size}");
        // On trial the end is seen a moment after the client has it.
        chain.gateway.until(&format!("{config:?}, {size}, to be settled"), |seen| settled(seen) > before).await;
        chain.gateway.ended().await;
    }
    Some(())
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_pass_whole_and_settle() {
    for (config, edit) in [
        (Config::ExtProc, (|text, _| text) as Edit),
        (Config::BodyFree, |text, _| text),
        (Config::Picker, |text, _| text),
        (Config::BodyFree, |text, picker| with_picker(&text, picker)),
        (Config::Shadow, |text, _| text),
    ] {
        large(config, edit).await;
    }
}

/// How many stream at once: a hundred, or in a full run two thousand.
fn crowd() -> u32 {
    if std::env::var_os("TALLYGATE_FULL").is_some() { 2_000 } else { 100 }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_streams_at_once_through_a_picker_and_ends() {
    let policy = policy().replace("window: {requests: 1}", &format!("window: {{requests: {}}}", crowd()));
    let edits: [(Config, Edit); 2] =
        [(Config::Picker, |text, _| text), (Config::BodyFree, |text, picker| with_picker(&text, picker))];
    for (config, edit) in edits {
        let Some(mut chain) = Chain::set(config, Setup::policy(&policy), edit).await else { return };
        let headers = chain.headers("acme");
        let (mut clients, mut exchanges) = (Vec::new(), Vec::new());
        for _ in 0..crowd() {
            let mut client = chain.client().await;
            let mut body = chat(true);
            body["stream_options"] = json!({"include_usage": true});
            client.chat(&headers, &body).await;
            clients.push(client);
            let mut exchange = chain.upstream.next().await;
            exchange.begin().await;
            exchanges.push(exchange);
        }
        for exchange in &mut exchanges {
            exchange.chunk(&delta("one two three")).await;
        }
        for client in &mut clients {
            client.read_until("one two three").await;
        }
        for mut exchange in exchanges {
            exchange.chunk(&format!("{USAGE}{DONE}")).await;
            exchange.end().await;
        }
        for client in &mut clients {
            let answer = client.answer().await;
            assert!(answer.whole && answer.body.contains("[DONE]"), "{config:?}: {}", answer.body);
        }
        let (_, outcomes) = chain.gateway.ended().await;
        assert_eq!(outcomes.get("completed"), Some(&u64::from(crowd())), "{config:?}: {outcomes:?}");
    }
}
