//! An upstream that fails and recovers, whose budgets are spent, and who suffers from it.

use proptest::prelude::*;

use super::audit::{Op, any_policy, apply, cases, op};
use super::world::{Ask, World, at, breaker, class, of, policy};
use crate::admission::{BreakerStage, Event, Level, Outcome, Reason, Reported, RequestState, Retry};
use crate::policy::Policy;
use crate::policy::model::{Breaker, QueueCap, UpstreamsWord};
use crate::units::{Limit, RequestId, Span, Status};

/// A window of so many requests, and the breaker of the tests.
fn watched(requests: u32) -> Policy {
    with(requests, breaker())
}

fn with(requests: u32, breaker: Breaker) -> Policy {
    let mut policy = policy();
    policy.pools[0].window.requests = Limit::AtMost(requests);
    policy.pools[0].breaker = Some(breaker);
    policy
}

fn stage(world: &World) -> BreakerStage {
    world.engine.pools()[0].breaker.expect("a breaker is set")
}

fn held_back(world: &World, tenant: &str) -> Option<BreakerStage> {
    let view = &world.engine.pools()[0];
    view.held_back.iter().find(|(name, _)| name.as_str() == tenant).map(|(_, stage)| *stage)
}

/// So many requests of a tenant come and are answered so, one after the other.
fn answered(world: &mut World, tenant: &'static str, times: usize, status: u16) {
    for _ in 0..times {
        let request = world.ask(&of(tenant));
        world.hear(request, status, None);
    }
}

/// Several tenants see failures until the pool is left alone.
fn trip(world: &mut World) {
    for tenant in ["a", "b", "a", "b", "a"] {
        if !matches!(stage(world), BreakerStage::Tripped { .. }) {
            answered(world, tenant, 1, 503);
        }
    }
    assert!(matches!(stage(world), BreakerStage::Tripped { .. }), "{:?}", stage(world));
}

#[test]
fn tenants_that_were_held_back_once_take_no_places_for_ever() {
    for (status, retry_after) in [(429, Some(1.0)), (503, None)] {
        let mut world = World::new(watched(200));
        // So much is in flight that no tenant alone would be whole again.
        let sent: Vec<RequestId> = (0..100).map(|_| world.ask(&of("quiet"))).collect();
        sent.into_iter().for_each(|request| world.hear(request, 200, None));
        let tenants: Vec<&'static str> = (0..200).map(|number| &*format!("t{number}").leak()).collect();
        for (number, tenant) in (0u32..).zip(&tenants) {
            world.at(f64::from(number) * 100.0);
            while held_back(&world, tenant).is_none() {
                let request = world.ask(&of(tenant));
                world.hear(request, status, retry_after);
                assert_eq!(stage(&world), BreakerStage::Serving, "{tenant} alone, {status}");
            }
            // It comes back, and goes.
            world.at(f64::from(number) * 100.0 + 90.0);
            answered(&mut world, tenant, 2, 200);
        }
    }
}

#[test]
fn it_trips_is_probed_and_returns_gradually() {
    let mut world = World::new(watched(20));
    let sent: Vec<RequestId> = (0..16).map(|_| world.ask(&of("c"))).collect();
    for request in sent {
        world.hear(request, 200, None);
    }
    world.at(1.0);
    trip(&mut world);
    assert_eq!(
        (stage(&world), world.engine.next_wakeup()),
        (BreakerStage::Tripped { until: at(21.0) }, Some(at(21.0)))
    );
    let newcomer = world.ask(&of("c"));
    let refusal = world.refusal(newcomer).expect("refused at once");
    assert_eq!(refusal.reason, Reason::BreakerTripped { level: Level::Pool, left: Span::from_secs(20) });
    let Retry::At(told) = refusal.retry else { panic!("a time is told") };
    assert!(told >= at(21.0) && told <= at(26.0), "{told:?}");
    world.tick(21.0);
    assert_eq!(stage(&world), BreakerStage::Probing);
    let probe = world.ask(&of("c"));
    let others: Vec<RequestId> = (0..20).map(|_| world.ask(&of("d"))).collect();
    let sent = |world: &World| others.iter().filter(|id| world.ticket(**id).is_some()).count();
    assert!(world.ticket(probe).is_some());
    assert_eq!(sent(&world), 0, "one probe at a time");
    world.hear(probe, 200, None);
    assert_eq!((stage(&world), sent(&world)), (BreakerStage::Returning { most: 2 }, 2));
    let mut seen = vec![2];
    for (number, request) in others.iter().take(16).enumerate() {
        world.hear(*request, 200, None);
        seen.push(sent(&world) - number - 1);
    }
    assert_eq!(seen[..7], [2, 3, 4, 5, 6, 7, 8], "one more with each success, which doubles it each time round");
    assert_eq!(stage(&world), BreakerStage::Serving, "whole again beyond the sixteen that were in flight before");
}

