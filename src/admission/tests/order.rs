//! Who goes next.

use super::world::{Ask, World, at, class, of, policy, vt, weight};
use crate::admission::tree::MOST_RESTING_SESSIONS;
use crate::admission::{Input, Slots};
use crate::policy::model::{Algorithm, Charge, Fanout, TenantRule, Window};
use crate::units::{ClassIndex, Limit, PoolIndex, RequestId, Tokens};

fn count(served: &[String], tenant: &str) -> usize {
    served.iter().filter(|name| *name == tenant).count()
}

/// A world whose only slot is taken by nobody of interest, so that what follows queues.
fn busy(policy: crate::policy::Policy) -> (World, RequestId) {
    let mut world = World::new(policy);
    let first = world.ask(&of("first"));
    assert!(world.ticket(first).is_some(), "an empty pool dispatches at once");
    (world, first)
}

#[test]
fn the_least_served_goes_next_whatever_the_others_sent() {
    let (mut world, _) = busy(policy());
    for _ in 0..50 {
        world.ask(&of("hog"));
    }
    for _ in 0..5 {
        world.ask(&of("light"));
    }
    let served = world.serve(11);
    assert_eq!(count(&served, "light"), 5, "{served:?}");
}

#[test]
fn service_is_in_proportion_to_weight() {
    let (mut world, _) = busy(policy());
    for _ in 0..100 {
        world.ask(&of("one"));
        world.ask(&super::world::Ask { weight: weight(3.0), ..of("three") });
    }
    let served = world.serve(81);
    assert_eq!(count(&served, "three"), 60, "{served:?}");
}

#[test]
fn large_requests_push_back_by_what_they_cost() {
    let (mut world, _) = busy(policy());
    for _ in 0..100 {
        world.ask(&super::world::Ask { input: 400, output: 400, ..of("large") });
        world.ask(&of("small"));
    }
    let served = world.serve(51);
    assert_eq!((count(&served, "large"), count(&served, "small")), (10, 40));
}

#[test]
fn idleness_banks_no_credit_but_under_least_counter_it_does() {
    for (algorithm, expected) in [(Algorithm::Vtc, 5), (Algorithm::LeastCounter, 10)] {
        let mut policy = policy();
        policy.fairness.algorithm = algorithm;
        let (mut world, _) = busy(policy);
        for _ in 0..100 {
            world.ask(&of("steady"));
        }
        world.serve(40);
        for _ in 0..20 {
            world.ask(&of("returns"));
        }
        let served = world.serve(11);
        assert_eq!(count(&served[1..], "returns"), expected, "{algorithm:?}: {served:?}");
    }
}

#[test]
fn the_baselines_are_what_they_say() {
    for (algorithm, light) in [(Algorithm::Fcfs, 0), (Algorithm::RoundRobin, 5)] {
        let mut policy = policy();
        policy.fairness.algorithm = algorithm;
        let (mut world, _) = busy(policy);
        for _ in 0..50 {
            world.ask(&super::world::Ask { input: 1_000, ..of("hog") });
        }
        for _ in 0..5 {
            world.ask(&of("light"));
        }
        assert_eq!(count(&world.serve(11), "light"), light, "{algorithm:?}");
    }
}

/// A window of two, both slots and a queue of ten held by `steady`, and one large request of `debtor` that has just
/// been dispatched after one of them.
fn indebted() -> (World, RequestId) {
    let mut policy = policy();
    policy.pools[0].window = Window { requests: Limit::AtMost(2), ..Window::default() };
    let mut world = World::new(policy);
    let held = [world.ask(&of("steady")), world.ask(&of("steady"))];
    for _ in 0..10 {
        world.ask(&of("steady"));
    }
    let large = world.ask(&super::world::Ask { output: 5_000, ..of("debtor") });
    world.complete(held[0], 100);
    world.complete(held[1], 100);
    assert!(world.ticket(large).is_some());
    (world, large)
}

#[test]
fn a_debt_outlasts_an_absence() {
    let (mut world, large) = indebted();
    world.complete(large, 5_000);
    let debt = world.v("debtor");
    assert!(debt > world.v("steady"));
    world.serve(2);
    world.ask(&of("debtor"));
    assert_eq!(world.v("debtor"), debt, "going away forgives nothing");
}

