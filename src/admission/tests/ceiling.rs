//! Ceilings: how much of a window a class may have, however idle the others are.

use super::world::{Ask, World, at, class, of, policy, vt};
use crate::admission::{Event, Prospect};
use crate::policy::Policy;
use crate::policy::model::Window;
use crate::units::{Limit, PoolIndex, RequestId, Share, Tokens};

/// A window of ten requests; `batch` may have half of it, and is owed a tenth.
fn half() -> Policy {
    let mut policy = policy();
    policy.classes = vec![class("interactive", 0, 0.0), class("batch", 1, 0.1)];
    policy.classes[1].max_share = Limit::AtMost(Share::new(0.5).expect("valid"));
    policy.pools[0].window = Window { tokens: Limit::Unlimited, requests: Limit::AtMost(10) };
    policy
}

fn batch(tenant: &'static str) -> Ask {
    Ask { class: 1, ..of(tenant) }
}

fn running(world: &World, class: usize) -> u32 {
    world.engine.queues()[class].in_flight_requests
}

#[test]
fn a_class_has_no_more_than_its_ceiling_and_holds_nobody_up() {
    let mut world = World::new(half());
    let jobs: Vec<RequestId> = (0..9).map(|_| world.ask(&batch("jobs"))).collect();
    assert_eq!(running(&world, 1), 5, "half of ten, though nobody else is there");
    let explained = world.engine.explain(world.now, &world.request(PoolIndex::new(0), &batch("more")));
    assert!(explained.turn.at_ceiling && !explained.turn.next && explained.window.fits);
    assert_eq!(explained.prospect(), Prospect::Queued);
    let chat = world.ask(&of("chat"));
    assert!(world.ticket(chat).is_some(), "it goes at once, past the jobs that wait for their own");
    let vacated = world.events.iter().any(|event| matches!(event, Event::Vacated { .. }));
    assert!(!vacated && world.engine.queues()[1].owed == vt(0), "nothing is owed for what it may not have");
    world.complete(jobs[0], 100);
    assert_eq!(running(&world, 1), 5, "one ends and the next goes");
}

#[test]
fn a_ceiling_holds_in_tokens_and_one_request_may_always() {
    let mut policy = half();
    policy.pools[0].window = Window { tokens: Limit::AtMost(Tokens::new(1_000)), requests: Limit::Unlimited };
    let mut world = World::new(policy);
    let large = world.ask(&Ask { input: 700, ..batch("jobs") });
    assert!(world.ticket(large).is_some(), "alone of its class");
    let small = world.ask(&Ask { input: 10, output: 10, ..batch("jobs") });
    assert!(world.waits(small));
    world.complete(large, 100);
    assert!(world.ticket(small).is_some());
    world.ask(&batch("jobs"));
    world.ask(&batch("jobs"));
    assert_eq!(running(&world, 1), 3, "20, 200 and 200 of 500");
    world.ask(&batch("jobs"));
    assert_eq!(running(&world, 1), 3);
    // What a request in flight produces beyond what was expected counts too.
    world.progress(small, 300);
    world.at(1.0);
    let first = world.engine.requests().into_iter().find(|view| view.expected.output() == Tokens::new(100));
    world.complete(first.expect("in flight").request, 100);
    assert_eq!(running(&world, 1), 2, "310 and 200 are as much as it may have");
}

#[test]
fn what_a_class_is_owed_is_lent_while_it_asks_for_nothing_and_is_back_with_the_next_turn() {
    let mut policy = policy();
    policy.classes = vec![class("first", 0, 0.0), class("owed", 1, 0.5)];
    let mut world = World::new(policy);
    for _ in 0..20 {
        world.ask(&of("a"));
    }
    assert_eq!(world.serve(10), vec!["a"; 10], "all of it while nobody else asks");
    for _ in 0..10 {
        world.ask(&Ask { class: 1, ..of("b") });
    }
    let served = world.serve(9);
    let of_b = served.iter().filter(|tenant| *tenant == "b").count();
    assert!((3..=5).contains(&of_b), "{served:?}");
    assert!(served[..4].contains(&"b".to_owned()) && served[3..].windows(2).all(|two| two[0] != two[1]), "{served:?}");
    assert!(world.now > at(0.0));
}
