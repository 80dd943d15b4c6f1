//! What differs where Envoy asks over ext_authz and tells of the end in its access log: nothing can be changed, and no
//! answer is seen. What is decided is the same, and played by the shared tables.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tallygate::ledger::Balance;
use tallygate::settings::Settings;
use tallygate::units::{Span, VirtualTokens};

use super::{DONE, INPUT, chat, cost};
use crate::door::{Case, Config, Front, Gateway, Setup, Stage, Upstream, Way, cases, once, play, within};

const THREE: &str = "one two three";

/// What a real engine's event begins with, by which Envoy knows what it reads.
const SHAPE: &str =
    r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"gpt-4o","#;

/// An event with some text.
fn delta(text: &str) -> String {
    let choice = json!({"index": 0, "delta": {"content": text}, "finish_reason": null});
    format!("{SHAPE}\"choices\":[{choice}]}}\n\n")
}

/// The event that tells the usage, and the last one.
fn told_usage() -> String {
    format!(
        "{SHAPE}\"choices\":[],\"usage\":{{\"prompt_tokens\":11,\"completion_tokens\":6,\"total_tokens\":17}}}}\n\n{DONE}"
    )
}
/// The output that is expected of [`chat`] while nothing is known: its cap.
const EXPECTED: u64 = 40;

/// The same, and it asks for usage itself.
fn telling() -> Value {
    let mut body = chat(true);
    body["stream_options"] = json!({"include_usage": true});
    body
}

#[tokio::test]
async fn an_end_is_settled_by_the_access_log() {
    let cases: &[(&str, Case)] = cases![
        an_upstream_that_gives_no_answer_costs_nothing,
        an_upstreams_error_passes_and_costs_nothing,
        a_client_that_leaves_before_the_answer_pays_for_its_input,
        a_client_that_leaves_the_queue_costs_nothing_and_is_gone_at_once,
        a_stream_that_tells_its_usage_is_settled_for_it,
        an_answer_in_one_piece_is_settled_for_its_usage,
        an_answer_that_tells_nothing_costs_what_was_predicted,
        who_breaks_off_pays_for_the_time_the_answer_took,
        what_costs_nothing_passes_without_a_lease,
    ];
    play(Way::Authz, |_| Setup::default(), cases).await;
}

async fn an_upstream_that_gives_no_answer_costs_nothing(stage: &mut Stage) {
    let mut client = stage.client().await;
    client.chat("", &chat(true)).await;
    drop(stage.upstream.next().await);
    let answer = client.answer().await;
    // Envoy's own words: this filter sees no answer, and cannot say it in the client's.
    assert_eq!((answer.status, answer.header("x-tallygate-reason")), (503, ""));
    assert!(answer.header("x-tallygate-decision").contains('-'));
    assert_eq!(stage.ended().await, (VirtualTokens::ZERO, once("upstream_failed")));
}

async fn an_upstreams_error_passes_and_costs_nothing(stage: &mut Stage) {
    for (status, kept) in [("500 Internal Server Error", 500), ("429 Too Many Requests", 429), ("400 Bad Request", 400)]
    {
        let mut client = stage.client().await;
        client.chat("", &chat(true)).await;
        let body = "{\"error\":{\"message\":\"theirs\",\"code\":\"theirs\"}}";
        stage.upstream.next().await.answer(status, body).await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.body.as_str(), answer.header("x-tallygate-reason")), (kept, body, ""));
        assert_eq!(stage.ended().await, (VirtualTokens::ZERO, once("upstream_failed")));
    }
}

async fn a_client_that_leaves_before_the_answer_pays_for_its_input(stage: &mut Stage) {
    let mut client = stage.client().await;
    client.chat("", &chat(true)).await;
    let exchange = stage.upstream.next().await;
    drop(client);
    exchange.closed().await;
    assert_eq!(stage.ended().await, (cost(INPUT, 0), once("client_aborted")));
}

async fn a_client_that_leaves_the_queue_costs_nothing_and_is_gone_at_once(stage: &mut Stage) {
    let (mut first, mut exchange) = streaming(stage).await;
    let mut second = stage.client().await;
    second.chat("", &chat(true)).await;
    stage.gateway.until_queued(1).await;
    drop(second);
    stage.gateway.until_queued(0).await;
    exchange.chunk(&told_usage()).await;
    exchange.end().await;
    assert!(first.answer().await.whole);
    assert_eq!(stage.ended().await, (cost(11, 6), once("completed")));
}

