//! Sub-agents: they share their session's caps, and never starve the agent that leads it.

use super::world::{Ask, World, of, policy};
use crate::admission::{Outcome, Reason, Reported};
use crate::policy::model::{Fanout, QueueCap, QueueCaps, Window};
use crate::units::{Agent, Limit, RequestId};

const LEAD: Agent = Agent::Lead;
const SUB: Agent = Agent::Sub;

fn of_session(session: &'static str, agent: Agent) -> Ask {
    Ask { session: Some(session), agent, ..of("acme") }
}

/// A roomy pool in which a session may have so many in flight.
fn capped(per_session: u32, window: u32) -> World {
    let mut policy = policy();
    policy.fanout = Fanout { per_session: Limit::AtMost(per_session), per_tenant: Limit::Unlimited };
    policy.pools[0].window = Window { requests: Limit::AtMost(window), tokens: Limit::Unlimited };
    World::new(policy)
}

fn let_through(world: &World, asked: &[RequestId]) -> usize {
    asked.iter().filter(|request| world.ticket(**request).is_some()).count()
}

#[test]
fn fifty_requests_of_one_session_are_all_served_eight_at_a_time_and_hold_nobody_up() {
    let mut world = capped(8, 1_000);
    let fifty: Vec<_> = (0..50).map(|_| world.ask(&of_session("s", LEAD))).collect();
    assert_eq!(let_through(&world, &fifty), 8);
    let others: Vec<_> = ["t", "u", "v"].map(|session| world.ask(&of_session(session, LEAD))).into();
    assert_eq!(let_through(&world, &others), 3, "other sessions of the tenant go at once");
    for (served, request) in fifty.iter().enumerate() {
        world.end(*request, Outcome::Completed, Reported::Nothing);
        let started = let_through(&world, &fifty);
        assert!(started <= served + 1 + 8, "at most the cap is in flight");
    }
    assert_eq!(let_through(&world, &fifty), 50, "none was refused");
}

#[test]
fn one_slot_of_two_or_more_stays_for_the_agent_that_leads() {
    for (cap, sub_agents_at_once) in [(1, 1), (2, 1), (3, 2), (8, 7)] {
        let mut world = capped(cap, 1_000);
        let tree: Vec<_> = (0..50).map(|_| world.ask(&of_session("s", SUB))).collect();
        assert_eq!(let_through(&world, &tree), sub_agents_at_once, "cap {cap}");
        let lead = world.ask(&of_session("s", LEAD));
        assert_eq!(world.ticket(lead).is_some(), cap > 1, "cap {cap}: the kept slot is the lead's at once");
        let second = world.ask(&of_session("s", LEAD));
        assert!(world.ticket(second).is_none(), "cap {cap}: and the cap holds for it too");
    }
}

#[test]
fn a_lead_may_use_the_whole_cap() {
    let mut world = capped(4, 1_000);
    let leads: Vec<_> = (0..5).map(|_| world.ask(&of_session("s", LEAD))).collect();
    assert_eq!(let_through(&world, &leads), 4);
    let sub = world.ask(&of_session("s", SUB));
    world.end(leads[0], Outcome::Completed, Reported::Nothing);
    assert!(world.ticket(leads[4]).is_some() && world.ticket(sub).is_none(), "then it is by arrival");
    world.end(leads[1], Outcome::Completed, Reported::Nothing);
    assert!(world.ticket(sub).is_some());
}

#[test]
fn the_lead_waits_for_its_sessions_turn_and_not_for_its_sub_agents() {
    // One slot in the pool and no cap on the session: only the order can help.
    let mut policy = policy();
    policy.fanout = Fanout { per_session: Limit::Unlimited, per_tenant: Limit::Unlimited };
    let mut world = World::new(policy);
    world.ask(&of("other"));
    for _ in 0..50 {
        world.ask(&of_session("s", SUB));
    }
    let lead = world.ask(&of_session("s", LEAD));
    let second = world.ask(&of_session("s", LEAD));
    world.serve(1);
    assert!(world.ticket(lead).is_some(), "the first of the session to go is its lead");
    world.serve(1);
    assert!(world.ticket(second).is_some(), "none of the lead's is in flight any more, so it goes first again");
}

#[test]
fn a_lead_with_one_in_flight_takes_its_turn_among_its_sub_agents() {
    let mut world = capped(8, 2);
    let lead = world.ask(&of_session("s", LEAD));
    let filler = world.ask(&of("other"));
    let sub = world.ask(&of_session("s", SUB));
    let second = world.ask(&of_session("s", LEAD));
    assert!(world.ticket(lead).is_some() && world.ticket(sub).is_none());
    world.end(filler, Outcome::Completed, Reported::Nothing);
    assert!(world.ticket(sub).is_some() && world.ticket(second).is_none());
}

#[test]
fn sub_agents_cannot_fill_the_queue_of_their_session() {
    let mut policy = policy();
    let session = QueueCap { requests: Limit::AtMost(3), ..QueueCap::default() };
    policy.pools[0].queue = QueueCaps { session, ..QueueCaps::default() };
    let mut world = World::new(policy);
    world.ask(&of("other"));
    let tree: Vec<_> = (0..3).map(|_| world.ask(&of_session("s", SUB))).collect();
    let refused = world.refusal(tree[2]).expect("two places are theirs").reason;
    assert!(matches!(refused, Reason::QueueFull { cap: 2, queued: 2, .. }), "{refused:?}");
    let lead = world.ask(&of_session("s", LEAD));
    assert!(world.refusal(lead).is_none(), "the last place is kept for the lead");
    let second = world.ask(&of_session("s", LEAD));
    assert!(world.refusal(second).is_some(), "and the cap holds for it too");
}
