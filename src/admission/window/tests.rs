//! The window against a toy engine: so many places, begun first come, first served, at every tenth step.

mod gauges;

use std::collections::VecDeque;

use proptest::prelude::*;

use super::{Cause, Opening, Whole, Window};
use crate::policy::model;
use crate::units::{EngineGauges, Instant, Limit, Span, TenantId, TicketId, Tokens, VirtualTokens};

const STEP: Span = Span::from_millis(20);
const LOOK: u64 = 10;
const NEED: Tokens = Tokens::new(100);
/// How long a reading of the engine's gauges may be relied on.
const FRESH: Span = Span::from_secs(5);
/// Steps of one answer, and of a stalled one until its client gives up.
const ANSWER: u64 = 100;
const GIVES_UP: u64 = 1_000;

fn caps(requests: Option<u32>, tokens: Option<u64>) -> model::Window {
    model::Window { tokens: tokens.map(Tokens::new).into(), requests: requests.into() }
}

fn opening(need: Tokens, streamed: bool, tenant: &str) -> Opening {
    Opening::new(need, streamed, &TenantId::from(tenant))
}

/// What a tenant's requests are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Honest,
    /// One piece, and said so.
    Plain,
    /// One piece, and not said so.
    Mute,
    /// They never begin.
    Stalls,
    /// They leave before they begin.
    Leaves,
}

struct Toy {
    window: Window,
    places: usize,
    /// After so many steps the engine looks at its queue.
    look: u64,
    /// Of so many requests one is of another kind.
    one_of: u64,
    /// After so many steps the engine says what its load is.
    reads: Option<u64>,
    /// What others have running and waiting there, for every one of ours.
    others: usize,
    step: u64,
    queue: VecDeque<(TicketId, Kind)>,
    running: Vec<(TicketId, Kind, u64)>,
    stalled: VecDeque<(TicketId, u64)>,
    tickets: u64,
    honest_ended: u64,
    /// Of the time there were any, the share of requests in flight that waited for a place.
    waited: (u64, u64),
}

impl Toy {
    fn new(places: usize, caps: model::Window) -> Self {
        Self {
            window: Window::new(caps, model::Adapt::Auto),
            places,
            look: LOOK,
            one_of: 4,
            reads: None,
            others: 0,
            step: 0,
            queue: VecDeque::new(),
            running: Vec::new(),
            stalled: VecDeque::new(),
            tickets: 0,
            honest_ended: 0,
            waited: (0, 0),
        }
    }

    fn now(&self) -> Instant {
        Instant::EPOCH + Span::from_nanos(STEP.as_nanos() * self.step)
    }

    /// One step of an engine whose clients always want more: one of so many requests is of `kind`, the others honest.
    fn advance(&mut self, kind: Kind) {
        self.step += 1;
        self.window.step(self.now());
        let step = self.step;
        let (ended, running) = std::mem::take(&mut self.running).into_iter().partition(|(_, _, ends)| *ends <= step);
        self.running = running;
        let ended: Vec<(TicketId, Kind, u64)> = ended;
        for (ticket, kind, _) in ended {
            self.end(ticket, kind);
        }
        for (ticket, kind, _) in self.running.clone() {
            if kind == Kind::Honest {
                self.window.grow(ticket, Tokens::ZERO, VirtualTokens::ZERO);
            }
        }
        while self.stalled.front().is_some_and(|(_, gives_up)| *gives_up <= step) {
            let (ticket, _) = self.stalled.pop_front().expect("looked at");
            self.window.release(ticket, opening(NEED, true, "other"), VirtualTokens::ZERO, None);
        }
        if step.is_multiple_of(self.look) {
            self.begin();
        }
        if self.reads.is_some_and(|every| step.is_multiple_of(every)) {
            self.window.read(&self.gauges(), FRESH);
        }
        self.dispatch(kind);
        let in_flight = u64::from(self.window.requests());
        self.waited = (self.waited.0 + self.queue.len() as u64, self.waited.1 + in_flight);
        self.window.audit().expect("sound");
    }

