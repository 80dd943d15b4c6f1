//! What is explained is what is then decided, and explaining changes nothing.

use proptest::prelude::*;

use super::audit::{any_policy, apply, asked, cases, op};
use super::world::{Ask, World, class, of, policy, vt};
use crate::admission::pool::Slots;
use crate::admission::{
    Event, Explanation, Fill, Gate, Input, Level, Objection, Prospect, Reason, Retry, Unit, Until, Wait,
};
use crate::policy::Policy;
use crate::policy::model::{Fanout, QueueCap};
use crate::units::{Instant, Limit, PoolIndex, RequestId, Span, Tokens};

const POOL: PoolIndex = PoolIndex::new(0);

fn explain(world: &World, ask: &Ask) -> Explanation {
    world.engine.explain(world.now, &world.request(POOL, ask))
}

/// Whether what the core did with a newcomer is what was explained.
fn agrees(explained: &Explanation, policy: &Policy, did: &[Event], request: RequestId) -> Result<(), TestCaseError> {
    let dispatched = did.iter().any(|event| matches!(event, Event::Dispatched { request: id, .. } if *id == request));
    let refused = did.iter().find_map(|event| match event {
        Event::Refused { refusal, .. } if refusal.request == request => Some(refusal),
        _ => None,
    });
    let others_left = u32::try_from(
        did.iter()
            .filter(|event| matches!(event, Event::Refused { refusal, .. } if refusal.request != request))
            .count(),
    );
    let displaces = explained.queue.found.displaces;
    if refused.is_none() {
        prop_assert!(dispatched || !explained.queue.found.at_once, "what goes at once waits for nobody");
    }
    match explained.prospect() {
        // Among those who expire at once, what was ahead is told without the newcomer itself.
        Prospect::Refused(Objection { reason, wait }) => {
            let refusal = refused.map(|refusal| (refusal.reason, refusal.retry));
            let Some((told, retry)) = refusal else {
                // A newcomer with no time may still be let through when its coming changes whose turn it is.
                let expires = matches!(reason, Reason::Expired { .. });
                prop_assert!(dispatched && expires && !is_plain(policy, displaces));
                return Ok(());
            };
            prop_assert_eq!(told, reason);
            prop_assert_eq!(matches!(retry, Retry::Never), wait == Wait::Forever);
            if let (Retry::At(moment), Wait::For(least), false) =
                (retry, wait, matches!(reason, Reason::Expired { .. }))
            {
                prop_assert!(moment >= explained.at + least, "jitter only adds");
            }
        }
        Prospect::Dispatched => prop_assert!(dispatched || displaces > 0),
        Prospect::Queued => {
            prop_assert!(refused.is_none());
            prop_assert!(!dispatched || !is_plain(policy, displaces), "it was not its turn");
        }
    }
    if refused.is_none_or(|refusal| matches!(refusal.reason, Reason::Expired { .. })) {
        prop_assert_eq!(others_left, Ok(displaces), "as many leave as was told");
    }
    Ok(())
}

/// Whether a newcomer cannot change whose turn it is among the others: nobody leaves for it and no class is owed.
fn is_plain(policy: &Policy, displaces: u32) -> bool {
    displaces == 0 && policy.classes.iter().all(|class| class.min_share.millionths() == 0)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_explained_is_what_is_done(
        policy in any_policy(),
        granted in prop::bool::weighted(0.1),
        drain_at in proptest::option::of(0..200usize),
        ops in prop::collection::vec(op(), 1..200),
    ) {
        let slots = if granted { Slots::Granted } else { Slots::Window };
        let mut world = World::with(policy.clone(), slots);
        let mut unasked = World::with(policy.clone(), slots);
        for (number, op) in ops.into_iter().enumerate() {
            if drain_at == Some(number) {
                world.feed(Input::Drain);
                unasked.feed(Input::Drain);
            }
            let explained = asked(&world, &op).map(|ask| explain(&world, &ask));
            let (before, request) = (world.events.len(), RequestId::new(world.asked()));
            apply(&mut world, &op);
            apply(&mut unasked, &op);
            if let Some(explained) = explained {
                agrees(&explained, &policy, &world.events[before..], request)?;
            }
        }
        prop_assert_eq!(world.events, unasked.events, "explaining changes nothing");
    }
}

#[test]
fn every_gate_is_told_also_behind_the_first_that_refuses() {
    let mut policy = policy();
    policy.pools[0].max_request_tokens = Limit::AtMost(Tokens::new(150));
    policy.pools[0].queue.tenant = QueueCap { requests: Limit::AtMost(1), ..QueueCap::default() };
    let mut world = World::new(policy);
    world.ask(&of("a"));
    world.ask(&of("a"));
    world.feed(Input::Drain);
    let explained = explain(&world, &Ask { input: 200, ..of("a") });
    let objections: Vec<_> =
        explained.objections().map(|(gate, objection)| (gate, objection.map(|found| found.reason.code()))).collect();
    let wanted = [
        (Gate::Drain, Some("draining")),
        (Gate::Retries, None),
        (Gate::Breaker, None),
        (Gate::Size, Some("too_large")),
        (Gate::Rates, None),
        (Gate::Budgets, None),
        (Gate::Queue, Some("queue_full")),
        (Gate::Wait, None),
    ];
    assert_eq!(objections, wanted);
    let fill = explained.queue.found.levels[1].fills(explained.queue.found.asked).next();
    assert_eq!(explained.queue.found.levels[1].level, Level::Tenant);
    assert_eq!(fill, Some(Fill { unit: Unit::Requests, cap: 1, queued: 1, asked: 1 }));
    assert_eq!(
        (explained.size.found.input, explained.size.found.most),
        (Tokens::new(200), Limit::AtMost(Tokens::new(150)))
    );
    assert!(matches!(explained.prospect(), Prospect::Refused(Objection { reason: Reason::Draining, .. })));
}