#[test]
fn a_failed_probe_is_believed_when_a_second_tenants_fails_too() {
    let mut world = World::new(watched(9));
    trip(&mut world);
    world.tick(20.0);
    let [first, second, third] = ["a", "b", "c"].map(|tenant| world.ask(&of(tenant)));
    world.hear(first, 503, None);
    assert_eq!(stage(&world), BreakerStage::Probing, "the next tenant's is tried");
    assert_eq!(held_back(&world, "a"), Some(BreakerStage::Tripped { until: at(40.0) }));
    assert!(world.ticket(second).is_some() && world.waits(third));
    world.at(21.0).hear(second, 503, None);
    assert_eq!(stage(&world), BreakerStage::Tripped { until: at(41.0) });
    assert!(world.waits(third), "it has all the time in the world");
    world.tick(41.0);
    assert!(world.ticket(third).is_some());
    world.hear(third, 200, None);
    assert_eq!(stage(&world), BreakerStage::Returning { most: 2 });
}

#[test]
fn one_tenants_poison_stops_that_tenant_alone_even_as_a_probe() {
    let mut world = World::new(watched(9));
    answered(&mut world, "poison", 5, 500);
    assert_eq!(stage(&world), BreakerStage::Serving);
    assert_eq!(held_back(&world, "poison"), Some(BreakerStage::Tripped { until: at(20.0) }));
    let refused = world.ask(&of("poison"));
    let left = Span::from_secs(20);
    assert_eq!(
        world.refusal(refused).map(|refusal| refusal.reason),
        Some(Reason::BreakerTripped { level: Level::Tenant, left })
    );
    answered(&mut world, "good", 50, 200);
    world.tick(20.0);
    let [probe, next] = [0, 1].map(|_| world.ask(&of("poison")));
    assert!(world.ticket(probe).is_some() && world.waits(next), "its own are tried one by one");
    answered(&mut world, "good", 50, 200);
    world.hear(probe, 500, None);
    assert_eq!(held_back(&world, "poison"), Some(BreakerStage::Tripped { until: at(40.0) }));
    assert_eq!(stage(&world), BreakerStage::Serving);
    // A pool that is probed: the cheapest request is always the poison, and still the others get through.
    trip(&mut world);
    for second in 1..200 {
        world.tick(20.0 + f64::from(second));
        world.ask(&Ask { input: 1, output: 1, ..of("poison") });
        world.ask(&of("good"));
        // Whoever is sent by the answer to another is answered in the next round.
        for view in world.engine.requests() {
            if view.state != RequestState::Queued {
                world.hear(view.request, if view.subject.tenant.as_str() == "poison" { 500 } else { 200 }, None);
            }
        }
    }
    assert_eq!(stage(&world), BreakerStage::Serving);
    let admitted = world.events.iter().filter(|event| {
        matches!(event, Event::Settled { subject, outcome: Outcome::Completed, .. } if subject.tenant.as_str() == "good")
    });
    assert!(admitted.count() > 100 + 170);
}

#[test]
fn bad_requests_and_clients_that_leave_say_nothing() {
    let mut world = World::new(watched(9));
    answered(&mut world, "a", 50, 400);
    answered(&mut world, "b", 50, 404);
    for outcome in [Outcome::ClientAborted, Outcome::Evicted, Outcome::Lost] {
        for tenant in ["a", "b"] {
            for _ in 0..20 {
                let request = world.ask(&of(tenant));
                world.end(request, outcome, Reported::Nothing);
                let request = world.ask(&of(tenant));
                world.hear_ending(request, outcome, Status::new(200), None);
            }
        }
    }
    assert_eq!(stage(&world), BreakerStage::Serving);
    assert!(world.events.iter().all(|event| !matches!(event, Event::Breaker { .. })));
}

