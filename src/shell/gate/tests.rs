//! The gate over the real core, with time standing still except where it is moved.

use std::future::Future;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::Poll;

use super::{Ask, Denied, Gate};
use crate::admission::{Ending, Outcome, Reason, Reported};
use crate::costing::{Call, Counted, Effort, Prompt};
use crate::ledger::Balance;
use crate::observe::{Decisions, Gauges, Keep, Metrics};
use crate::policy;
use crate::policy::model::Caller;
use crate::shell::{Patience, Sight};
use crate::shell::{Permit, drain};
use crate::units::{Agent, Bytes, Instant, Limit, Span, TenantId, Tokens, Usage, VirtualTokens};

fn gate(pool: &str) -> Gate {
    let text = format!("version: 1\npools: [{{name: chat, models: [\"*\"], window: {{requests: 1}}{pool}}}]\n");
    let policy = Arc::new(policy::parse("test", &text, |file| panic!("no {file}")).expect("a valid policy"));
    let metrics = Metrics::new(policy.clone()).expect("valid metrics");
    let decisions = Decisions::new(Keep { most: 100, bytes: Bytes::new(1_000_000) });
    Gate::start(policy, metrics, decisions, 1, 7)
}

pub(in crate::shell) fn ask(gate: &Gate, tenant: &str, patience: Patience) -> Ask {
    let call = Call {
        model: "m".into(),
        prompt: Prompt::default(),
        cap: Limit::AtMost(Tokens::new(50)),
        least: Tokens::ZERO,
        choices: NonZeroU32::MIN,
        effort: Effort::Unstated,
        streamed: true,
        bytes: Bytes::new(100),
    };
    let tenant = TenantId::from(tenant);
    let selection = gate.policy().select(&tenant, None, "m").expect("every model is served");
    let caller = Caller { tenant, session: None, agent: Agent::Lead, user: None, task: None, wished_class: None };
    let (decision, arrived) = (gate.decision(), gate.clock().now());
    let input = Counted::exactly(Tokens::new(100));
    Ask { decision, dialect: "test", arrived, call, input, caller, selection, patience, sight: Sight::Passing }
}

async fn admit(gate: &Gate, tenant: &str) -> Permit {
    gate.admit(ask(gate, tenant, Patience::default())).await.expect("there is room")
}

fn books(gate: &Gate) -> Balance {
    gate.look(|seen| seen.ledger.total()).expect("not broken")
}

fn queued(gate: &Gate) -> u32 {
    gate.look(|seen| seen.engine.queues().iter().map(|queue| queue.requests).sum()).expect("not broken")
}

fn in_flight(gate: &Gate) -> u32 {
    gate.look(|seen| seen.engine.pools().iter().map(|pool| pool.in_flight_requests).sum()).expect("not broken")
}

fn cost(usage: Usage) -> VirtualTokens {
    VirtualTokens::whole(usage.input().get() + 2 * usage.output().get())
}

fn usage(input: u64, output: u64) -> Usage {
    Usage::plain(Tokens::new(input), Tokens::new(output))
}

/// Polls a future once.
async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::future::poll_fn(|context| Poll::Ready(std::pin::Pin::new(&mut *future).poll(context))).await
}

#[tokio::test(start_paused = true)]
async fn a_settled_permit_makes_room_for_the_next() {
    let gate = gate("");
    let first = admit(&gate, "a").await;
    let mut second = Box::pin(gate.admit(ask(&gate, "b", Patience::default())));
    assert!(poll_once(&mut second).await.is_pending());
    assert_eq!((queued(&gate), in_flight(&gate)), (1, 1));
    first.settle(Ending { outcome: Outcome::Completed, usage: Reported::Final(usage(100, 7)), heard: None });
    let second = second.await.expect("its turn");
    assert_eq!((queued(&gate), in_flight(&gate)), (0, 1));
    second.settle(Ending { outcome: Outcome::Completed, usage: Reported::Final(usage(90, 3)), heard: None });
    let books = books(&gate);
    assert_eq!(books.settled, cost(usage(100, 7)) + cost(usage(90, 3)));
    assert_eq!(books.live(), VirtualTokens::ZERO);
}