#[test]
fn a_refund_counts_but_never_recreates_credit_that_a_lift_erased() {
    let (mut world, large) = indebted();
    // The debtor returns while its over-predicted request still runs: it owes more than anybody.
    let again = world.ask(&of("debtor"));
    let (owed, level) = (world.v("debtor"), world.v("steady"));
    assert!(owed > level);
    world.complete(large, 1);
    assert_eq!(world.v("debtor"), level.max(owed - vt(2 * 4_999)));
    world.serve(1);
    assert!(world.ticket(again).is_some(), "forgiven what it never used, it is served next");
}

#[test]
fn many_invented_names_are_forgotten_and_gain_nothing() {
    let (mut world, _) = busy(policy());
    for _ in 0..300 {
        world.ask(&of("honest"));
    }
    let mut rotated = 0;
    for round in 0..100 {
        let name: &'static str = Box::leak(format!("rotating-{round}").into_boxed_str());
        world.ask(&of(name));
        rotated += world.serve(2).iter().filter(|served| served.starts_with("rotating")).count();
    }
    assert!(rotated <= 101, "each new name gets one turn in two, as any second tenant would");
    assert!(world.engine.tenants().len() <= 4, "{} names are remembered", world.engine.tenants().len());
}

#[test]
fn a_hundred_thousand_invented_sessions_gain_nothing_and_are_forgotten() {
    let mut policy = policy();
    policy.pools[0].queue.tenant.requests = Limit::AtMost(20);
    let (mut world, _) = busy(policy);
    let mut served = [0_u32; 2];
    for round in 0..100_000 {
        let session: &'static str = Box::leak(format!("session-{round}").into_boxed_str());
        world.ask(&Ask { session: Some(session), ..of("inventor") });
        world.ask(&of("honest"));
        let flight = world.engine.flights.values().next().expect("the slot is taken");
        let (request, inventor) = (flight.request.id, flight.request.subject.tenant.as_str() == "inventor");
        served[usize::from(inventor)] += 1;
        world.complete(request, 100);
        world.forget_what_happened();
    }
    let [honest, inventor] = served;
    assert!(honest.abs_diff(inventor) <= 2, "half of the service each, for two tenants: {honest}, {inventor}");
    let known = world.engine.pools[0].tree.sessions.len();
    assert!(known <= 20 + MOST_RESTING_SESSIONS + 2, "{known} sessions are known");
}

#[test]
fn sessions_divide_their_tenants_share_and_no_more() {
    let (mut world, _) = busy(policy());
    for session in ["s1", "s2", "s3", "s4"] {
        for _ in 0..20 {
            world.ask(&super::world::Ask { session: Some(session), ..of("many") });
        }
    }
    for _ in 0..40 {
        world.ask(&of("one"));
    }
    let served = world.serve(41);
    assert_eq!(count(&served, "many"), 20, "four sessions get the share of one tenant: {served:?}");
}

#[test]
fn a_session_at_its_cap_is_skipped_and_banks_no_credit() {
    let mut policy = policy();
    policy.pools[0].window = Window { requests: Limit::AtMost(4), ..Window::default() };
    policy.fanout = Fanout { per_session: Limit::AtMost(1), per_tenant: Limit::AtMost(3) };
    let mut world = World::new(policy);
    let agent = super::world::Ask { session: Some("agent"), ..of("acme") };
    let asked: Vec<_> = (0..5).map(|_| world.ask(&agent)).collect();
    assert_eq!(asked.iter().filter(|id| world.ticket(**id).is_some()).count(), 1);
    assert!(asked[1..].iter().all(|id| world.waits(*id)), "the excess waits, nothing is refused");
    let chats: Vec<_> = (0..5).map(|_| world.ask(&of("acme"))).collect();
    let running = chats.iter().filter(|id| world.ticket(**id).is_some()).count();
    assert_eq!(running, 2, "no session id, no session cap, but the tenant's cap of three holds");
    let other = world.ask(&of("other"));
    assert!(world.ticket(other).is_some(), "the fourth slot goes to whoever is not capped");
    world.complete(asked[0], 100);
    assert!(world.waits(asked[1]), "it was lifted on return, so whoever waited all along goes before it");
    world.complete(chats[0], 100);
    assert!(world.ticket(asked[1]).is_some(), "and then it goes");
}

