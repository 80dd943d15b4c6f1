//! The API as its callers use it, over the real core.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::task::Poll;

use rand::SeedableRng;
use rand::rngs::StdRng;
use tonic::{Code, Request};

use super::v1::acquire_request::What;
use super::v1::admission_server::Admission as _;
use super::{Acquire, v1};
use crate::observe::{Decisions, Keep, Metrics};
use crate::policy;
use crate::settings::Door;
use crate::shell::{Gate, Leases};
use crate::units::{Bytes, Span, Tokens, VirtualTokens};

const ONE: &str =
    "version: 1\npools: [{name: chat, models: ['big'], aliases: [{from: 'small*', to: big}], window: {requests: 1}}]";
const LIFE: Span = Span::from_secs(60);

fn door(policy: &str) -> Acquire {
    let policy = Arc::new(policy::parse("test", policy, |file| panic!("no {file}")).expect("a valid policy"));
    let metrics = Metrics::new(policy.clone()).expect("valid metrics");
    let decisions = Decisions::new(Keep { most: 100, bytes: Bytes::new(1_000_000) });
    let gate = Gate::start(policy, metrics, decisions, 1, 7);
    let leases = Leases::start(&gate, LIFE, StdRng::seed_from_u64(1));
    Acquire::new(gate, leases, Door::default(), Ipv4Addr::LOCALHOST.into())
}

fn estimate(model: &str) -> v1::AcquireRequest {
    let model = model.to_owned();
    let estimate = v1::Estimate { model, input_tokens: 100, max_output_tokens: 50, choices: 0, streamed: true };
    v1::AcquireRequest { what: Some(What::Estimate(estimate)) }
}

fn http(path: &str, body: &str) -> v1::AcquireRequest {
    let http = v1::HttpRequest { path: path.into(), body: body.into(), method: String::new() };
    v1::AcquireRequest { what: Some(What::Http(http)) }
}

async fn acquired(door: &Acquire, asked: v1::AcquireRequest) -> v1::AcquireResponse {
    door.acquire(Request::new(asked)).await.expect("there is room").into_inner()
}

fn requests(gate: &Gate) -> usize {
    gate.look(|seen| seen.engine.requests().len()).expect("not broken")
}

fn settling(lease: &str, outcome: v1::Outcome) -> v1::SettleRequest {
    v1::SettleRequest { lease: lease.to_owned(), outcome: outcome.into(), ..Default::default() }
}

fn used(lease: &str, input_tokens: u64, output_tokens: u64) -> v1::SettleRequest {
    let usage = v1::Usage { input_tokens, output_tokens, ..Default::default() };
    v1::SettleRequest { usage: Some(usage), ..settling(lease, v1::Outcome::Completed) }
}

async fn settled(door: &Acquire, told: v1::SettleRequest) -> (v1::LeaseState, f64) {
    let answer = door.settle(Request::new(told)).await.expect("it can be read").into_inner();
    (answer.state(), answer.charged)
}

#[tokio::test(start_paused = true)]
async fn a_request_is_let_through_told_of_and_settled_once() {
    let door = door(ONE);
    let admitted = acquired(&door, estimate("small-1")).await;
    assert_eq!((admitted.model.as_str(), admitted.pool.as_str()), ("big", "chat"));
    assert_eq!((admitted.lease.len(), admitted.lease_life_ms, admitted.waited_ms), (32, 60_000, 0));
    assert!(admitted.decision.contains('-'));
    let lease = admitted.lease;
    let progress = v1::ProgressRequest { lease: lease.clone(), output_tokens: 7 };
    let state = door.progress(Request::new(progress)).await.expect("readable").into_inner().state();
    assert_eq!(state, v1::LeaseState::Running);
    assert_eq!(settled(&door, used(&lease, 100, 10)).await, (v1::LeaseState::Running, 120.0));
    assert_eq!(settled(&door, used(&lease, 100, 99)).await, (v1::LeaseState::Settled, 0.0));
    let books = door.gate.look(|seen| seen.ledger.total()).expect("not broken");
    assert_eq!((books.settled, books.live()), (VirtualTokens::whole(120), VirtualTokens::ZERO));
}

