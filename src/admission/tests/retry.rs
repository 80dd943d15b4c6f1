//! Retries: how many a tenant may make, and that nobody who was told to come back is refused for it.

use super::world::{Ask, World, at, of, policy};
use crate::admission::{Attempt, Event, Reason, Retry, Try};
use crate::policy::Policy;
use crate::policy::model::{QueueCap, Retries};
use crate::units::{Instant, Limit, PoolIndex, RequestId, Share, Status};

fn limited(floor: u32) -> Policy {
    let mut policy = policy();
    policy.pools[0].window.requests = Limit::AtMost(4);
    policy.retries = Some(Retries { ratio: Share::new(0.1).expect("valid"), floor });
    policy
}

fn again(tenant: &'static str) -> Ask {
    Ask { attempt: Attempt::Again, ..of(tenant) }
}

/// So many retries of a tenant fail, or are refused: when those are told to come back, the soonest first.
fn turned_away(world: &mut World, times: usize) -> Vec<Instant> {
    let mut refused = Vec::new();
    for _ in 0..times {
        let request = world.ask(&again("a"));
        if world.code(request) == Some("retry_budget") {
            refused.push(told(world, request));
        } else {
            world.hear(request, 503, None);
        }
    }
    refused.sort();
    refused
}

fn told(world: &World, request: RequestId) -> Instant {
    match world.refusal(request).expect("refused").retry {
        Retry::At(due) => due,
        other => panic!("a time is told, not {other:?}"),
    }
}

#[test]
fn retries_beyond_a_part_of_what_went_well_are_refused_and_others_are_not() {
    let mut world = World::new(limited(2));
    for _ in 0..30 {
        let request = world.ask(&of("a"));
        world.hear(request, 200, None);
    }
    for _ in 0..5 {
        let request = world.ask(&again("a"));
        world.hear(request, 503, None);
    }
    let refused = world.ask(&again("a"));
    let reason = world.refusal(refused).map(|refusal| refusal.reason);
    assert_eq!(reason, Some(Reason::RetryBudget { retries: 5, allowed: 5 }), "two, and a tenth of thirty");
    for ask in [of("a"), Ask { attempt: Attempt::First, ..of("a") }, again("b")] {
        let request = world.ask(&ask);
        assert!(world.ticket(request).is_some(), "{ask:?}");
        world.hear(request, 200, None);
    }
}

#[test]
fn whoever_comes_back_when_the_budget_said_is_let_in() {
    let mut world = World::new(limited(3));
    let refused = turned_away(&mut world, 6);
    assert_eq!(refused.len(), 3);
    for due in refused {
        let request = world.at(due.as_secs_f64()).ask(&again("a"));
        assert!(world.ticket(request).is_some(), "at {due:?}");
        world.hear(request, 503, None);
    }
}

#[test]
fn a_time_for_which_no_room_was_taken_excuses_nobody() {
    let mut world = World::new(limited(2));
    let refused = turned_away(&mut world, 100);
    let mut let_in = 0;
    for due in refused.into_iter().filter(|due| *due < at(120.0)) {
        let request = world.at(due.as_secs_f64()).ask(&again("a"));
        if world.ticket(request).is_some() {
            let_in += 1;
            world.hear(request, 503, None);
        }
    }
    assert!((2..=4).contains(&let_in), "{let_in} in the minute after, of which two are told each");
}

#[test]
fn a_kept_promise_is_no_retry() {
    let mut policy = limited(1);
    policy.pools[0].window.requests = Limit::AtMost(1);
    policy.pools[0].queue.tenant = QueueCap { requests: Limit::AtMost(2), ..QueueCap::default() };
    let mut world = World::new(policy);
    for _ in 0..3 {
        world.ask(&of("a"));
    }
    for _ in 0..30 {
        world.serve(1);
        world.ask(&of("a"));
    }
    let turned_away = world.ask(&of("a"));
    assert_eq!(world.code(turned_away), Some("queue_full"));
    let due = told(&world, turned_away);
    // The budget is used up by others meanwhile.
    for _ in 0..9 {
        world.serve(3);
        world.ask(&again("a"));
    }
    world.now = world.now.max(due);
    world.serve(3);
    let explained = world.engine.explain(world.now, &world.request(PoolIndex::new(0), &again("a")));
    assert_eq!(explained.retries.found.which, Try::Told);
    let back = world.ask(&again("a"));
    assert_eq!(world.code(back), None, "{:?}", world.refusal(back));
    let next = world.ask(&again("a"));
    assert_eq!(world.code(next), Some("retry_budget"), "one return, once");
}

#[test]
fn further_attempts_of_a_proxy_use_up_the_budget() {
    let mut world = World::new(limited(4));
    let request = world.ask(&of("a"));
    world.hear_tries(request, Status::new(200), 4);
    let last = world.ask(&again("a"));
    assert!(world.ticket(last).is_some(), "three of those were further ones, and four may be");
    let refused = world.ask(&again("a"));
    assert_eq!(world.code(refused), Some("retry_budget"));
}

#[test]
fn without_the_rule_nothing_is_counted_or_refused() {
    let mut world = World::new(policy());
    for _ in 0..50 {
        let request = world.ask(&again("a"));
        world.hear(request, 503, None);
    }
    assert!(!world.events.iter().any(|event| matches!(event, Event::Refused { .. })));
    assert_eq!(world.now, at(0.0));
}