async fn a_stream_that_tells_its_usage_is_settled_for_it(stage: &mut Stage) {
    let (mut client, mut exchange) = streaming(stage).await;
    assert_eq!(exchange.body, telling().to_string().into_bytes(), "untouched");
    assert_eq!(exchange.header("accept-encoding"), Some("identity"));
    assert!(!exchange.head.contains("tallygate"), "the lease is told to Envoy alone: {}", exchange.head);
    exchange.chunk(&told_usage()).await;
    exchange.end().await;
    let answer = client.answer().await;
    assert_eq!((answer.whole, answer.status), (true, 200));
    assert_eq!(answer.body, format!("{}{}", delta(THREE), told_usage()), "nothing is taken out");
    let decision = answer.header("x-tallygate-decision");
    assert!(decision.contains('-') && answer.header("x-tallygate-queue-ms") == "0");
    assert!(!answer.headers.contains_key("x-tallygate-lease"));
    assert_eq!(stage.ended().await, (cost(11, 6), once("completed")));
    stage.recorded(decision, "tenant", json!("anonymous")).await;
}

async fn an_answer_in_one_piece_is_settled_for_its_usage(stage: &mut Stage) {
    let mut client = stage.client().await;
    client.chat("", &chat(false)).await;
    let reported = json!({
        "id": "x", "object": "chat.completion", "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25,
            "prompt_tokens_details": {"cached_tokens": 10}},
    });
    stage.upstream.next().await.answer("200 OK", &reported.to_string()).await;
    assert_eq!(client.answer().await.json(), reported);
    // Ten uncached at 1, ten cached at 0.1, five out at 2.
    assert_eq!(stage.ended().await, (VirtualTokens::whole(10 + 1 + 10), once("completed")));
    assert!(stage.gateway.metric("tallygate_access_log_entries_total{use=\"reported\"}") >= 1.0);
}

async fn an_answer_that_tells_nothing_costs_what_was_predicted(stage: &mut Stage) {
    let predicted =
        |stage: &Stage| stage.gateway.gate().look(|seen| seen.engine.requests()[0].expected).expect("not broken");
    let mut client = stage.client().await;
    client.chat("", &chat(false)).await;
    let mut exchange = stage.upstream.next().await;
    let expected = predicted(stage);
    exchange.answer("200 OK", "{\"choices\":[{\"message\":{\"content\":\"one\"}}]}").await;
    assert_eq!(client.answer().await.status, 200);
    let usage = (expected.input().get(), expected.output().get());
    assert_eq!(stage.ended().await, (cost(usage.0, usage.1), once("completed")));
    assert!(stage.gateway.metric("tallygate_access_log_entries_total{use=\"estimated\"}") >= 1.0);
}

async fn who_breaks_off_pays_for_the_time_the_answer_took(stage: &mut Stage) {
    for upstream_breaks in [false, true] {
        let (mut client, exchange) = streaming(stage).await;
        let outcome = if upstream_breaks {
            drop(exchange);
            assert!(!client.answer().await.whole);
            "upstream_failed"
        } else {
            drop(client);
            exchange.closed().await;
            "client_aborted"
        };
        let (charged, outcomes) = stage.ended().await;
        assert_eq!(outcomes, once(outcome));
        assert!(charged >= cost(INPUT, 0) && charged <= cost(INPUT, EXPECTED), "{outcome}: {charged:?}");
    }
}

async fn what_costs_nothing_passes_without_a_lease(stage: &mut Stage) {
    let mut client = stage.client().await;
    let asking = client.get("/v1/models?limit=5", "authorization: Bearer theirs\r\n");
    let answering = async {
        let mut exchange = stage.upstream.next().await;
        assert!(exchange.head.starts_with("GET /v1/models?limit=5 HTTP/1.1"), "{}", exchange.head);
        assert_eq!(exchange.header("authorization"), Some("Bearer theirs"));
        exchange.answer("200 OK", "{\"data\":[]}").await;
    };
    let (answer, ()) = tokio::join!(asking, answering);
    assert_eq!((answer.status, answer.body.as_str()), (200, "{\"data\":[]}"));
    assert!(answer.header("x-tallygate-decision").contains('-'));
    assert_eq!(stage.gateway.metric("tallygate_leases_live{door=\"ext_authz\"}"), 0.0);
}

/// A client whose stream, which will tell its usage, has reached the upstream and got three tokens.
async fn streaming(stage: &mut Stage) -> (crate::door::Client, crate::door::Exchange) {
    let mut client = stage.client().await;
    client.chat("", &telling()).await;
    let mut exchange = stage.upstream.next().await;
    exchange.begin().await;
    exchange.chunk(&delta(THREE)).await;
    client.read_until(THREE).await;
    (client, exchange)
}

