//! Who may wait, who has to leave, and when to come back.

use super::world::{Ask, World, at, class, of, policy, weight};
use crate::admission::{Input, Level, Reason, Retry, Unit};
use crate::policy::Policy;
use crate::policy::model::{QueueCap, QueueCaps};
use crate::units::{Bytes, Limit, Span, Tokens};

fn requests(most: u32) -> QueueCap {
    QueueCap { requests: Limit::AtMost(most), ..QueueCap::default() }
}

fn capped(queue: QueueCaps) -> Policy {
    let mut policy = policy();
    policy.pools[0].queue = queue;
    policy
}

#[test]
fn own_caps_refuse_the_newcomer() {
    let queue = QueueCaps { tenant: requests(3), session: requests(2), ..QueueCaps::default() };
    let mut world = World::new(capped(queue));
    world.ask(&of("first"));
    let session = Ask { session: Some("s"), ..of("a") };
    let asked: Vec<_> = (0..3).map(|_| world.ask(&session)).collect();
    assert!(matches!(
        world.refusal(asked[2]).expect("refused").reason,
        Reason::QueueFull {
            level: Level::Session,
            unit: Unit::Requests,
            cap: 2,
            queued: 2,
            asked: 1,
            displaced: false
        }
    ));
    let (third, fourth) = (world.ask(&of("a")), world.ask(&of("a")));
    assert!(world.waits(third));
    assert!(matches!(world.refusal(fourth).expect("refused").reason, Reason::QueueFull { level: Level::Tenant, .. }));
    assert!(world.waits(asked[0]) && world.waits(asked[1]), "nobody else suffers");
}

#[test]
fn requests_that_name_no_session_have_no_session_cap() {
    let mut world = World::new(capped(QueueCaps { session: requests(1), ..QueueCaps::default() }));
    let asked: Vec<_> = (0..5).map(|_| world.ask(&of("a"))).collect();
    assert!(asked[1..].iter().all(|id| world.waits(*id)));
}

#[test]
fn a_full_shared_queue_displaces_whoever_holds_most_of_it_for_its_weight() {
    let mut world = World::new(capped(QueueCaps { pool: requests(10), ..QueueCaps::default() }));
    world.ask(&of("first"));
    let hog: Vec<_> = (0..10).map(|n| world.ask(&Ask { deadline: Some(100.0 + f64::from(n)), ..of("hog") })).collect();
    let refused = world.ask(&Ask { deadline: Some(500.0), ..of("hog") });
    assert_eq!(world.code(refused), Some("queue_full"), "the hog pushes out nobody");
    let light: Vec<_> = (0..5).map(|_| world.ask(&of("light"))).collect();
    assert!(light.iter().all(|id| world.waits(*id)), "a light tenant gets its half of the queue");
    let displaced: Vec<_> = hog.iter().filter(|id| world.code(**id) == Some("queue_full")).collect();
    assert_eq!(displaced, hog[5..].iter().collect::<Vec<_>>(), "the latest deadlines go first");
    let sixth = world.ask(&of("light"));
    assert_eq!(world.code(sixth), Some("queue_full"), "five each: a newcomer loses ties");
    let heavy = world.ask(&Ask { weight: weight(9.0), ..of("heavy") });
    assert!(world.waits(heavy));
}

#[test]
fn an_urgent_newcomer_displaces_its_own_tenants_patient_request() {
    let mut world = World::new(capped(QueueCaps { pool: requests(2), ..QueueCaps::default() }));
    world.ask(&of("first"));
    let (soon, late) =
        (world.ask(&Ask { deadline: Some(50.0), ..of("a") }), world.ask(&Ask { deadline: Some(900.0), ..of("a") }));
    let urgent = world.ask(&Ask { deadline: Some(10.0), ..of("a") });
    assert!(world.waits(soon) && world.waits(urgent));
    assert_eq!(world.code(late), Some("queue_full"));
}

#[test]
fn a_lower_class_leaves_before_a_higher_one() {
    let mut policy = capped(QueueCaps { pool: requests(4), ..QueueCaps::default() });
    policy.classes = vec![class("interactive", 0, 0.0), class("batch", 1, 0.0)];
    let mut world = World::new(policy);
    world.ask(&of("first"));
    let batch: Vec<_> = (0..2).map(|_| world.ask(&Ask { class: 1, ..of("patient") })).collect();
    for _ in 0..4 {
        world.ask(&of("eager"));
    }
    assert!(batch.iter().all(|id| world.code(*id) == Some("queue_full")));
    let late = world.ask(&Ask { class: 1, ..of("patient") });
    assert_eq!(world.code(late), Some("queue_full"), "the lowest class is the newcomer's own");
}

#[test]
fn caps_hold_in_tokens_and_bytes_and_a_large_newcomer_may_displace_several() {
    let queue = QueueCaps {
        pool: QueueCap {
            tokens: Limit::AtMost(Tokens::new(1_000)),
            bytes: Limit::AtMost(Bytes::new(9_000)),
            ..QueueCap::default()
        },
        ..QueueCaps::default()
    };
    let mut world = World::new(capped(queue));
    world.ask(&of("first"));
    let small: Vec<_> = (0..5).map(|_| world.ask(&of("small"))).collect();
    let large = world.ask(&Ask { input: 300, output: 100, ..of("large") });
    assert!(world.waits(large));
    assert_eq!(small.iter().filter(|id| world.code(**id).is_some()).count(), 2, "400 tokens make room for 400");
    let too_large = world.ask(&Ask { input: 2_000, ..of("huge") });
    assert!(matches!(world.refusal(too_large).expect("refused").reason, Reason::QueueFull { unit: Unit::Tokens, .. }));
    assert_eq!(world.engine.queues()[0].tokens, Tokens::new(1_000), "a refusal leaves everything as it was");
}