#[test]
fn what_else_is_a_failure_is_as_the_rule_says() {
    let ends: [(Outcome, Option<u16>); 3] =
        [(Outcome::TimedOut, None), (Outcome::UpstreamFailed, None), (Outcome::UpstreamFailed, Some(200))];
    for (number, (outcome, status)) in ends.into_iter().enumerate() {
        for counts in [true, false] {
            let signs = if counts { vec![breaker().signs[number]] } else { Vec::new() };
            let mut world = World::new(with(9, Breaker { signs, ..breaker() }));
            for tenant in ["a", "a", "a", "b", "b"] {
                let request = world.ask(&of(tenant));
                match status {
                    Some(status) => world.hear_ending(request, outcome, Status::new(status), None),
                    None => world.end(request, outcome, Reported::Nothing),
                }
            }
            assert_eq!(matches!(stage(&world), BreakerStage::Tripped { .. }), counts, "{outcome:?} {status:?}");
        }
    }
}

#[test]
fn an_upstreams_word_of_a_day_is_taken_where_it_is_accepted() {
    let day = 24.0 * 3_600.0;
    for (accepted, until) in [(UpstreamsWord::Accepted, day), (UpstreamsWord::Ignored, 20.0)] {
        let mut world = World::new(with(9, Breaker { retry_after: accepted, ..breaker() }));
        for (tenant, told) in [("a", None), ("a", Some(day)), ("a", Some(3.0)), ("b", None), ("b", None)] {
            let request = world.ask(&of(tenant));
            world.hear(request, 503, told);
        }
        assert_eq!(stage(&world), BreakerStage::Tripped { until: at(until) });
        let newcomer = world.ask(&of("c"));
        assert!(matches!(world.refusal(newcomer).expect("refused").retry, Retry::At(told) if told >= at(until)));
    }
    // Shorter than the rule's own time is taken too.
    let mut world = World::new(watched(9));
    for tenant in ["a", "a", "a", "b", "b"] {
        let request = world.ask(&of(tenant));
        world.hear(request, 503, Some(2.0));
    }
    assert_eq!(stage(&world), BreakerStage::Tripped { until: at(2.0) });
}

#[test]
fn who_can_outlast_the_trip_waits_and_who_cannot_is_told_at_once() {
    let mut policy = watched(1);
    policy.classes[0].max_wait = Limit::AtMost(Span::from_secs(60));
    let mut world = World::new(policy);
    for tenant in ["a", "b", "c", "d"] {
        answered(&mut world, tenant, 1, 503);
    }
    let running = world.ask(&of("a"));
    let [soon, outlasts] = [20.0, 20.1].map(|deadline| world.ask(&Ask { deadline: Some(deadline), ..of("b") }));
    world.hear(running, 503, None);
    assert_eq!(stage(&world), BreakerStage::Tripped { until: at(20.0) });
    assert_eq!(world.code(soon), Some("breaker_tripped"));
    assert!(world.waits(outlasts));
    world.tick(20.0);
    assert!(world.ticket(outlasts).is_some());
}

#[test]
fn whoever_is_refused_comes_back_one_after_the_other() {
    let mut policy = watched(1);
    policy.classes[0].max_wait = Limit::AtMost(Span::from_secs(60));
    let mut world = World::new(policy);
    for _ in 0..40 {
        world.ask(&of("x"));
    }
    // Three hundred virtual tokens every 0.1 s.
    world.serve(40);
    world.now = world.now + Span::from_millis(100);
    trip(&mut world);
    let until = stage(&world).until().expect("tripped");
    let told: Vec<f64> = (0..100)
        .map(|_| {
            let request = world.ask(&of("y"));
            match world.refusal(request).expect("refused").retry {
                Retry::At(told) => told.since(until).as_secs_f64(),
                other => panic!("{other:?}"),
            }
        })
        .collect();
    let last = told.iter().copied().fold(0.0, f64::max);
    assert!(last > 10.0, "a hundred at ten a second: {last}");
    let early = told.iter().filter(|after| **after < 6.0).count();
    assert!(early < 70, "{early} of a hundred come within six seconds");
}