/// A gateway with this setup, its upstream, and an Envoy with an edited configuration; nothing where there is no Envoy.
async fn fronted(setup: Setup, edit: impl FnOnce(String) -> String) -> Option<(Gateway, Upstream, Front)> {
    let upstream = Upstream::start().await;
    let gateway = setup.start(&upstream.url()).await;
    let front = Front::asking(Config::Authz, gateway.app.grpc(), upstream.address(), edit).await?;
    Some((gateway, upstream, front))
}

fn changed(config: &str, from: &str, to: &str) -> String {
    assert!(config.contains(from), "the configuration has {from}");
    config.replace(from, to)
}

#[tokio::test]
async fn a_body_that_comes_cut_off_is_refused_in_the_clients_dialect() {
    let narrow = |config: String| changed(&config, "max_request_bytes: 33554432", "max_request_bytes: 8192");
    let Some((gateway, mut upstream, front)) = fronted(Setup::default(), narrow).await else { return };
    for path in ["/v1/chat/completions", "/v1/messages"] {
        let mut body = chat(false);
        body["x"] = json!("x".repeat(200_000));
        let mut client = front.client().await;
        client.post(path, "", &body.to_string()).await;
        let answer = client.answer().await;
        let message = answer.refusal(413, "too_large");
        assert!(message.contains("the proxy in front"), "{message}");
        assert_eq!(answer.json()["type"] == "error", path == "/v1/messages", "in its own shape");
    }
    assert!(upstream.is_untouched());
    gateway.ended().await;
}

#[tokio::test]
async fn a_filter_that_sends_no_bodies_lets_nothing_metered_through() {
    let blind = |config: String| {
        let from = config.find("                      with_request_body:\n").expect("there is one");
        let to = config.find("                      # Headers as they came.").expect("there is one");
        format!("{}{}", &config[..from], &config[to..])
    };
    let Some((_gateway, mut upstream, front)) = fronted(Setup::default(), blind).await else { return };
    let mut client = front.client().await;
    client.chat("", &chat(true)).await;
    assert_eq!(client.answer().await.status, 503);
    assert!(upstream.is_untouched());
}

