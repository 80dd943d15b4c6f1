//! What is kept for those who were told to come back, and what it must never keep from others.

use super::world::{Ask, World, of, policy};
use crate::admission::{Attempt, Reason, Retry};
use crate::policy::Policy;
use crate::policy::model::{QueueCap, QueueCaps};
use crate::units::{Agent, Instant, Limit, RequestId, Span, Tokens};

/// Ten seconds in which a tenant's requests are served one at a time, one every half second, and more of them wait: the
/// rate is known, so refusals name a time, and whoever comes has to wait.
fn busy(policy: Policy) -> World {
    let mut world = World::new(policy);
    for _ in 0..6 {
        world.ask(&of("other"));
    }
    for half_second in 1..=20 {
        world.at(f64::from(half_second) / 2.0);
        let flying = world.engine.flights.values().map(|flight| flight.request.id).next().expect("one runs");
        world.complete(flying, 100);
        world.ask(&of("other"));
    }
    world
}

/// When a refused request may come back.
fn due(world: &World, request: RequestId) -> Instant {
    let refusal = world.refusal(request).expect("it was refused");
    let Retry::At(due) = refusal.retry else { panic!("{refusal:?} names no time") };
    due
}

#[test]
fn what_no_queue_could_hold_is_told_no_time_and_keeps_nobody_out() {
    let mut policy = policy();
    let tenant = QueueCap { tokens: Limit::AtMost(Tokens::new(1_600)), ..QueueCap::default() };
    let session = QueueCap { requests: Limit::AtMost(1), ..QueueCap::default() };
    policy.pools[0].queue = QueueCaps { tenant, session, ..QueueCaps::default() };
    let mut world = busy(policy);
    let large = Ask { session: Some("large"), input: 2_900, ..of("acme") };
    let mut refused: Vec<_> = (0..4).map(|_| world.ask(&large)).collect();
    world.at(11.0);
    let small = world.ask(&Ask { session: Some("small"), attempt: Attempt::First, ..of("acme") });
    assert!(world.waits(small), "{:?}", world.refusal(small));
    // One of its session waits, so that now the session's cap refuses it first.
    world.ask(&Ask { session: Some("large"), ..of("acme") });
    refused.push(world.ask(&large));
    for request in refused {
        assert_eq!(world.refusal(request).expect("it never fits").retry, Retry::Unknown);
    }
}

#[test]
fn what_is_kept_for_sub_agents_does_not_take_the_leads_place() {
    let mut policy = policy();
    let session = QueueCap { requests: Limit::AtMost(3), ..QueueCap::default() };
    policy.pools[0].queue = QueueCaps { session, ..QueueCaps::default() };
    let mut world = busy(policy);
    let of_session = |agent| Ask { session: Some("s"), agent, attempt: Attempt::First, ..of("acme") };
    let tree: Vec<_> = (0..12).map(|_| world.ask(&of_session(Agent::Sub))).collect();
    let last = tree[2..].iter().map(|request| due(&world, *request)).max().expect("ten were refused");
    world.now = last;
    let sub = world.ask(&of_session(Agent::Sub));
    let reason = world.refusal(sub).expect("two wait and others were told before").reason;
    assert!(matches!(reason, Reason::QueueFull { cap: 2, .. }), "{reason:?}");
    let lead = world.ask(&of_session(Agent::Lead));
    assert!(world.waits(lead), "{:?}", world.refusal(lead));
    let second = world.ask(&of_session(Agent::Lead));
    assert!(world.refusal(second).is_some(), "one place, not more");
}

#[test]
fn what_is_promised_to_one_tenant_takes_no_place_from_another() {
    let mut policy = policy();
    let class = QueueCap { requests: Limit::AtMost(30), ..QueueCap::default() };
    let session = QueueCap { requests: Limit::AtMost(1), ..QueueCap::default() };
    policy.pools[0].queue = QueueCaps { class, session, ..QueueCaps::default() };
    let mut world = busy(policy);
    let first = |tenant, session| Ask { session, attempt: Attempt::First, ..of(tenant) };
    // One of a hundred waits; nobody of the rest will ever come back.
    for _ in 0..100 {
        world.ask(&first("hog", Some("s")));
    }
    // The other tenant was refused once, for a cap of its own.
    world.ask(&first("good", Some("s")));
    let refused = world.ask(&first("good", Some("s")));
    assert!(world.refusal(refused).is_some());
    let asked: Vec<_> = (0..20).map(|_| world.ask(&first("good", None))).collect();
    let waiting = asked.iter().filter(|request| world.waits(**request)).count();
    assert_eq!(waiting, 20, "seven of thirty places were taken: {:?}", world.refusal(asked[19]));
    let more: Vec<_> = (0..4).map(|_| world.ask(&first("good", None))).collect();
    assert!(due(&world, more[3]).since(world.now) <= Span::from_secs(15), "half a second each for 30 who wait");
}