    fn end(&mut self, ticket: TicketId, kind: Kind) {
        self.honest_ended += u64::from(kind == Kind::Honest);
        let lasted = Span::from_nanos(STEP.as_nanos() * (ANSWER + LOOK));
        if kind == Kind::Mute {
            self.window.grow(ticket, Tokens::ZERO, VirtualTokens::ZERO);
        }
        let (silent, tenant) = match kind {
            Kind::Honest => (Span::from_nanos(STEP.as_nanos() * LOOK), "honest"),
            _ => (lasted, "other"),
        };
        let whole = Whole { lasted, silent, input: Tokens::new(1), output: Tokens::new(ANSWER) };
        self.window.release(ticket, opening(NEED, kind != Kind::Plain, tenant), VirtualTokens::ZERO, Some(whole));
    }

    fn gauges(&self) -> EngineGauges {
        let number = |count: usize| Some((count * (1 + self.others)) as u64);
        let (waiting, running) = (number(self.queue.len()), number(self.running.len()));
        EngineGauges { waiting, running, preemptions: Some(0), ..EngineGauges::default() }
    }

    fn begin(&mut self) {
        while self.running.len() < self.places {
            let Some((ticket, kind)) = self.queue.pop_front() else { return };
            if kind == Kind::Leaves {
                self.window.release(ticket, opening(NEED, true, "other"), VirtualTokens::ZERO, None);
                continue;
            }
            if kind == Kind::Honest {
                self.window.grow(ticket, Tokens::ZERO, VirtualTokens::ZERO);
            }
            self.running.push((ticket, kind, self.step + ANSWER));
        }
    }

    fn dispatch(&mut self, kind: Kind) {
        while self.window.fits(NEED) {
            self.tickets += 1;
            let kind = if self.tickets.is_multiple_of(self.one_of) { kind } else { Kind::Honest };
            let tenant = if kind == Kind::Honest { "honest" } else { "other" };
            let ticket = TicketId::new(self.tickets);
            self.window.take(ticket, opening(NEED, kind != Kind::Plain, tenant), VirtualTokens::ZERO);
            match kind {
                Kind::Stalls => self.stalled.push_back((ticket, self.step + GIVES_UP)),
                _ => self.queue.push_back((ticket, kind)),
            }
        }
        self.window.held(Some(NEED));
    }
}

#[test]
fn a_request_larger_than_the_window_runs_alone() {
    let mut window = Window::new(caps(Some(2), Some(10)), model::Adapt::Fixed);
    let (huge, small) = (Tokens::new(11), Tokens::new(1));
    let none = VirtualTokens::ZERO;
    assert!(window.fits(huge));
    window.take(TicketId::new(1), opening(huge, true, "a"), none);
    assert!(!window.fits(small));
    window.release(TicketId::new(1), opening(huge, true, "a"), none, None);
    window.take(TicketId::new(2), opening(small, true, "a"), none);
    assert!(!window.fits(huge) && window.fits(Tokens::new(9)) && !window.fits(Tokens::new(10)));
    window.take(TicketId::new(3), opening(small, true, "a"), none);
    assert!(!window.fits(small), "the third request exceeds the cap of two");
}

#[test]
fn it_finds_how_much_the_engine_takes_and_keeps_its_queue_short() {
    for places in [1, 4, 20, 100] {
        let mut toy = Toy::new(places, caps(None, None));
        (0..1_500).for_each(|_| toy.advance(Kind::Honest));
        toy.honest_ended = 0;
        toy.waited = (0, 0);
        (0..5_000).for_each(|_| toy.advance(Kind::Honest));
        let most = places as u64 * 5_000 / ANSWER;
        assert!(toy.honest_ended * 100 >= most * 88, "{places} places ended {} of {most}", toy.honest_ended);
        let (waited, all) = toy.waited;
        // With one place, somebody always waits for it.
        let allowed = if places < 20 { 51 } else { 12 };
        assert!(waited * 100 <= all * allowed, "{places} places: {waited} of {all} waited");
    }
}

