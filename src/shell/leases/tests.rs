//! Leases over the real core, with time standing still except where it is moved.

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::super::gate::tests::ask;
use super::super::{Gate, Patience};
use super::{LeaseId, Leases, Most, NotLive};
use crate::admission::{Ending, Outcome, Reported};
use crate::ledger::Balance;
use crate::observe::{Decisions, Gauges, Keep, Lessor, Metrics};
use crate::policy;
use crate::units::{Bytes, Span, Tokens, Usage, VirtualTokens};

const LIFE: Span = Span::from_secs(60);
/// Few, so that they are met.
const MOST: Most = Most { live: 20, ended: 30 };
/// What a request of these tests holds: 100 in, and 50 out, which count twice.
const HELD: u64 = 200;

fn set(pool: &str) -> (Gate, Leases) {
    let text = format!("version: 1\npools: [{{name: chat, models: [\"*\"]{pool}}}]\n");
    let policy = Arc::new(policy::parse("test", &text, |file| panic!("no {file}")).expect("a valid policy"));
    let metrics = Metrics::new(policy.clone()).expect("valid metrics");
    let decisions = Decisions::new(Keep { most: 100, bytes: Bytes::new(1_000_000) });
    let gate = Gate::start(policy, metrics, decisions, 1, 7);
    let leases = Leases::bounded(&gate, LIFE, StdRng::seed_from_u64(1), MOST);
    (gate, leases)
}

async fn hold(gate: &Gate, leases: &Leases) -> LeaseId {
    let permit = gate.admit(ask(gate, "a", Patience::default())).await.expect("there is room");
    leases.hold(Lessor::ExtAuthz, permit).expect("there is room")
}

fn books(gate: &Gate) -> Balance {
    gate.look(|seen| seen.ledger.total()).expect("not broken")
}

fn metric(gate: &Gate, name: &str) -> f64 {
    let text = gate.metrics().render(&Gauges::default()).expect("it renders");
    let line = text.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
}

fn told(gate: &Gate, event: &str) -> f64 {
    metric(gate, &format!("tallygate_leases_total{{door=\"ext_authz\",event=\"{event}\"}}"))
}

fn untold(gate: &Gate) -> f64 {
    metric(gate, "tallygate_leases_untold{door=\"ext_authz\"}")
}

fn complete(output: u64) -> Ending {
    let usage = Reported::Final(Usage::plain(Tokens::new(100), Tokens::new(output)));
    Ending { outcome: Outcome::Completed, usage, heard: None }
}

