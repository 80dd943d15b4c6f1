//! The flow of money: every moment and every ending.

use super::world::{Ask, World, at, of, policy, vt};
use crate::admission::{Event, Outcome, Reported};
use crate::policy::model::Charge;
use crate::units::{Tokens, Usage, VirtualTokens};

fn plain(input: u64, output: u64) -> Usage {
    Usage::plain(Tokens::new(input), Tokens::new(output))
}

/// One request, 100 in and 100 expected out, dispatched at once; then `story`; what it was settled for.
fn settled_for(charge: Charge, ask: &Ask, story: impl Fn(&mut World, crate::units::RequestId)) -> VirtualTokens {
    let mut policy = policy();
    policy.fairness.charge = charge;
    let mut world = World::new(policy);
    // Teach the pool its speed: 100 tokens in one second.
    let teacher = world.ask(&of("teacher"));
    world.at(1.0).progress(teacher, 1);
    world.at(2.0).complete(teacher, 100);
    let before = world.total();
    world.at(10.0);
    let request = world.ask(ask);
    assert_eq!(world.total().live(), vt(300), "input and expected output are held from arrival on");
    story(&mut world, request);
    let after = world.total();
    assert_eq!(after.live(), VirtualTokens::ZERO, "whatever the ending, nothing stays held");
    assert_eq!(after.reserved, after.settled + after.refunded);
    // At rest, what the counter was charged is what was settled.
    let charged: VirtualTokens = world
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Charged { request: id, amount, .. } if *id == request => Some(*amount),
            _ => None,
        })
        .sum();
    assert_eq!(charged, after.settled - before.settled, "the counter follows the books");
    charged
}

#[test]
fn every_ending_settles_as_the_table_says() {
    let modes = [Charge::Predicted, Charge::Streamed, Charge::Completion];
    type Story = Box<dyn Fn(&mut World, crate::units::RequestId)>;
    let end = |secs: f64, output: Option<u64>, outcome: Outcome, usage: Reported| -> Story {
        Box::new(move |world, request| {
            if let Some(output) = output {
                world.at(10.5).progress(request, output);
            }
            world.at(secs).end(request, outcome, usage);
        })
    };
    let rows: Vec<(&str, Story, u64)> = vec![
        ("shorter than expected", end(12.0, Some(40), Outcome::Completed, Reported::Final(plain(100, 40))), 180),
        ("longer than expected", end(12.0, Some(400), Outcome::Completed, Reported::Final(plain(100, 400))), 900),
        ("an explicit zero is zero", end(12.0, None, Outcome::Completed, Reported::Final(plain(100, 0))), 100),
        ("usage missing, counted", end(12.0, Some(70), Outcome::Completed, Reported::Counted(plain(100, 70))), 240),
        ("usage missing, not counted", end(12.0, None, Outcome::Completed, Reported::Nothing), 300),
        (
            "closed after the final event",
            end(12.0, None, Outcome::ClosedAfterFinal, Reported::Final(plain(90, 10))),
            110,
        ),
        ("client gone before the first token", end(13.0, None, Outcome::ClientAborted, Reported::Nothing), 100),
        // 0.5 s after the first token at 100 tokens a second is 50, more than the 20 counted.
        (
            "client gone, time says more",
            end(11.0, Some(20), Outcome::ClientAborted, Reported::Counted(plain(100, 20))),
            200,
        ),
        (
            "client gone, count says more",
            end(10.6, Some(80), Outcome::ClientAborted, Reported::Counted(plain(100, 80))),
            260,
        ),
        ("client gone, capped", end(60.0, Some(20), Outcome::ClientAborted, Reported::Nothing), 100 + 2 * 120),
        ("upstream failed before the first byte", end(11.0, None, Outcome::UpstreamFailed, Reported::Nothing), 0),
        (
            "upstream failed, input reported",
            end(11.0, None, Outcome::UpstreamFailed, Reported::Final(plain(100, 0))),
            100,
        ),
        ("upstream failed mid-stream", end(10.6, Some(30), Outcome::UpstreamFailed, Reported::Nothing), 160),
        ("timed out", end(11.5, Some(30), Outcome::TimedOut, Reported::Nothing), 300),
        ("a report beyond the cap", end(12.0, None, Outcome::Completed, Reported::Final(plain(100, 9_999_999))), 340),
        // A running usage in an early chunk is not the last word.
        (
            "client gone after an early report",
            end(10.6, Some(80), Outcome::ClientAborted, Reported::Final(plain(100, 0))),
            260,
        ),
        ("never sent upstream", end(10.1, None, Outcome::ClientAborted, Reported::Final(plain(0, 0))), 0),
        ("lost", end(99.0, None, Outcome::Lost, Reported::Nothing), 300),
        ("lost after exceeding the hold", end(99.0, Some(200), Outcome::Lost, Reported::Nothing), 500),
    ];
    for (name, story, expected) in rows {
        for mode in modes {
            let cost = settled_for(mode, &Ask { cap: Some(120), ..of("tenant") }, &story);
            assert_eq!(cost, vt(expected), "{name}, {mode:?}");
        }
    }
}

#[test]
fn an_unstreamed_abort_is_charged_by_time_since_dispatch() {
    let ask = Ask { streamed: false, ..of("tenant") };
    let cost = settled_for(Charge::Predicted, &ask, |world, request| {
        world.at(10.7).end(request, Outcome::ClientAborted, Reported::Nothing);
    });
    assert_eq!(cost, vt(100 + 2 * 70));
}