#[test]
fn no_cap_applies_to_what_does_not_have_to_wait() {
    let mut world = World::new(capped(QueueCaps { pool: requests(0), ..QueueCaps::default() }));
    let first = world.ask(&of("a"));
    assert!(world.ticket(first).is_some());
    let second = world.ask(&of("a"));
    assert_eq!(world.code(second), Some("queue_full"));
}

#[test]
fn a_wait_that_is_too_long_is_refused_on_arrival_once_the_rate_is_known() {
    let mut policy = policy();
    policy.classes[0].max_wait = Limit::AtMost(Span::from_secs(5));
    let mut world = World::new(policy);
    for _ in 0..40 {
        world.ask(&of("a"));
    }
    assert_eq!(
        world.events.iter().filter(|event| matches!(event, crate::admission::Event::Refused { .. })).count(),
        0,
        "an unmeasured rate refuses nobody"
    );
    // Ten a second are served; 14 still wait when 60 more ask.
    world.serve(25);
    let asked: Vec<_> = (0..60).map(|_| world.ask(&of("a"))).collect();
    let refused: Vec<_> = asked.iter().filter(|id| world.code(**id) == Some("wait_too_long")).collect();
    assert_eq!(
        refused.len(),
        asked.len() - 30,
        "behind 43 and half of itself the wait is 4.35 s and an eighth, and 14 waited already"
    );
    let refusal = world.refusal(*refused[0]).expect("refused");
    let Reason::WaitTooLong { predicted, allowed } = refusal.reason else { panic!("{refusal:?}") };
    assert!(predicted > allowed && allowed == Span::from_secs(5));
    let Retry::At(moment) = refusal.retry else { panic!("{refusal:?}") };
    assert!(moment >= world.now + predicted.saturating_sub(allowed), "jitter only ever adds");
}

#[test]
fn a_newcomer_is_not_told_to_wait_for_a_hogs_queue() {
    let mut policy = policy();
    policy.classes[0].max_wait = Limit::AtMost(Span::from_secs(5));
    let mut world = World::new(policy);
    for _ in 0..45 {
        world.ask(&of("hog"));
    }
    world.serve(25);
    let light = world.ask(&of("light"));
    assert!(world.waits(light));
    world.serve(2);
    assert!(world.ticket(light).is_some());
}

#[test]
fn what_expires_is_refused_at_that_moment_whatever_else_happens() {
    let mut world = World::new(policy());
    let first = world.ask(&of("a"));
    let late = world.ask(&Ask { deadline: Some(3.0), ..of("b") });
    world.at(3.0).complete(first, 100);
    assert_eq!(world.code(late), Some("expired"), "a slot that frees at the deadline comes too late");
    assert_eq!(world.engine.next_wakeup(), None);
    let past = world.ask(&of("a"));
    assert!(world.ticket(past).is_some());
    let hopeless = world.ask(&Ask { deadline: Some(1.0), ..of("b") });
    world.tick(3.1);
    assert_eq!(world.code(hopeless), Some("expired"));
}

#[test]
fn draining_refuses_newcomers_and_serves_the_queue_on() {
    let mut world = World::new(policy());
    let (first, second, third) = (world.ask(&of("a")), world.ask(&of("b")), world.ask(&of("c")));
    world.feed(Input::Drain);
    let late = world.ask(&of("a"));
    assert_eq!(world.code(late), Some("draining"));
    world.complete(first, 100);
    assert!(world.ticket(second).is_some());
    world.feed(Input::Flush);
    assert_eq!(world.code(third), Some("draining"));
    assert_eq!(world.total().live(), super::world::vt(300));
}

#[test]
fn too_large_is_never_told_to_come_back() {
    let mut policy = policy();
    policy.pools[0].max_request_tokens = Limit::AtMost(Tokens::new(500));
    let mut world = World::new(policy);
    let huge = world.ask(&Ask { input: 501, output: 0, ..of("a") });
    assert_eq!(world.refusal(huge).map(|refusal| refusal.retry), Some(Retry::Never));
    let predicted = world.ask(&Ask { input: 500, output: 9_000, ..of("a") });
    assert!(world.ticket(predicted).is_some(), "a prediction alone is never too large for good");
}

#[test]
fn equal_inputs_give_equal_decisions() {
    let story = || {
        let mut policy = capped(QueueCaps { pool: requests(7), ..QueueCaps::default() });
        policy.classes[0].max_wait = Limit::AtMost(Span::from_secs(1));
        let mut world = World::new(policy);
        for n in 0..200u32 {
            world.now = at(f64::from(n) * 0.05);
            world.ask(&of(["a", "b", "c"][n as usize % 3]));
            if n % 4 == 0 {
                world.serve(1);
            }
        }
        (world.events, world.engine.requests())
    };
    assert_eq!(story(), story());
}