async fn pass(span: Span) {
    tokio::time::advance(span.to_std()).await;
    // The timer has its turn.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_end_is_told_once_and_what_is_told_again_changes_nothing() {
    let (gate, leases) = set("");
    let id = hold(&gate, &leases).await;
    assert_eq!((leases.count(), untold(&gate)), (1, 1.0));
    let charged = leases.settle(Lessor::ExtAuthz, id, |_| complete(7)).expect("it runs");
    assert_eq!(charged, Some(VirtualTokens::whole(114)));
    let before = books(&gate);
    assert_eq!(leases.settle(Lessor::ExtAuthz, id, |_| complete(99)), Err(NotLive::Settled));
    assert_eq!(leases.renew(Lessor::ExtAuthz, id), Err(NotLive::Settled));
    assert_eq!(books(&gate), before);
    assert_eq!((told(&gate, "settled"), told(&gate, "again"), told(&gate, "stale")), (1.0, 1.0, 1.0));
    assert_eq!((leases.count(), untold(&gate), before.live()), (0, 0.0, VirtualTokens::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_nobody_speaks_of_is_lost_at_its_end_and_not_before() {
    let (gate, leases) = set(", window: {requests: 1}");
    let id = hold(&gate, &leases).await;
    pass(LIFE.saturating_sub(Span::from_millis(1))).await;
    assert_eq!((leases.count(), books(&gate).live()), (1, VirtualTokens::whole(HELD)));
    pass(Span::from_millis(1)).await;
    assert_eq!(leases.count(), 0);
    let closed = books(&gate);
    // The prediction stands, and the room is free.
    assert_eq!((closed.settled, closed.live()), (VirtualTokens::whole(HELD), VirtualTokens::ZERO));
    assert_eq!(closed.reserved, closed.settled + closed.refunded);
    hold(&gate, &leases).await;
    assert_eq!(untold(&gate), 2.0);
    // What comes late is counted once, and changes nothing.
    let before = books(&gate);
    assert_eq!(leases.renew(Lessor::ExtAuthz, id), Err(NotLive::Expired));
    assert_eq!(untold(&gate), 2.0, "a sign of life is no end");
    assert_eq!(leases.settle(Lessor::ExtAuthz, id, |_| complete(7)), Err(NotLive::Expired));
    assert_eq!(leases.settle(Lessor::ExtAuthz, id, |_| complete(7)), Err(NotLive::Settled));
    assert_eq!((told(&gate, "late"), told(&gate, "again"), untold(&gate)), (1.0, 1.0, 1.0));
    assert_eq!(books(&gate), before);
}

#[tokio::test(start_paused = true)]
async fn signs_of_life_keep_a_lease_for_a_life_each() {
    let (gate, leases) = set("");
    let (id, other) = (hold(&gate, &leases).await, hold(&gate, &leases).await);
    for second in 1..=10u64 {
        pass(Span::from_secs(50)).await;
        match second % 3 {
            0 => leases.renew(Lessor::ExtAuthz, id).expect("it runs"),
            1 => leases.progress(Lessor::ExtAuthz, id, Tokens::new(second)).expect("it runs"),
            _ => leases.began(Lessor::ExtAuthz, id, gate.clock().now()).expect("it runs"),
        }
    }
    assert_eq!(leases.settle(Lessor::ExtAuthz, other, |_| complete(1)), Err(NotLive::Expired));
    assert_eq!(leases.count(), 1);
    leases.settle(Lessor::ExtAuthz, id, |_| complete(1)).expect("it runs");
}

#[tokio::test(start_paused = true)]
async fn closing_settles_all_that_run_as_lost() {
    let (gate, leases) = set("");
    for _ in 0..3 {
        hold(&gate, &leases).await;
    }
    leases.close();
    let Balance { reserved, settled, refunded } = books(&gate);
    assert_eq!((reserved, settled, refunded), (settled, VirtualTokens::whole(3 * HELD), VirtualTokens::ZERO));
    assert_eq!((told(&gate, "expired"), leases.count()), (3.0, 0));
}

#[tokio::test(start_paused = true)]
async fn leases_nobody_refers_to_any_more_cost_what_was_sent() {
    let (gate, leases) = set("");
    hold(&gate, &leases).await;
    drop(leases);
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    // Dropped without a word: somebody left, and pays for the input.
    assert_eq!((books(&gate).settled, books(&gate).live()), (VirtualTokens::whole(100), VirtualTokens::ZERO));
}

#[tokio::test(start_paused = true)]
async fn what_ended_is_remembered_within_bounds() {
    let (gate, leases) = set("");
    let first = hold(&gate, &leases).await;
    leases.settle(Lessor::ExtAuthz, first, |_| complete(1)).expect("it runs");
    assert_eq!(leases.renew(Lessor::ExtAuthz, first), Err(NotLive::Settled));
    for _ in 0..MOST.ended {
        let id = hold(&gate, &leases).await;
        leases.settle(Lessor::ExtAuthz, id, |_| complete(1)).expect("it runs");
    }
    assert_eq!(leases.renew(Lessor::ExtAuthz, first), Err(NotLive::Unknown));
    let table = leases.lock();
    assert_eq!((table.ended.len(), table.order.len(), table.live.len()), (MOST.ended, MOST.ended, 0));
    assert!(table.ends.is_empty());
}

#[tokio::test(start_paused = true)]
async fn no_room_refuses_and_holds_nothing() {
    let (gate, leases) = set("");
    for _ in 0..MOST.live {
        hold(&gate, &leases).await;
    }
    let permit = gate.admit(ask(&gate, "a", Patience::default())).await.expect("there is room");
    let before = books(&gate);
    assert_eq!(leases.hold(Lessor::ExtAuthz, permit), Err(super::Full));
    assert_eq!((books(&gate).settled, told(&gate, "full")), (before.settled, 1.0));
    assert_eq!(leases.count(), MOST.live);
}

#[test]
fn an_id_reads_back_and_nothing_else_does() {
    let id = LeaseId(0x00ff_0000_0000_0000_0000_0000_0000_0001);
    assert_eq!(id.to_string(), "00ff0000000000000000000000000001");
    assert_eq!(id.to_string().parse(), Ok(id));
    for bad in ["", "1", "+0ff0000000000000000000000000001", "00ff000000000000000000000000000g", &"0".repeat(33)] {
        assert!(bad.parse::<LeaseId>().is_err(), "{bad}");
    }
}

/// Whatever is done in whatever order: every lease ends once, and the books balance.
#[tokio::test(start_paused = true)]
async fn any_order_of_reports_conserves() {
    for seed in 0..40 {
        let mut rng = StdRng::seed_from_u64(seed);
        let (gate, leases) = set(", window: {requests: 4}");
        let mut ids: Vec<LeaseId> = Vec::new();
        for _ in 0..200 {
            match rng.random_range(0..8) {
                0..3 if leases.count() < 4 => ids.push(hold(&gate, &leases).await),
                3 => pass(Span::from_secs(rng.random_range(0..70))).await,
                which if !ids.is_empty() => {
                    let id = ids[rng.random_range(0..ids.len())];
                    // Reports on what ended change nothing; the audit below would tell.
                    let _reported = match which {
                        4 => leases.renew(Lessor::ExtAuthz, id),
                        5 => leases.progress(Lessor::ExtAuthz, id, Tokens::new(rng.random_range(0..100))),
                        6 => leases.began(Lessor::ExtAuthz, id, gate.clock().now()),
                        _ => {
                            let outcome = Outcome::ALL[rng.random_range(0..Outcome::ALL.len())];
                            let ending = Ending { outcome, ..complete(rng.random_range(0..100)) };
                            leases.settle(Lessor::ExtAuthz, id, |_| ending).map(|_| ())
                        }
                    };
                }
                _ => {}
            }
            let (live, in_flight) = (leases.count(), gate.look(|seen| seen.engine.requests().len()));
            assert_eq!(in_flight, Ok(live), "seed {seed}");
        }
        leases.close();
        let Balance { reserved, settled, refunded } = books(&gate);
        assert_eq!(reserved, settled + refunded, "seed {seed}");
        let counted = |event| told(&gate, event);
        assert_eq!(counted("held"), counted("settled") + counted("expired"), "seed {seed}");
        assert_eq!(untold(&gate), counted("expired") - counted("late"), "seed {seed}");
    }
}