#[test]
fn ranks_go_first_and_an_owed_class_goes_before_them() {
    let mut policy = policy();
    policy.classes = vec![class("interactive", 0, 0.0), class("batch", 1, 0.25)];
    let (mut world, _) = busy(policy);
    for _ in 0..100 {
        world.ask(&of("interactive"));
        world.ask(&super::world::Ask { class: 1, ..of("batch") });
    }
    let served = world.serve(81);
    let batch = count(&served, "batch");
    assert!((19..=21).contains(&batch), "a quarter of the service, not {batch} of 80");
}

#[test]
fn without_a_share_the_lower_class_waits_for_the_higher() {
    let mut policy = policy();
    policy.classes = vec![class("interactive", 5, 0.0), class("batch", 9, 0.0)];
    let (mut world, _) = busy(policy);
    for _ in 0..10 {
        world.ask(&super::world::Ask { class: 1, ..of("batch") });
        world.ask(&of("interactive"));
    }
    let served = world.serve(11);
    assert_eq!(count(&served, "interactive"), 10);
}

#[test]
fn nothing_overtakes_a_head_that_does_not_fit() {
    let mut policy = policy();
    policy.pools[0].window = Window { tokens: Limit::AtMost(Tokens::new(1_000)), requests: Limit::Unlimited };
    let mut world = World::new(policy);
    let running: Vec<_> = (0..4).map(|_| world.ask(&of("small"))).collect();
    let large = world.ask(&super::world::Ask { output: 700, ..of("large") });
    let next = world.ask(&of("small"));
    assert!(world.waits(large) && world.waits(next), "800 of 1000 are taken and the large one is the head");
    world.complete(running[0], 100);
    world.complete(running[1], 100);
    assert!(world.waits(large) && world.waits(next));
    world.complete(running[2], 100);
    assert!(world.ticket(large).is_some(), "200 + 800 fit");
}

#[test]
fn a_request_larger_than_the_window_runs_alone() {
    let mut policy = policy();
    policy.pools[0].window = Window { tokens: Limit::AtMost(Tokens::new(100)), requests: Limit::Unlimited };
    let mut world = World::new(policy);
    let huge = world.ask(&super::world::Ask { output: 7_000, ..of("huge") });
    let next = world.ask(&super::world::Ask { input: 1, output: 1, ..of("tiny") });
    assert!(world.ticket(huge).is_some() && world.waits(next));
    world.complete(huge, 7_000);
    assert!(world.ticket(next).is_some());
}

#[test]
fn charging_at_completion_lets_one_tenant_take_every_free_slot() {
    for (charge, first_tenant) in [(Charge::Predicted, 4), (Charge::Completion, 8)] {
        let mut policy = policy();
        policy.fairness.charge = charge;
        policy.pools[0].window = Window { requests: Limit::AtMost(0), ..Window::default() };
        let mut world = World::with(policy, Slots::Granted);
        let a: Vec<_> = (0..8).map(|_| world.ask(&of("a"))).collect();
        for _ in 0..8 {
            world.ask(&of("b"));
        }
        for _ in 0..8 {
            world.feed(Input::Grant(PoolIndex::new(0)));
        }
        let got = a.iter().filter(|id| world.ticket(**id).is_some()).count();
        // With no charge at dispatch both stay at zero, and only the order of turns alternates them.
        assert!(got == 4 || charge == Charge::Completion && got <= first_tenant, "{charge:?}: {got}");
    }
}

#[test]
fn grants_dispatch_the_head_and_nothing_else_does() {
    let mut world = World::with(policy(), Slots::Granted);
    let (a, b) = (world.ask(&of("a")), world.ask(&of("b")));
    assert!(world.waits(a) && world.waits(b));
    let pool = PoolIndex::new(0);
    assert_eq!(world.engine.head(pool).map(|head| head.request), Some(a));
    world.feed(Input::Grant(pool));
    world.feed(Input::Grant(pool));
    world.feed(Input::Grant(pool));
    assert!(world.ticket(a).is_some() && world.ticket(b).is_some());
}