#[test]
fn an_idle_pool_lets_it_go_at_once() {
    let explained = explain(&World::new(policy()), &of("a"));
    assert_eq!(explained.prospect(), Prospect::Dispatched);
    assert!(explained.queue.found.at_once && explained.turn.next && explained.turn.tenant.first);
    assert_eq!((explained.cost, explained.patience), (vt(300), Until::Unlimited));
    assert_eq!(explained.wait.found.predicted, Some(Span::ZERO));
}

/// One class that waits at most a minute, one request of `a` in flight and twenty of `b` waiting, served since a while.
fn busy(fanout: Fanout) -> World {
    let mut policy = policy();
    policy.classes[0].max_wait = Limit::AtMost(Span::from_secs(60));
    policy.fanout = fanout;
    let mut world = World::new(policy);
    world.ask(&of("a"));
    for _ in 0..20 {
        world.ask(&of("b"));
    }
    for _ in 0..12 {
        world.now = world.now + Span::from_millis(500);
        world.serve(1);
    }
    world
}

#[test]
fn the_wait_and_whose_deadline_it_is_are_told() {
    let world = busy(Fanout::default());
    let explained = explain(&world, &Ask { deadline: Some(world.now.as_secs_f64() + 5.0), ..of("b") });
    assert_eq!(explained.patience, Until::Client(world.now + Span::from_secs(5)));
    assert_eq!(explain(&world, &of("b")).patience, Until::Class(world.now + Span::from_secs(60)));
    let wait = explained.wait.found;
    assert_eq!(wait.ahead, vt(8 * 300 + 150), "what b has waiting, and half of itself");
    let rate = wait.rate.expect("known after twelve").as_f64();
    assert!((rate - 500.0).abs() < 1.0, "a request of 300 every 0.6 s: {rate}");
    let predicted = wait.predicted.expect("known").as_secs_f64();
    assert!((predicted - 2550.0 / rate * 9.0 / 8.0).abs() < 0.001, "{predicted}");
    assert_eq!(wait.allowed, Limit::AtMost(Span::from_secs(5)));
    assert_eq!((explained.window.requests, explained.window.fits), (1, false));
    assert!(explained.turn.next, "within a session the earlier deadline goes first");
    assert!(!explain(&world, &of("b")).turn.next && explained.turn.tenant.eligible == 1);
    let newcomer = explain(&world, &of("c"));
    assert_eq!(newcomer.wait.found.ahead, vt(150), "half of itself");
    assert!(!newcomer.turn.next, "equal counters, and b has waited longer");
    assert_eq!(newcomer.turn.tenant.counter, newcomer.turn.tenant.level);
}

#[test]
fn what_its_own_requests_hold_back_is_told() {
    let world = busy(Fanout { per_session: Limit::Unlimited, per_tenant: Limit::AtMost(1) });
    // b has one in flight, which is all it may, and so nobody takes turns with c.
    let of_b = explain(&world, &of("b"));
    assert!(of_b.fanout.waits_for_own && !of_b.turn.next);
    assert_eq!(of_b.fanout.tenant.map(|found| (found.requests, found.cap)), Some((1, 1)));
    let of_c = explain(&world, &of("c"));
    assert!(of_c.turn.next && of_c.turn.tenant.first && !of_c.fanout.waits_for_own);
    assert_eq!(of_c.turn.tenant.eligible, 0);
}

#[test]
fn an_owed_class_goes_first_and_says_what_it_is_owed() {
    let mut policy = policy();
    policy.classes = vec![class("first", 0, 0.0), class("owed", 1, 0.5)];
    let mut world = World::new(policy);
    world.ask(&of("a"));
    world.ask(&Ask { class: 1, ..of("b") });
    for _ in 0..6 {
        world.ask(&of("a"));
    }
    let behind = explain(&world, &Ask { class: 1, ..of("c") });
    assert!(!behind.turn.class_is_due, "nothing was given to others yet");
    world.serve(1);
    let explained = explain(&world, &Ask { class: 1, input: 10, output: 10, ..of("c") });
    assert!(explained.turn.owed > vt(0) && explained.turn.class_is_due, "{explained:?}");
    assert_eq!(explained.turn.min_share.millionths(), 500_000);
}

#[test]
fn time_never_runs_backwards_in_an_explanation() {
    let mut world = World::new(policy());
    world.tick(9.0);
    assert_eq!(world.engine.explain(Instant::EPOCH, &world.request(POOL, &of("a"))).at, world.now);
}