#[test]
fn an_answer_that_nobody_saw_is_charged_by_the_time_since_it_began() {
    use crate::admission::Input;
    let streamed = Ask { streamed: true, ..of("tenant") };
    for (began, outcome, output) in [
        (Some(10.3), Outcome::ClientAborted, 40),
        (Some(10.3), Outcome::UpstreamFailed, 40),
        // Before its dispatch nothing came, and after now nothing has.
        (Some(0.0), Outcome::TimedOut, 70),
        (Some(99.0), Outcome::ClientAborted, 0),
        // Nothing began, as far as is known.
        (None, Outcome::ClientAborted, 0),
    ] {
        let cost = settled_for(Charge::Predicted, &streamed, |world, request| {
            world.at(10.7);
            let ticket = world.ticket(request).expect("dispatched").id;
            if let Some(began) = began {
                world.feed(Input::Began { ticket, since: at(began) });
                // What is told later changes nothing.
                world.feed(Input::Began { ticket, since: at(10.0) });
            }
            world.end(request, outcome, Reported::Nothing);
        });
        assert_eq!(cost, vt(100 + 2 * output), "{began:?} {outcome:?}");
    }
    let failed = settled_for(Charge::Predicted, &streamed, |world, request| {
        world.at(10.7).end(request, Outcome::UpstreamFailed, Reported::Nothing);
    });
    assert_eq!(failed, vt(0), "an upstream that never began costs nothing");
}

#[test]
fn a_second_settlement_changes_nothing_and_is_reported() {
    let mut world = World::new(policy());
    let request = world.ask(&of("a"));
    let ticket = world.ticket(request).expect("dispatched").id;
    world.complete(request, 10);
    let (books, v) = (world.total(), world.engine.tenants());
    world.settle(ticket, Outcome::Completed, Reported::Final(plain(100, 999)));
    world.feed(crate::admission::Input::Progress { ticket, output: Tokens::new(5) });
    assert_eq!((world.total(), world.engine.tenants()), (books, v));
    let reports = world.events.iter().filter(|event| matches!(event, Event::UnknownTicket { .. })).count();
    assert_eq!(reports, 2);
}

#[test]
fn leaving_the_queue_releases_the_whole_hold() {
    let mut world = World::new(policy());
    let first = world.ask(&of("a"));
    let (cancelled, expired) = (world.ask(&of("b")), world.ask(&Ask { deadline: Some(5.0), ..of("c") }));
    assert_eq!(world.total().live(), vt(900));
    world.feed(crate::admission::Input::Cancel(cancelled));
    assert_eq!(world.total().live(), vt(600));
    world.tick(5.0);
    assert_eq!(world.code(expired), Some("expired"));
    assert_eq!(world.total().live(), vt(300));
    world.complete(first, 100);
    assert_eq!(world.total().refunded, vt(600));
    assert!(world.engine.tenants().is_empty(), "nobody owes anything, so nobody is remembered");
}

#[test]
fn streaming_charges_as_it_comes_and_prediction_up_front() {
    for (charge, at_dispatch, at_150) in
        [(Charge::Predicted, 300, 400), (Charge::Streamed, 100, 400), (Charge::Completion, 0, 0)]
    {
        let mut policy = policy();
        policy.fairness.charge = charge;
        let mut world = World::new(policy);
        let request = world.ask(&of("a"));
        assert_eq!(world.v("a"), vt(at_dispatch), "{charge:?}");
        world.progress(request, 150);
        assert_eq!(world.v("a"), vt(at_150), "{charge:?}");
        world.progress(request, 120);
        assert_eq!(world.v("a"), vt(at_150), "going backwards changes nothing");
    }
}

#[test]
fn the_window_follows_what_was_really_produced() {
    let mut world = World::new(policy());
    let request = world.ask(&of("a"));
    assert_eq!(world.engine.pools()[0].in_flight_tokens, Tokens::new(200));
    world.progress(request, 500);
    assert_eq!(world.engine.pools()[0].in_flight_tokens, Tokens::new(600));
    world.complete(request, 500);
    assert_eq!(world.engine.pools()[0].in_flight_tokens, Tokens::ZERO);
    assert_eq!(world.engine.pools()[0].peak_in_flight, vt(1_100));
}

#[test]
fn many_choices_of_one_tenant_do_not_make_anothers_abort_dear() {
    let ask = Ask { choices: 50, output: 5_000, ..of("many") };
    let mut world = World::new(policy());
    let many = world.ask(&ask);
    world.at(1.0).progress(many, 50);
    world.at(2.0).complete(many, 5_000);
    world.at(10.0);
    let request = world.ask(&of("one"));
    world.at(11.0).progress(request, 1);
    let before = world.total().settled;
    world.at(12.0).end(request, Outcome::ClientAborted, Reported::Nothing);
    assert_eq!(world.total().settled - before, vt(100 + 2 * 100), "one choice makes a hundred tokens a second");
}

#[test]
fn one_absurd_report_does_not_teach_the_pool_its_speed() {
    let mut world = World::new(policy());
    let absurd = world.ask(&of("absurd"));
    world.at(1.0).progress(absurd, 1);
    world.at(2.0).complete(absurd, u64::MAX);
    let request = world.ask(&of("other"));
    world.at(3.0).progress(request, 3);
    let before = world.total().settled;
    world.at(4.0).end(request, Outcome::UpstreamFailed, Reported::Nothing);
    assert_eq!(world.total().settled - before, vt(106));
}