#[test]
fn within_a_session_the_earlier_deadline_goes_first() {
    let (mut world, first) = busy(policy());
    let late = world.ask(&super::world::Ask { deadline: Some(60.0), ..of("a") });
    let soon = world.ask(&super::world::Ask { deadline: Some(30.0), ..of("a") });
    world.complete(first, 100);
    assert!(world.ticket(soon).is_some() && world.waits(late));
    assert_eq!(world.engine.next_wakeup(), Some(at(60.0)));
}

#[test]
fn a_weight_rule_applies_by_the_policy() {
    let mut policy = policy();
    policy.tenants.insert(
        0,
        TenantRule {
            matches: crate::policy::Pattern::new("gold*").expect("valid"),
            weight: weight(4.0),
            classes: vec![ClassIndex::new(0)],
            written: true,
        },
    );
    let selection = policy.select(&"gold-1".into(), None, "any").expect("every model is served");
    assert_eq!(selection.weight, weight(4.0));
}

#[test]
fn debtors_beyond_what_is_remembered_by_name_still_owe() {
    use crate::admission::tree::MOST_RESTING_TENANTS;
    let (mut world, _) = busy(policy());
    // So heavy a tenant hardly moves, so everybody served beside it stays in debt.
    let steady = super::world::Ask { weight: weight(1_000_000.0), ..of("steady") };
    for _ in 0..3 {
        world.ask(&steady);
    }
    let names: Vec<&'static str> = (0..MOST_RESTING_TENANTS + 500)
        .map(|number| &*Box::leak(format!("debtor-{number}").into_boxed_str()))
        .collect();
    for name in &names {
        world.ask(&of(name));
        world.ask(&steady);
        world.serve(2);
    }
    assert!(world.engine.tenants().len() <= MOST_RESTING_TENANTS + 2);
    let level = world.v("steady");
    for name in names.iter().step_by(997) {
        world.ask(&of(name));
        assert!(world.v(name) > level + vt(250), "{name} owes what it was served");
    }
    world.ask(&of("innocent"));
    assert!(world.v("innocent") < level + vt(1), "and a newcomer does not");
}

#[test]
fn a_dispatch_in_one_pool_that_blocks_the_head_of_another_lets_the_next_there_go() {
    let mut policy = policy();
    policy.pools[0].window = Window { tokens: Limit::AtMost(Tokens::new(1_000)), requests: Limit::Unlimited };
    let second = policy.pools[0].clone();
    policy.pools.push(crate::policy::model::Pool {
        window: Window { tokens: Limit::Unlimited, requests: Limit::AtMost(1) },
        ..second
    });
    policy.fanout = Fanout { per_tenant: Limit::AtMost(1), per_session: Limit::Unlimited };
    let (here, there) = (PoolIndex::new(0), PoolIndex::new(1));
    let mut world = World::new(policy);
    let sized = |tenant, input| Ask { input, ..of(tenant) };
    world.ask_in(here, &sized("running", 500));
    let occupant = world.ask_in(there, &of("occupant"));
    let large = world.ask_in(here, &sized("wide", 600));
    let small = world.ask_in(here, &sized("narrow", 50));
    let elsewhere = world.ask_in(there, &of("wide"));
    assert!(world.waits(large) && world.waits(small) && world.waits(elsewhere), "the large one heads its pool");
    world.complete(occupant, 100);
    assert!(world.ticket(elsewhere).is_some(), "the slot in the second pool goes to the wide tenant");
    assert!(world.waits(large), "which is now at its own cap");
    assert!(world.ticket(small).is_some(), "so that nothing holds the small one up");
}

#[test]
fn a_head_dearer_than_the_window_does_not_void_its_classs_share() {
    let mut policy = policy();
    policy.classes = vec![class("interactive", 0, 0.0), class("batch", 1, 0.25)];
    let (mut world, _) = busy(policy);
    let whale = world.ask(&super::world::Ask { class: 1, input: 2_000, ..of("whale") });
    for _ in 0..60 {
        world.ask(&super::world::Ask { class: 1, ..of("batch") });
    }
    for _ in 0..200 {
        world.ask(&of("interactive"));
    }
    let served = world.serve(120);
    assert!(world.ticket(whale).is_some(), "the whale is due once its class has accrued it");
    let batch = count(&served, "batch");
    assert!(batch >= 15, "and those behind it get the share, not {batch}");
}