#[test]
fn an_engine_that_was_overfilled_once_is_not_left_empty_after() {
    for places in [40, 100, 200] {
        let mut toy = Toy::new(places, caps(None, None));
        while toy.running.len() < places {
            toy.advance(Kind::Honest);
        }
        let mut least = places;
        for _ in 0..2_000 {
            toy.advance(Kind::Honest);
            least = least.min(toy.running.len());
        }
        assert!(least * 3 >= places * 2, "{least} of {places} run");
    }
}

/// How many may wait in the engine for its next look, once the latest is over.
fn room(toy: &mut Toy) -> u32 {
    toy.step += LOOK;
    toy.window.step(toy.now());
    let begun = toy.window.requests() - u32::try_from(toy.queue.len()).expect("few");
    toy.window.caps().requests.cap().expect("it adapts") - begun
}

#[test]
fn room_found_among_many_is_less_among_few_and_a_lull_loses_none() {
    let mut toy = Toy::new(200, caps(None, None));
    (0..3_000).for_each(|_| toy.advance(Kind::Honest));
    let (among, found) = (toy.window.requests(), room(&mut toy));
    assert!(found > 4, "{found} may wait among {among}");
    while toy.window.requests() > among / 10 {
        let (ticket, ..) = toy.running.pop().expect("most of them run");
        toy.window.release(ticket, opening(NEED, true, "honest"), VirtualTokens::ZERO, None);
    }
    let fewer = room(&mut toy);
    assert!(fewer <= found / 4, "{fewer} of {found} for a tenth");
    while toy.window.requests() < among {
        toy.tickets += 1;
        let ticket = TicketId::new(toy.tickets);
        toy.window.take(ticket, opening(NEED, false, "plain"), VirtualTokens::ZERO);
    }
    assert_eq!(room(&mut toy), found, "nothing was seen meanwhile");
}

#[test]
fn whoever_stalls_leaves_or_shows_nothing_neither_closes_it_nor_opens_it_without_bound() {
    for kind in [Kind::Plain, Kind::Mute, Kind::Stalls, Kind::Leaves] {
        let mut toy = Toy::new(20, caps(None, None));
        (0..5_000).for_each(|_| toy.advance(kind));
        toy.honest_ended = 0;
        let mut most = Tokens::ZERO;
        for _ in 0..10_000 {
            toy.advance(kind);
            most = most.max(toy.window.tokens());
        }
        // What is there for the honest: three quarters, but of the places where the other's do not take any.
        let share = if matches!(kind, Kind::Stalls | Kind::Leaves) { 20 } else { 15 };
        let fair = share * 10_000 / ANSWER;
        assert!(toy.honest_ended * 100 >= fair * 80, "{kind:?}: the honest got {} of {fair}", toy.honest_ended);
        // Stalled requests are in flight too until they give up: a third of what the honest send in that time.
        let stalled = if kind == Kind::Stalls { 20 * GIVES_UP / ANSWER / 3 } else { 0 };
        let bound = NEED.times(2 * (20 + stalled));
        assert!(most <= bound, "{kind:?}: {most} tokens in flight, at most {bound}");
    }
}

#[test]
fn it_holds_while_it_is_blind() {
    let mut toy = Toy::new(20, caps(None, None));
    (0..1_500).for_each(|_| toy.advance(Kind::Honest));
    let (before, blind) = (toy.window.caps().tokens, toy.window.adapted().expect("adapts").blind);
    assert!(!blind);
    toy.window.step(toy.now() + Span::from_secs(60));
    toy.window.held(Some(Tokens::new(1_000_000)));
    let held = toy.window.caps().tokens;
    toy.window.step(toy.now() + Span::from_secs(600));
    assert!(toy.window.adapted().expect("adapts").blind);
    assert_eq!(toy.window.caps().tokens, held, "nothing is known, so nothing changes");
    assert!(held.cap() >= before.cap().map(|tokens| Tokens::new(tokens.get() / 2)), "{before:?} became {held:?}");
}