#[tokio::test]
async fn a_model_that_would_have_to_be_renamed_is_refused_and_a_compressed_body_goes_on_as_it_came() {
    let aliased = "unmetered: pass\n\
        pools: [{name: chat, models: ['big'], aliases: [{from: 'gpt-4o*', to: big}], window: {requests: 1}}]";
    let Some((gateway, mut upstream, front)) = fronted(Setup::policy(aliased), |config| config).await else { return };
    for path in ["/v1/chat/completions", "/v1/messages/count_tokens"] {
        let mut client = front.client().await;
        client.post(path, "", &chat(false).to_string()).await;
        let message = client.answer().await.refusal(400, "unsupported");
        assert!(message.contains("another name") && message.contains("ext_authz"), "{message}");
    }
    let body = super::passing::gzip(r#"{"model":"big","messages":[{"role":"user","content":"hello"}]}"#);
    let mut client = front.client().await;
    let head = format!("host: g\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n", body.len());
    client.send(&[format!("POST /v1/chat/completions HTTP/1.1\r\n{head}").as_bytes(), &body].concat()).await;
    let mut exchange = upstream.next().await;
    assert_eq!((exchange.header("content-encoding"), &exchange.body), (Some("gzip"), &body));
    exchange.answer("200 OK", "{}").await;
    assert_eq!(client.answer().await.status, 200);
    gateway.ended().await;
}

#[tokio::test]
async fn a_tripped_breaker_is_told_in_every_dialect_and_hears_when_to_come_back() {
    let ruled = "classes: [{name: standard, rank: 0, max_wait: 30s}]
pools: [{name: chat, models: ['*'], breaker: {failures: 4, within: 30s, statuses: ['500-599'], trip_for: 1s, accept_retry_after: true}}]";
    let Some((gateway, mut upstream, front)) = fronted(Setup::policy(ruled), |config| config).await else { return };
    for (tenant, wait) in [("a", ""), ("b", ""), ("a", ""), ("b", "\r\nretry-after: 86400")] {
        let mut client = front.client().await;
        client.chat(&format!("x-tenant-id: {tenant}\r\n"), &chat(false)).await;
        upstream.next().await.answer(&format!("503 Service Unavailable{wait}"), "{}").await;
        assert_eq!(client.answer().await.status, 503);
        gateway.ended().await;
    }
    let mut client = front.client().await;
    client.post("/v1/messages", "", r#"{"model":"m","max_tokens":4,"messages":[{"role":"user","content":"x"}]}"#).await;
    let answer = client.answer().await;
    answer.refusal(529, "breaker_tripped");
    let seconds: u64 = answer.header("retry-after").parse().expect("seconds");
    assert!(seconds > 80_000, "the upstream's own word: {seconds}");
}

fn short(life_ms: u64) -> Setup {
    Setup { lease_life: Span::from_millis(life_ms), ..Setup::default() }
}

fn told(event: &str) -> String {
    format!("tallygate_leases_total{{door=\"ext_authz\",event=\"{event}\"}}")
}

#[tokio::test]
async fn what_runs_long_is_kept_alive_by_the_access_log() {
    let often = |config: String| changed(&config, "access_log_flush_interval: 10s", "access_log_flush_interval: 0.1s");
    let Some((gateway, mut upstream, front)) = fronted(short(1_000), often).await else { return };
    let mut client = front.client().await;
    client.chat("", &telling()).await;
    let mut exchange = upstream.next().await;
    exchange.begin().await;
    exchange.chunk(&delta(THREE)).await;
    // Twice as long as a lease lives.
    gateway.until_metric(&told("renewed"), 20.0).await;
    assert_eq!((gateway.metric(&told("expired")), gateway.outcomes().len()), (0.0, 0));
    exchange.chunk(&told_usage()).await;
    exchange.end().await;
    assert!(client.answer().await.whole);
    assert_eq!(gateway.ended().await, (cost(11, 6), once("completed")));
}

#[tokio::test]
async fn a_default_life_outlasts_an_access_log_that_is_silent_for_ten_seconds() {
    assert!(Settings::LEASE_LIFE > Span::from_secs(10 + 10), "one record in between may be lost, too");
    let config: String =
        Config::Authz.text().lines().filter(|line| line.contains("access_log_flush_interval:")).collect();
    assert!(config.contains("access_log_flush_interval: 10s"), "{config}");
}

/// Carries connections to an address, until it is cut.
struct Wire {
    address: SocketAddr,
    carrying: tokio::task::JoinHandle<()>,
}

impl Wire {
    async fn at(address: SocketAddr, to: SocketAddr) -> Self {
        let listener = tokio::net::TcpListener::bind(address).await.expect("an address");
        let address = listener.local_addr().expect("bound");
        let carrying = tokio::spawn(async move {
            let mut carried = tokio::task::JoinSet::new();
            while let Ok((mut from, _)) = listener.accept().await {
                carried.spawn(async move {
                    if let Ok(mut onward) = tokio::net::TcpStream::connect(to).await {
                        // Either end may close.
                        let _closed = tokio::io::copy_bidirectional(&mut from, &mut onward).await;
                    }
                });
            }
        });
        Self { address, carrying }
    }

    /// Nobody listens any more, and every connection breaks.
    async fn cut(self) {
        self.carrying.abort();
        assert!(self.carrying.await.is_err());
    }
}

/// So many requests at once, each answered with its usage.
async fn answered(front: &Front, upstream: &mut Upstream, count: usize) {
    let mut clients = Vec::new();
    for _ in 0..count {
        let mut client = front.client().await;
        client.chat("", &telling()).await;
        clients.push(client);
    }
    for _ in 0..count {
        let mut exchange = upstream.next().await;
        exchange.begin().await;
        exchange.chunk(&format!("{}{}", delta(THREE), told_usage())).await;
        exchange.end().await;
    }
    for client in &mut clients {
        assert!(client.answer().await.whole);
    }
}

/// The access log has a way of its own, which can be cut.
fn apart(config: &str, logs: SocketAddr) -> String {
    let at = config.find("log_name: tallygate").expect("there is a log");
    let (before, after) = config.split_at(at);
    let cluster = format!(
        "    - name: logs\n      type: STATIC\n      connect_timeout: 1s\n      typed_extension_protocol_options:\n        \
         envoy.extensions.upstreams.http.v3.HttpProtocolOptions:\n          \"@type\": \
         type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions\n          \
         explicit_http_config: {{http2_protocol_options: {{}}}}\n      load_assignment:\n        cluster_name: logs\n        \
         endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {}}}}}}}}}]}}]\n",
        logs.port()
    );
    format!("{before}{}\n{cluster}", after.replacen("cluster_name: tallygate", "cluster_name: logs", 1))
}

/// Envoy finds its way back when it next has something to tell.
async fn tells_again(gateway: &Gateway, front: &Front, upstream: &mut Upstream) {
    let settled = gateway.metric(&told("settled"));
    let heard = async {
        while gateway.metric(&told("settled")) == settled {
            answered(front, upstream, 1).await;
        }
    };
    within("Envoy to tell again", heard).await;
}

/// A gateway whose access log is cut under load for this long, and comes back.
async fn outage(setup: Setup, silent: Duration) {
    let life = setup.lease_life.to_std();
    let mut upstream = Upstream::start().await;
    let gateway = setup.start(&upstream.url()).await;
    let grpc = gateway.app.grpc();
    let wire = Wire::at(SocketAddr::from(([127, 0, 0, 1], 0)), grpc).await;
    let edit = |config: String| apart(&config, wire.address);
    let Some(front) = Front::asking(Config::Authz, grpc, upstream.address(), edit).await else { return };
    let untold = "tallygate_leases_untold{door=\"ext_authz\"}";
    answered(&front, &mut upstream, 5).await;
    gateway.until_metric(&told("settled"), 5.0).await;
    assert_eq!((gateway.metric(untold), gateway.metric(&told("expired"))), (0.0, 0.0));
    let mut long = front.client().await;
    long.chat("", &telling()).await;
    let mut running = upstream.next().await;
    running.begin().await;
    running.chunk(&delta(THREE)).await;
    long.read_until(THREE).await;

    let address = wire.address;
    wire.cut().await;
    let began = tokio::time::Instant::now();
    let mut unheard = 0.0;
    // As many as are remembered when all is over, and no more.
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    while unheard < 20.0 || began.elapsed() < silent {
        pace.tick().await;
        answered(&front, &mut upstream, 4).await;
        unheard += 4.0;
        let Balance { reserved, settled, refunded } = gateway.gate().look(|seen| seen.ledger.total()).expect("whole");
        assert!(settled + refunded <= reserved, "never more than was reserved");
    }
    // Who runs is untold as well.
    println!("silent for {:?}: {} requests untold", began.elapsed(), gateway.metric(untold));
    assert!(gateway.metric(untold) >= unheard, "nobody tells of these");
    if life < silent {
        gateway.until_metric(&told("expired"), unheard).await;
    }

    let _again = Wire::at(address, grpc).await;
    tells_again(&gateway, &front, &mut upstream).await;
    running.chunk(&told_usage()).await;
    running.end().await;
    let long = long.answer().await;
    assert!(long.whole);
    tokio::time::timeout(life + Duration::from_secs(30), gateway.gate().idle())
        .await
        .expect("each ends")
        .expect("whole");
    let (_settled, outcomes) = gateway.ended().await;
    let count = |event| gateway.metric(&told(event));
    let [held, settled, expired, late] = ["held", "settled", "expired", "late"].map(count);
    println!("held {held}, settled {settled}, expired {expired}, told late {late}; the gap {}", gateway.metric(untold));
    assert_eq!(held, settled + expired, "each ended once");
    assert_eq!(gateway.metric(untold), expired - late, "the gap");
    assert!(expired - late > 0.0, "some are told of never");
    let number = |outcome: &str| outcomes.get(outcome).copied().unwrap_or(0);
    #[expect(clippy::cast_precision_loss, reason = "a handful")]
    let (completed, lost) = (number("completed") as f64, number("lost") as f64);
    assert_eq!((completed, lost), (settled, expired));
    let id = long.header("x-tallygate-decision");
    let of_the_long = gateway.admin().await.get(&format!("/v1/decisions/{id}"), "").await.json();
    let survives = if life > silent { "completed" } else { "lost" };
    assert_eq!(of_the_long["outcome"], survives, "a life that is longer than the silence bridges it");
}

/// A window that leases of requests long gone do not fill.
const ROOMY: &str = "pools: [{name: chat, models: ['*'], window: {requests: 100000}}]";

#[tokio::test]
async fn while_the_access_log_is_dead_leases_expire_and_the_gap_is_seen() {
    outage(Setup { lease_life: Span::from_millis(500), ..Setup::policy(ROOMY) }, Duration::from_secs(1)).await;
}

#[tokio::test]
async fn an_access_log_that_is_dead_for_ten_seconds_costs_what_ended_meanwhile_and_no_more() {
    if std::env::var_os("TALLYGATE_FULL").is_none() {
        eprintln!(
            "SKIPPED: ten seconds of silence, and a minute until it is noticed, are waited for with TALLYGATE_FULL=1"
        );
        return;
    }
    outage(Setup { lease_life: Settings::LEASE_LIFE, ..Setup::policy(ROOMY) }, Duration::from_secs(10)).await;
}
