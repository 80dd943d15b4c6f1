//! What the engine says of itself, beside what is seen of it.

use super::{Cause, FRESH, Kind, NEED, Toy, caps, opening};
use crate::units::{EngineGauges, Span, VirtualTokens};

#[test]
fn answers_in_one_piece_are_held_by_what_the_engine_says() {
    for (places, kind, others) in
        [(4, Kind::Plain, 0), (20, Kind::Plain, 0), (20, Kind::Mute, 0), (20, Kind::Plain, 3), (100, Kind::Plain, 0)]
    {
        // An engine that lets each wait for less than a twentieth, read never twice at the same moment between two looks.
        let mut toy = Toy { look: 5, one_of: 1, reads: Some(47), others, ..Toy::new(places, caps(None, None)) };
        (0..3_000).for_each(|_| toy.advance(kind));
        toy.waited = (0, 0);
        let mut running = 0;
        for _ in 0..5_000 {
            toy.advance(kind);
            running += toy.running.len();
        }
        assert!(running * 100 >= places * 5_000 * 85, "{kind:?}: {running} of {} run", places * 5_000);
        let (waited, all) = toy.waited;
        // With four places, one that waits is a fifth of all.
        let allowed = if places < 20 { 30 } else { 15 };
        assert!(waited * 100 <= all * allowed, "{places} places, {kind:?}: {waited} of {all} waited");
    }
}

#[test]
fn an_engine_that_says_what_is_seen_anyway_changes_nothing() {
    for others in [0, 3] {
        let toy = |reads| Toy { reads, others, ..Toy::new(20, caps(None, None)) };
        let [mut told, mut untold] = [Some(30), None].map(toy);
        for _ in 0..3_000 {
            told.advance(Kind::Honest);
            untold.advance(Kind::Honest);
            assert_eq!(told.window.caps(), untold.window.caps(), "beside {others} others");
        }
    }
}

#[test]
fn what_the_engine_pushes_out_of_its_memory_leaves_room_for_all_that_has_begun_but_one() {
    let mut toy = Toy::new(20, caps(None, None));
    (0..1_500).for_each(|_| toy.advance(Kind::Honest));
    let tokens = |toy: &Toy| toy.window.caps().tokens.cap().expect("it adapts").get();
    for (ticket, ..) in toy.running.drain(10..).chain(toy.queue.drain(..).map(|(ticket, kind)| (ticket, kind, 0))) {
        toy.window.release(ticket, opening(NEED, true, "honest"), VirtualTokens::ZERO, None);
    }
    let mut preemptions = 7;
    let mut read = |toy: &mut Toy, more: u64| {
        preemptions += more;
        toy.window.read(&EngineGauges { preemptions: Some(preemptions), ..EngineGauges::default() }, FRESH);
    };
    let before = tokens(&toy);
    read(&mut toy, 0);
    read(&mut toy, 0);
    assert_eq!(tokens(&toy), before, "however many there were before it was first asked");
    for _ in 0..10 {
        read(&mut toy, 1);
        assert_eq!(tokens(&toy), 10 * NEED.get() * 102 / 100 * 9 / 10);
    }
    let found = toy.window.adapted().expect("it adapts").found;
    assert_eq!(found.cause, Cause::Preempted);
    toy.window.read(&EngineGauges { preemptions: Some(0), ..EngineGauges::default() }, FRESH);
    let period = toy.window.adapted().expect("it adapts").period;
    toy.window.step(toy.now() + period);
    assert_eq!(tokens(&toy), found.tokens.get(), "an engine that has started again pushes nothing out by that");
    toy.window.step(toy.now() + period + Span::from_millis(1));
    assert_eq!(tokens(&toy), 10 * NEED.get() * 102 / 100, "what has begun is the least again");
}