#[test]
fn a_spent_budget_pauses_its_tenant_and_then_the_pool_and_nobody_is_refused_for_it() {
    let mut world = World::new(watched(4));
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|tenant| world.ask(&of(tenant)));
    let waiting = world.ask(&of("a"));
    world.hear(a, 429, Some(7.0));
    assert_eq!(
        (stage(&world), held_back(&world, "a")),
        (BreakerStage::Serving, Some(BreakerStage::Paused { until: at(7.0) }))
    );
    assert!(world.waits(waiting));
    let other = world.ask(&of("e"));
    assert!(world.ticket(other).is_some(), "the others go on");
    world.at(1.0).hear(b, 429, Some(9.0));
    assert_eq!(stage(&world), BreakerStage::Paused { until: at(10.0) }, "a second tenant's is everybody's");
    let newcomer = world.ask(&of("f"));
    assert!(world.waits(newcomer) && world.waits(waiting));
    let hasty = world.ask(&Ask { deadline: Some(3.0), ..of("f") });
    assert_eq!(world.code(hasty), Some("wait_too_long"));
    assert!(matches!(world.refusal(hasty).expect("refused").retry, Retry::At(told) if told >= at(10.0)));
    world.hear(c, 200, None);
    world.hear(d, 200, None);
    world.tick(10.0);
    assert_eq!(stage(&world), BreakerStage::Returning { most: 1 }, "half of the three that were in flight");
    assert!(world.waits(waiting) != world.waits(newcomer), "one of them");
}

#[test]
fn a_spent_budget_without_a_word_pauses_for_a_second_and_a_probe_that_meets_one_has_found_it_well() {
    let mut world = World::new(watched(4));
    answered(&mut world, "a", 1, 429);
    assert_eq!(held_back(&world, "a"), Some(BreakerStage::Paused { until: at(1.0) }));
    world.tick(2.0);
    trip(&mut world);
    world.tick(22.0);
    let probe = world.ask(&of("c"));
    world.hear(probe, 429, Some(5.0));
    assert_eq!(stage(&world), BreakerStage::Paused { until: at(27.0) });
}

#[test]
fn the_probe_is_the_cheapest_and_its_first_output_is_enough() {
    let mut world = World::new(watched(4));
    for _ in 0..4 {
        world.ask(&of("w"));
    }
    world.serve(4);
    world.at(0.0);
    trip(&mut world);
    world.tick(21.0);
    let first = world.ask(&of("z"));
    world.end(first, Outcome::ClientAborted, Reported::Nothing);
    assert_eq!(stage(&world), BreakerStage::Probing, "a client that leaves says nothing");
    let probe = world.ask(&of("z"));
    let [large, small] = [(900, "x"), (10, "y")].map(|(input, tenant)| world.ask(&Ask { input, ..of(tenant) }));
    world.end(probe, Outcome::ClientAborted, Reported::Nothing);
    assert!(world.ticket(small).is_some() && world.waits(large), "the cheapest of those that wait");
    world.progress(small, 1);
    assert_eq!(stage(&world), BreakerStage::Returning { most: 2 });
    assert!(world.ticket(large).is_some());
    world.complete(small, 20);
    assert_eq!(stage(&world), BreakerStage::Returning { most: 3 }, "its end is a success like any other");
}

#[test]
fn what_was_sent_before_the_return_says_nothing_after_it() {
    let mut world = World::new(watched(9));
    let old: Vec<RequestId> = (0..3).flat_map(|_| ["a", "b"].map(|tenant| world.ask(&of(tenant)))).collect();
    trip(&mut world);
    world.tick(20.0);
    let probe = world.ask(&of("c"));
    world.hear(probe, 200, None);
    for request in old {
        world.hear(request, 503, None);
    }
    assert_eq!(stage(&world), BreakerStage::Returning { most: 2 });
}