#[tokio::test(start_paused = true)]
async fn what_was_not_sent_costs_nothing_however_it_ends() {
    let gate = gate("");
    for outcome in [Outcome::TimedOut, Outcome::UpstreamFailed, Outcome::ClientAborted] {
        let permit = admit(&gate, "a").await;
        tokio::time::advance(std::time::Duration::from_secs(600)).await;
        permit.settle(Ending { outcome, usage: Reported::Nothing, heard: None });
        assert_eq!((books(&gate).settled, books(&gate).live()), (VirtualTokens::ZERO, VirtualTokens::ZERO));
    }
}

#[tokio::test(start_paused = true)]
async fn leaving_the_queue_costs_nothing_and_takes_no_place() {
    let gate = gate("");
    let running = admit(&gate, "a").await;
    let mut waiting = Box::pin(gate.admit(ask(&gate, "b", Patience::default())));
    assert!(poll_once(&mut waiting).await.is_pending());
    drop(waiting);
    assert_eq!(queued(&gate), 0, "at once");
    drop(running);
    assert_eq!(in_flight(&gate), 0);
    assert_eq!(books(&gate).live(), VirtualTokens::ZERO);
}

#[tokio::test(start_paused = true)]
async fn leaving_between_the_verdict_and_hearing_it_leaks_nothing() {
    let gate = gate("");
    let running = admit(&gate, "a").await;
    let mut waiting = Box::pin(gate.admit(ask(&gate, "b", Patience::default())));
    assert!(poll_once(&mut waiting).await.is_pending());
    drop(running);
    assert_eq!(in_flight(&gate), 1, "let through, and not yet told");
    drop(waiting);
    assert_eq!(in_flight(&gate), 0);
    assert_eq!(books(&gate).settled, VirtualTokens::ZERO, "nothing was sent for it");
    assert_eq!(books(&gate).live(), VirtualTokens::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_permit_pays_for_what_was_produced() {
    let gate = gate("");
    let mut permit = admit(&gate, "a").await;
    permit.sent();
    permit.began();
    permit.progress(Tokens::new(20));
    permit.progress(Tokens::new(5));
    drop(permit);
    assert_eq!(books(&gate).settled, cost(usage(100, 20)));
    let mut permit = admit(&gate, "a").await;
    permit.sent();
    drop(permit);
    assert_eq!(books(&gate).settled, cost(usage(100, 20)) + cost(usage(100, 0)), "input was processed");
    assert_eq!(books(&gate).live(), VirtualTokens::ZERO);
}

#[tokio::test(start_paused = true)]
async fn the_timer_refuses_what_waited_too_long() {
    let gate = gate("");
    let _running = admit(&gate, "a").await;
    let patience =
        Patience { dispatch: Some(Span::from_millis(300)), answer: Some(Span::from_secs(60)), ..Patience::default() };
    let before = gate.clock().now();
    let Err(Denied::Refused(refusal)) = gate.admit(ask(&gate, "b", patience)).await else { panic!("no room") };
    assert!(matches!(refusal.reason, Reason::Expired { .. }), "{refusal:?}");
    let waited = gate.clock().now().since(before);
    assert!(waited >= Span::from_millis(300) && waited < Span::from_millis(310), "{waited}");
    // A later deadline behind an earlier one is kept too.
    let sooner = Patience { dispatch: Some(Span::from_millis(50)), ..Patience::default() };
    let later = gate.admit(ask(&gate, "b", patience));
    let sooner = gate.admit(ask(&gate, "c", sooner));
    let (later, sooner) = tokio::join!(later, sooner);
    assert!(matches!((later, sooner), (Err(Denied::Refused(_)), Err(Denied::Refused(_)))));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_hangs_up_soon_is_dispatched_in_time_or_refused() {
    let gate = gate("");
    let mut permit = admit(&gate, "a").await;
    permit.sent();
    tokio::time::advance(std::time::Duration::from_secs(2)).await;
    permit.began();
    // First bytes take two seconds, so a client that waits three must be dispatched within one.
    let patience = Patience { answer: Some(Span::from_secs(3)), ..Patience::default() };
    let before = gate.clock().now();
    let Err(Denied::Refused(refusal)) = gate.admit(ask(&gate, "b", patience)).await else { panic!("no room") };
    assert!(matches!(refusal.reason, Reason::Expired { .. }), "{refusal:?}");
    let waited = gate.clock().now().since(before);
    assert!(waited >= Span::from_secs(1) && waited < Span::from_millis(1_010), "{waited}");
}

#[tokio::test(start_paused = true)]
async fn draining_serves_the_queue_and_refuses_newcomers() {
    let gate = gate("");
    let running = admit(&gate, "a").await;
    let mut waiting = Box::pin(gate.admit(ask(&gate, "b", Patience::default())));
    assert!(poll_once(&mut waiting).await.is_pending());
    let mut draining = Box::pin(drain(&gate, Span::from_secs(3_600)));
    assert!(poll_once(&mut draining).await.is_pending());
    assert!(gate.look(|seen| seen.draining).expect("not broken"));
    let newcomer = gate.admit(ask(&gate, "c", Patience::default())).await;
    assert!(matches!(newcomer, Err(Denied::Refused(refusal)) if refusal.reason == Reason::Draining));
    drop(running);
    drop(waiting.await.expect("served on"));
    assert_eq!(draining.await, Ok(()), "idle, long before its grace is over");
}

#[tokio::test(start_paused = true)]
async fn what_outlasts_the_grace_is_refused() {
    let gate = gate("");
    let _running = admit(&gate, "a").await;
    let waiting = gate.admit(ask(&gate, "b", Patience::default()));
    let (waiting, drained) = tokio::join!(waiting, drain(&gate, Span::from_secs(5)));
    assert!(matches!(waiting, Err(Denied::Refused(refusal)) if refusal.reason == Reason::Draining));
    assert_eq!(drained, Ok(()));
    let lasted = gate.clock().now().since(Instant::EPOCH);
    assert!(lasted >= Span::from_secs(5) && lasted < Span::from_millis(5_010), "{lasted}");
}

#[tokio::test(start_paused = true)]
async fn a_core_that_panicked_lets_nothing_through() {
    let gate = gate("");
    let permit = admit(&gate, "a").await;
    let waiting = gate.admit(ask(&gate, "b", Patience::default()));
    let breaking = async {
        let shared = gate.clone();
        let fault = tokio::task::spawn_blocking(move || shared.look(|_| panic!("on purpose")).unwrap_or(()));
        assert!(fault.await.is_err());
    };
    breaking.await;
    assert!(matches!(waiting.await, Err(Denied::Broken)));
    assert!(matches!(gate.admit(ask(&gate, "c", Patience::default())).await, Err(Denied::Broken)));
    drop(permit);
    assert!(gate.look(|_| ()).is_err() && gate.idle().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn predictions_learn_from_complete_answers_only() {
    let gate = gate("");
    let expected = |permit: &Permit| permit.expected().output();
    let permit = admit(&gate, "a").await;
    assert_eq!(expected(&permit), Tokens::new(50), "capped");
    permit.settle(Ending { outcome: Outcome::Completed, usage: Reported::Nothing, heard: None });
    let permit = admit(&gate, "a").await;
    assert_eq!(expected(&permit), Tokens::new(50), "an estimate teaches nothing");
    permit.settle(Ending { outcome: Outcome::ClientAborted, usage: Reported::Final(usage(100, 1)), heard: None });
    for _ in 0..200 {
        let permit = admit(&gate, "a").await;
        permit.settle(Ending { outcome: Outcome::Completed, usage: Reported::Final(usage(100, 5)), heard: None });
    }
    assert!(expected(&admit(&gate, "a").await) < Tokens::new(10));
}

#[tokio::test(start_paused = true)]
async fn metrics_fold_the_tenants_beyond_the_most() {
    let gate = gate("");
    for number in 0..Metrics::MOST_TENANTS + 5 {
        drop(admit(&gate, &format!("tenant-{number}")).await);
    }
    let text = gate.metrics().render(&Gauges::default()).expect("it renders");
    let admitted: Vec<&str> = text.lines().filter(|line| line.starts_with("tallygate_admitted_total{")).collect();
    assert_eq!(admitted.len(), Metrics::MOST_TENANTS + 1);
    assert!(admitted.iter().any(|line| line.contains("tenant=\"other\"") && line.ends_with(" 5")));
}