#[test]
fn the_policys_caps_bound_it_and_what_they_hold_back_teaches_nothing() {
    let mut toy = Toy::new(20, caps(Some(5), Some(700)));
    for _ in 0..3_000 {
        toy.advance(Kind::Honest);
        assert!(toy.window.requests() <= 5 && toy.window.tokens() <= Tokens::new(700));
    }
    assert_eq!(toy.window.requests(), 5);
    assert!(toy.window.adapted().expect("adapts").found.waiting <= 20, "it does not wind up");
}

#[test]
fn a_change_is_told_with_its_cause() {
    let mut toy = Toy::new(20, caps(None, None));
    let mut causes = std::collections::BTreeSet::new();
    for _ in 0..1_500 {
        toy.advance(Kind::Honest);
        causes.extend(toy.window.take_news().map(|found| found.cause));
    }
    assert!(causes.contains(&Cause::RoomLeft) && causes.contains(&Cause::PassedOver), "{causes:?}");
    assert!(!causes.contains(&Cause::Start));
}

#[derive(Clone, Debug)]
enum Op {
    Take { need: u64, streamed: bool, tenant: u8 },
    Grow(usize, u64),
    End(usize, Option<(u64, u64)>),
    Held(Option<u64>),
    Read([Option<u64>; 3], u64),
    Wait(u64),
}

fn count() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..50u64, 1 => any::<u64>()]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1..5_000u64, any::<bool>(), 0..4u8).prop_map(|(need, streamed, tenant)| Op::Take { need, streamed, tenant }),
        6 => (any::<usize>(), 0..50u64).prop_map(|(which, more)| Op::Grow(which, more)),
        3 => (any::<usize>(), proptest::option::of((0..u64::MAX, 0..u64::MAX))).prop_map(|(which, whole)| Op::End(which, whole)),
        2 => proptest::option::of(1..10_000u64).prop_map(Op::Held),
        2 => (proptest::array::uniform3(proptest::option::of(count())), 0..20_000u64)
            .prop_map(|(counts, fresh)| Op::Read(counts, fresh)),
        6 => prop_oneof![0..50u64, 0..60_000u64].prop_map(Op::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_it_lets_one_through_and_never_more_than_the_policy(
        requests in proptest::option::of(1..50u32),
        tokens in proptest::option::of(1..50_000u64),
        ops in prop::collection::vec(op(), 1..300),
    ) {
        let bound = caps(requests, tokens);
        let mut runs = [Window::new(bound, model::Adapt::Auto), Window::new(bound, model::Adapt::Auto)];
        let mut flying: Vec<(TicketId, Tokens)> = Vec::new();
        let mut now = Instant::EPOCH;
        for (number, op) in (1u64..).zip(&ops) {
            let one = &runs[0];
            let fits = match op { Op::Take { need, .. } => one.fits(Tokens::new(*need)), _ => false };
            let count = flying.len();
            let which = |which: usize| which % count.max(1);
            for window in &mut runs {
                play(window, op, number, fits, &flying, &mut now);
                window.audit().map_err(TestCaseError::fail)?;
            }
            match op {
                Op::Take { need, .. } if fits => flying.push((TicketId::new(number), Tokens::new(*need))),
                Op::Grow(at, more) if !flying.is_empty() => flying[which(*at)].1 += Tokens::new(*more),
                Op::End(at, _) if !flying.is_empty() => { flying.remove(which(*at)); }
                Op::Wait(millis) => now = now + Span::from_millis(*millis),
                _ => {}
            }
            let [one, other] = &runs;
            prop_assert_eq!((one.caps(), one.adapted()), (other.caps(), other.adapted()), "equal inputs, equal windows");
            prop_assert!(!flying.is_empty() || one.fits(Tokens::new(1_000_000)), "with nothing in flight one may go");
            let caps = one.caps();
            prop_assert!(caps.requests.cap().is_some_and(|most| most >= 1));
            prop_assert!(bound.requests.cap().is_none_or(|most| caps.requests.cap() <= Some(most)));
            prop_assert!(bound.tokens.cap().is_none_or(|most| caps.tokens.cap() <= Some(most)));
            prop_assert!(bound.requests.cap().is_none_or(|most| one.requests() <= most));
        }
    }
}