#[tokio::test(start_paused = true)]
async fn each_ending_is_charged_as_the_flow_of_money_says() {
    let door = door(ONE);
    for (told, charged) in [
        (v1::Outcome::NotSent, 0.0),
        (v1::Outcome::UpstreamFailed, 0.0),
        (v1::Outcome::Aborted, 100.0),
        (v1::Outcome::TimedOut, 100.0),
        // Nothing is told of usage, so the prediction stands.
        (v1::Outcome::Completed, 200.0),
    ] {
        let lease = acquired(&door, estimate("big")).await.lease;
        assert_eq!(settled(&door, settling(&lease, told)).await, (v1::LeaseState::Running, charged), "{told:?}");
    }
    let lease = acquired(&door, estimate("big")).await.lease;
    let cannot_be = v1::Usage { input_tokens: 5, cached_input_tokens: 6, output_tokens: 1, ..Default::default() };
    let told = v1::SettleRequest { usage: Some(cannot_be), ..settling(&lease, v1::Outcome::Completed) };
    assert!(settled(&door, told).await.1 > 100.0, "as predicted");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_not_renewed_is_lost_and_its_holder_learns_it() {
    let door = door(ONE);
    let lease = acquired(&door, estimate("big")).await.lease;
    let renew = || async {
        let request = v1::RenewRequest { lease: lease.clone() };
        door.renew(Request::new(request)).await.expect("readable").into_inner().state()
    };
    for _ in 0..3 {
        tokio::time::advance(std::time::Duration::from_secs(50)).await;
        assert_eq!(renew().await, v1::LeaseState::Running);
    }
    // Somebody waits meanwhile, and is let in once the first is lost.
    tokio::time::advance(std::time::Duration::from_secs(40)).await;
    let next = acquired(&door, estimate("big")).await;
    assert_eq!(next.waited_ms, 20_000);
    assert_eq!(renew().await, v1::LeaseState::Expired);
    assert_eq!(settled(&door, used(&lease, 1, 1)).await, (v1::LeaseState::Expired, 0.0));
    assert_eq!(settled(&door, used(&next.lease, 100, 1)).await, (v1::LeaseState::Running, 102.0));
    assert_eq!(settled(&door, used(&"0".repeat(32), 1, 1)).await.0, v1::LeaseState::Unknown);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_cancelled_leaves_the_queue() {
    let door = door(ONE);
    acquired(&door, estimate("big")).await;
    {
        let waiting = door.acquire(Request::new(estimate("big")));
        tokio::pin!(waiting);
        assert!(std::future::poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context))).await.is_pending());
        assert_eq!(requests(&door.gate), 2);
    }
    assert_eq!((requests(&door.gate), door.leases.count()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_deadline_is_told_before_it_passes() {
    let door = door(ONE);
    let running = acquired(&door, estimate("big")).await.lease.parse().expect("a lease");
    for (timeout, waits_ms) in [("500m", 450), ("20S", 19_900), ("1H", 30_000)] {
        let mut request = Request::new(estimate("big"));
        request.metadata_mut().insert("grpc-timeout", timeout.parse().expect("ASCII"));
        door.leases.renew(crate::observe::Lessor::Grpc, running).expect("it runs");
        let began = door.gate.clock().now();
        let status = door.acquire(request).await.expect_err("nothing is free");
        let reason = status.metadata().get("x-tallygate-reason").and_then(|value| value.to_str().ok());
        assert_eq!((status.code(), reason), (Code::ResourceExhausted, Some("expired")));
        assert_eq!(door.gate.clock().now().since(began), Span::from_millis(waits_ms), "{timeout}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_is_read_as_at_every_door_and_comes_back_as_the_upstream_is_to_see_it() {
    let door = door(ONE);
    let body = r#"{"model":"small","stream":true,"messages":[{"role":"user","content":"hello"}]}"#;
    let admitted = acquired(&door, http("/v1/chat/completions?x=1", body)).await;
    let sent = String::from_utf8(admitted.body).expect("text");
    assert!(sent.contains("\"big\"") && sent.contains("include_usage"), "{sent}");
    settled(&door, used(&admitted.lease, 8, 1)).await;
    let untouched = body.replace("small", "big").replace("\"stream\":true,", "");
    let admitted = acquired(&door, http("/v1/chat/completions", &untouched)).await;
    assert!(admitted.body.is_empty(), "it goes on as it came");
    settled(&door, used(&admitted.lease, 8, 1)).await;
    let free = acquired(&door, http("/v1/messages/count_tokens", r#"{"model":"big"}"#)).await;
    assert_eq!((free.lease.as_str(), free.decision.is_empty()), ("", false));
}

#[tokio::test(start_paused = true)]
async fn what_makes_no_sense_is_refused_by_name() {
    let door = door(ONE);
    let method = v1::HttpRequest { method: "P ST".into(), path: "/".into(), body: Vec::new() };
    let many = v1::Estimate { model: "big".into(), choices: 129, ..Default::default() };
    for (asked, code, words) in [
        (v1::AcquireRequest::default(), Code::InvalidArgument, "set http or estimate"),
        (http("v1/chat", "{}"), Code::InvalidArgument, "begin with a slash"),
        (http("/v1/chat/completions", ""), Code::InvalidArgument, "the body is missing"),
        (v1::AcquireRequest { what: Some(What::Http(method)) }, Code::InvalidArgument, "no method"),
        (v1::AcquireRequest { what: Some(What::Estimate(many)) }, Code::InvalidArgument, "at most 128"),
        (estimate(""), Code::InvalidArgument, "estimate.model is missing"),
        (estimate("other"), Code::NotFound, "\"other\""),
    ] {
        let status = door.acquire(Request::new(asked)).await.expect_err("refused");
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(words), "{status}");
    }
    for (told, words) in [
        (settling("x", v1::Outcome::Completed), "32 hexadecimal digits"),
        (settling(&"0".repeat(32), v1::Outcome::Unspecified), "outcome"),
        (v1::SettleRequest { outcome: 77, ..settling(&"0".repeat(32), v1::Outcome::Completed) }, "outcome"),
        (
            v1::SettleRequest { upstream_status: 1_000, ..settling(&"0".repeat(32), v1::Outcome::Completed) },
            "upstream_status",
        ),
    ] {
        let status = door.settle(Request::new(told)).await.expect_err("refused");
        assert!(status.code() == Code::InvalidArgument && status.message().contains(words), "{status}");
    }
    assert_eq!((requests(&door.gate), door.leases.count()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn an_estimate_is_held_to_its_cap() {
    let door = door(ONE);
    acquired(&door, estimate("big")).await;
    let expected = door.gate.look(|seen| seen.engine.requests()[0].expected).expect("not broken");
    assert_eq!((expected.input(), expected.output()), (Tokens::new(100), Tokens::new(50)));
}