#[test]
fn a_pool_without_a_breaker_is_never_held_back() {
    let mut world = World::new(policy());
    answered(&mut world, "a", 20, 503);
    answered(&mut world, "b", 20, 429);
    let view = &world.engine.pools()[0];
    assert_eq!((view.breaker, view.held_back.len(), world.engine.next_wakeup()), (None, 0, None));
}

#[test]
fn low_classes_are_shed_first() {
    let mut policy = watched(1);
    policy.pools[0].breaker = None;
    policy.classes = vec![class("interactive", 0, 0.0), class("standard", 1, 0.0), class("batch", 2, 0.0)];
    policy.pools[0].queue.pool = QueueCap { requests: Limit::AtMost(6), ..QueueCap::default() };
    let mut world = World::new(policy);
    world.ask(&of("running"));
    let waiting: Vec<Vec<RequestId>> = [2, 1, 0]
        .map(|class| ["a", "b"].map(|tenant| world.ask(&Ask { class, ..of(tenant) })).to_vec())
        .into_iter()
        .collect();
    let refused =
        |world: &World, which: usize| waiting[which].iter().filter(|id| world.refusal(**id).is_some()).count();
    for (newcomers, left) in [(2, [2, 0, 0]), (2, [2, 2, 0]), (1, [2, 2, 0])] {
        for _ in 0..newcomers {
            world.ask(&of("c"));
        }
        assert_eq!([0, 1, 2].map(|class| refused(&world, class)), left, "batch before standard before interactive");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn clients_that_leave_and_bad_requests_never_trip_anything(
        policy in any_policy(),
        ops in prop::collection::vec(op(), 1..200),
    ) {
        let mut world = World::new(Policy { pools: vec![crate::policy::model::Pool { breaker: Some(breaker()), ..policy.pools[0].clone() }], ..policy });
        let harmless = [Outcome::Completed, Outcome::ClosedAfterFinal, Outcome::ClientAborted, Outcome::Evicted, Outcome::Lost];
        for op in ops {
            let op = match op {
                Op::Settle(which, outcome, reported, output) => {
                    let place = Outcome::ALL.iter().position(|known| *known == harmless[outcome % 5]).expect("known");
                    Op::Settle(which, place, reported, output)
                }
                Op::Hear(which, outcome, status, _) if status >= 429 => Op::Hear(which, outcome, 400, None),
                Op::Hear(which, outcome, 200, retry_after) => {
                    let place = Outcome::ALL.iter().position(|known| *known == harmless[outcome % 5]).expect("known");
                    Op::Hear(which, place, 200, retry_after)
                }
                other => other,
            };
            apply(&mut world, &op);
        }
        let shifts = world.events.iter().filter(|event| matches!(event, Event::Breaker { .. })).count();
        prop_assert_eq!(shifts, 0);
    }

    #[test]
    fn an_upstream_that_is_well_again_is_used_again(
        policy in any_policy(),
        ops in prop::collection::vec(op(), 1..200),
    ) {
        // Whoever has spent a budget has nothing to try it with.
        let mut world = World::new(Policy { limits: Vec::new(), budgets: Vec::new(), ..policy });
        for op in ops {
            apply(&mut world, &op);
        }
        // From now on every answer is good: whatever was tripped before, everybody is served within minutes.
        for _ in 0..200 {
            world.now = world.now + Span::from_secs(1);
            for tenant in ["a", "b", "c", "d", "e"] {
                world.ask(&Ask { input: 1, output: 1, ..of(tenant) });
            }
            let flying = world.engine.requests().into_iter().filter(|view| {
                view.state != RequestState::Queued
            });
            for request in flying.map(|view| view.request).collect::<Vec<_>>() {
                world.hear(request, 200, None);
            }
        }
        let view = &world.engine.pools()[0];
        let serves = |stage| matches!(stage, BreakerStage::Serving | BreakerStage::Returning { .. });
        prop_assert!(view.breaker.is_none_or(serves), "{view:?}");
        // Whoever is never sent, since others take all the room and nothing may queue, cannot be tried.
        prop_assert!(view.held_back.iter().all(|(_, stage)| stage.until().is_none()), "{view:?}");
    }
}