fn play(window: &mut Window, op: &Op, number: u64, fits: bool, flying: &[(TicketId, Tokens)], now: &mut Instant) {
    let none = VirtualTokens::ZERO;
    match *op {
        Op::Take { need, streamed, tenant } if fits => {
            let opening = opening(Tokens::new(need), streamed, &format!("tenant-{tenant}"));
            window.take(TicketId::new(number), opening, none);
        }
        Op::Grow(at, more) if !flying.is_empty() => window.grow(flying[at % flying.len()].0, Tokens::new(more), none),
        Op::End(at, whole) if !flying.is_empty() => {
            let (ticket, need) = flying[at % flying.len()];
            let whole = whole.map(|(lasted, output)| Whole {
                lasted: Span::from_nanos(lasted),
                silent: Span::from_nanos(lasted / 2),
                input: Tokens::new(lasted % 2_000_003),
                output: Tokens::new(output),
            });
            window.release(ticket, opening(need, true, "a"), none, whole);
        }
        Op::Held(need) => window.held(need.map(Tokens::new)),
        Op::Read([waiting, running, preemptions], fresh) => {
            let gauges = EngineGauges { waiting, running, preemptions, ..EngineGauges::default() };
            window.read(&gauges, Span::from_millis(fresh));
        }
        Op::Wait(millis) => window.step(*now + Span::from_millis(millis)),
        _ => {}
    }
}

#[test]
fn limits_are_kept_at_their_largest() {
    let mut window =
        Window::new(model::Window { tokens: Limit::Unlimited, requests: Limit::Unlimited }, model::Adapt::Auto);
    let most = Tokens::new(u64::MAX);
    window.take(TicketId::new(1), opening(most, true, "a"), VirtualTokens::ZERO);
    window.step(Instant::FAR);
    assert!(!window.fits(Tokens::new(1)));
    window.audit().expect("sound");
}

#[test]
fn of_those_dispatched_together_none_is_passed_over_when_the_first_begins_alone() {
    let at = |millis| Instant::EPOCH + Span::from_millis(1_000 + millis);
    let dispatched = |apart: u64| {
        let mut window = Window::new(caps(None, None), model::Adapt::Auto);
        let none = VirtualTokens::ZERO;
        for (ticket, millis) in [(1, 0), (2, apart)] {
            window.step(at(millis));
            window.take(TicketId::new(ticket), opening(NEED, true, "a"), none);
        }
        window.held(Some(NEED));
        for (ticket, millis) in [(1, 100), (2, 300)] {
            window.step(at(millis));
            window.grow(TicketId::new(ticket), Tokens::ZERO, none);
        }
        window.step(at(600));
        window.held(Some(NEED));
        window.adapted().expect("it adapts").found.cause
    };
    assert_ne!(dispatched(1), Cause::PassedOver, "an idle engine began the first before the other came");
    // The other way round: who came clearly before one that began was there, and was not taken.
    let mut window = Window::new(caps(None, None), model::Adapt::Auto);
    let none = VirtualTokens::ZERO;
    for (ticket, millis) in [(1, 0), (2, 50)] {
        window.step(at(millis));
        window.take(TicketId::new(ticket), opening(NEED, true, "a"), none);
    }
    window.step(at(100));
    window.grow(TicketId::new(2), Tokens::ZERO, none);
    window.step(at(300));
    window.held(None);
    assert_eq!(window.adapted().expect("it adapts").found.cause, Cause::PassedOver);
}
