//! Room that stands empty before a head that does not fit, and who pays.

use super::world::{Ask, World, at, class, of, policy, vt};
use crate::admission::{Event, Outcome, Reported};
use crate::policy::model::Window;
use crate::units::{Limit, RequestId, Tokens, VirtualTokens};

/// A pool of 1,000 tokens, kept busy for ten seconds with requests of 200 tokens and 300 virtual ones, one every
/// half second: 600 virtual tokens a second. Then somebody's request of 1,100 tokens heads the queue, and from 11 s on a
/// fifth of the room stands empty, from 11.5 s on two fifths.
fn held_up(deadline: Option<f64>) -> (World, RequestId) {
    let mut policy = policy();
    policy.pools[0].window = Window { tokens: Limit::AtMost(Tokens::new(1_000)), requests: Limit::Unlimited };
    let mut world = World::new(policy);
    for _ in 0..60 {
        world.ask(&of("steady"));
    }
    for half_second in 1..=20 {
        world.at(f64::from(half_second) / 2.0);
        end_one(&mut world);
    }
    let large = world.ask(&Ask { input: 1_000, output: 100, deadline, ..of("large") });
    for secs in [10.5, 11.0, 11.5] {
        world.at(secs);
        end_one(&mut world);
    }
    (world, large)
}

/// Completes the request that was dispatched first, by its number.
fn end_one(world: &mut World) {
    let flying = world.engine.flights.values().map(|flight| flight.request.id).next().expect("something runs");
    world.complete(flying, 100);
}

fn charged(world: &World, wanted: RequestId) -> VirtualTokens {
    let amounts = world.events.iter().filter_map(|event| match event {
        Event::Charged { request, amount, .. } if *request == wanted => Some(*amount),
        _ => None,
    });
    amounts.sum()
}

fn vacated(world: &World) -> VirtualTokens {
    let amounts = world.events.iter().filter_map(|event| match event {
        Event::Vacated { amount, .. } => Some(*amount),
        _ => None,
    });
    amounts.sum()
}

#[test]
fn a_head_that_leaves_pays_for_the_room_that_stood_empty_before_it() {
    let (mut world, large) = held_up(Some(12.0));
    world.at(12.0).feed(crate::admission::Input::Tick);
    assert_eq!(world.code(large), Some("expired"));
    // 600 a second for half a second at a fifth and as long at two fifths; the measured rate falls while all wait.
    let paid = charged(&world, large);
    assert!(paid <= vt(180) && paid >= vt(140), "{paid}");
    assert_eq!(vacated(&world), paid);
    assert_eq!(world.total().live(), vt(300 * (3 + 34)), "the books hold nothing for it");
}

#[test]
fn a_head_whose_client_goes_pays_just_the_same() {
    let (mut world, large) = held_up(None);
    world.at(12.0).feed(crate::admission::Input::Cancel(large));
    assert!(charged(&world, large) >= vt(140));
}

#[test]
fn a_head_that_runs_and_fails_for_nothing_pays_what_it_held_and_one_that_completes_its_cost() {
    let run = |outcome: Outcome, reported: Reported| {
        let (mut world, large) = held_up(None);
        while world.waits(large) {
            end_one(&mut world);
        }
        world.end(large, outcome, reported);
        (charged(&world, large), vacated(&world))
    };
    let (paid, vacated) = run(Outcome::UpstreamFailed, Reported::Nothing);
    assert!(paid >= vt(45) && paid == vacated, "{paid}, {vacated}");
    assert_eq!(run(Outcome::Completed, Reported::Nothing), (vt(1_200), VirtualTokens::ZERO), "its cost is more");
}

#[test]
fn a_rate_that_is_not_known_charges_nobody() {
    let mut policy = policy();
    policy.pools[0].window = Window { tokens: Limit::AtMost(Tokens::new(1_000)), requests: Limit::Unlimited };
    let mut world = World::new(policy);
    world.ask(&of("steady"));
    let large = world.ask(&Ask { input: 1_000, deadline: Some(5.0), ..of("large") });
    world.now = at(5.0);
    world.feed(crate::admission::Input::Tick);
    assert_eq!(world.code(large), Some("expired"));
    assert_eq!(charged(&world, large), VirtualTokens::ZERO);
}

#[test]
fn what_each_class_was_served_in_its_time_is_one_rate_and_not_their_sum() {
    let mut policy = policy();
    policy.classes = vec![class("early", 0, 0.0), class("late", 1, 0.0)];
    policy.pools[0].window = Window { tokens: Limit::AtMost(Tokens::new(1_000)), requests: Limit::Unlimited };
    let mut world = World::new(policy);
    for _ in 0..25 {
        world.ask(&of("early"));
    }
    for half_second in 1..=40 {
        if half_second == 20 {
            for _ in 0..60 {
                world.ask(&Ask { class: 1, ..of("steady") });
            }
        }
        world.at(f64::from(half_second) / 2.0);
        end_one(&mut world);
    }
    let large = world.ask(&Ask { class: 1, input: 1_000, deadline: Some(22.0), ..of("large") });
    for secs in [20.5, 21.0, 21.5] {
        world.at(secs);
        end_one(&mut world);
    }
    world.tick(22.0);
    assert_eq!(world.code(large), Some("expired"));
    let paid = charged(&world, large);
    assert!(paid <= vt(180) && paid >= vt(140), "600 a second at first, whoever was served: {paid}");
}

#[test]
fn a_head_that_keeps_nobody_waiting_owes_nothing() {
    let mut policy = policy();
    policy.pools[0].window = Window { tokens: Limit::AtMost(Tokens::new(1_000)), requests: Limit::Unlimited };
    for others_of_its_session in [0, 3] {
        let mut world = World::new(policy.clone());
        for _ in 0..25 {
            world.ask(&of("steady"));
        }
        for half_second in 1..=20 {
            world.at(f64::from(half_second) / 2.0);
            end_one(&mut world);
        }
        let large = world.ask(&Ask { input: 1_000, deadline: Some(12.0), ..of("large") });
        for _ in 0..others_of_its_session {
            world.ask(&of("large"));
        }
        for secs in [10.5, 11.0, 11.5] {
            world.at(secs);
            end_one(&mut world);
        }
        world.tick(12.0);
        assert_eq!(world.code(large), Some("expired"));
        assert_eq!(charged(&world, large), VirtualTokens::ZERO);
    }
}

#[test]
fn no_head_ever_pays_more_than_was_ever_in_flight() {
    let (mut world, large) = held_up(Some(4_000.0));
    world.at(4_000.0).feed(crate::admission::Input::Tick);
    assert_eq!(world.code(large), Some("expired"));
    assert!(charged(&world, large) <= world.engine.pools()[0].peak_in_flight);
}
