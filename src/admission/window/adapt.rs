//! The adaptive window: how much the engine can take, found from what it lets us see.
//!
//! *Decides* two caps, each a bound on what one more dispatch may make true, and moves both with the evidence. *Source:*
//! our own, from trying some fifty rules on a model of an engine; AIMD, Gradient2 and Vegas either starve the engine or
//! let its queue grow, because an answer's time says how long it was and not how long it waited. What does say so is
//! *who has not begun*: the engine begins a burst of answers when it looks at its queue, and a request that was there
//! and was passed over has just seen that the engine is full.
//!
//! ```text
//! room   requests that may be dispatched without having begun          at a burst of k first outputs, L passed over
//!                                                                           for the first time:
//!          nobody was, and room held one back:   room += room · g · k/n     g = 1 until L > n/40 for once, then 1/3
//!          L > n/40:                             room -= L - n/40           and never below one
//!          with fewer than half in flight of those it was found among, in proportion less
//! hold   until the engine may look again ([`looks`](super::looks)) only one may be waiting for it
//! tokens in flight, K                                                       continuously, S = mean time of an answer:
//!          b > 1/100:                            K -= K · 2 (b - 1/100) · dt/S      b = passed-over tokens / tokens
//!          b = 0, and K held a request back:     K += K · a · dt/S                  a = 1 until L > n/40 for once, then
//!          K ≥ 1.02 × tokens of what has begun                              1/5, doubled for every S since anything was
//!                                                                           passed over but the first, to at most 1
//! ```
//!
//! where n is what is in flight and times are in nanoseconds, tokens in millionths, room in thousandths of a request.
//! Answers that come in one piece never show a beginning. For them b is the share of requests that the engine's gauges
//! say wait in its queue unseen ([`reading`](super::reading)), against a twentieth and half a request, and what they
//! say it ran of them, and a twentieth, counts as begun: were it not for that, an engine in which every request waits a
//! twentieth of its time, however few there are, would be left empty. A reading by which requests were pushed out of
//! its memory sets K to what has begun but for one of them, which is then the least it is for S, and a to 1/40 for 16
//! S. Where the gauges say nothing b is the part of an answer's time that its lengths do not explain
//! ([`unexplained`](super::unexplained)), against an eighth. Until b was first too much K grows by what completes, as
//! TCP's slow start does. *At start* K is a thousand tokens and at least half as much again as has begun. *Blind*, with
//! nothing begun or completed for two S, both caps hold. *Bound:* a step moves K by at most its half, but for
//! preemptions; what never begins stops counting ([`silence`](super::silence)), so nobody's stalled requests close the
//! window, and K grows only where it held a request back, so nobody opens it beyond what was dispatched. *Never* below
//! one request, nor above the policy's caps; failed and aborted answers teach nothing; no floating point, so equal
//! inputs give equal windows everywhere.

use crate::units::{EngineGauges, Instant, Span, TicketId, Tokens};

use super::looks::Looks;
use super::reading::{Known, Reading};
use super::silence::{Begun, Opening, Silence};
use super::unexplained::Unexplained;
use super::{Cause, Found};

/// What is in flight, as the window counts it.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    pub(super) requests: u32,
    pub(super) tokens: Tokens,
}

/// An answer that came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::admission) struct Whole {
    /// From dispatch to its end.
    pub(in crate::admission) lasted: Span,
    /// From dispatch to its first output; to its end where that came at once.
    pub(in crate::admission) silent: Span,
    /// What it read and had not cached.
    pub(in crate::admission) input: Tokens,
    /// What it produced, of one choice.
    pub(in crate::admission) output: Tokens,
}

impl Whole {
    /// Whether all of more than a few tokens came in one piece.
    fn came_at_once(&self) -> bool {
        self.output > FEW_TOKENS && self.lasted.saturating_sub(self.silent) <= BURST
    }
}

/// So many tokens may come at once without saying anything.
const FEW_TOKENS: Tokens = Tokens::new(8);
/// Tokens are kept in millionths and requests in thousandths.
const MICRO: u64 = 1_000_000;
const MILLI: u64 = 1_000;
/// Where K starts, and the most it becomes.
const FIRST_TOKENS: u64 = 1_000 * MICRO;
const MOST_TOKENS: u64 = 1_000_000_000_000 * MICRO;
/// Where the room starts, its least, and the most it becomes.
const FIRST_ROOM: u64 = 2 * MILLI;
const LEAST_ROOM: u64 = MILLI;
const MOST_ROOM: u64 = 1_000_000 * MILLI;
/// Of this many in flight one may be passed over.
const ONE_PASSED_OF: u64 = 40;
/// How much of the tokens may be passed over, and how much of an answer's time may be unexplained, in millionths.
const PASSED_TARGET: u64 = MICRO / 100;
const UNEXPLAINED_TARGET: u64 = MICRO / 8;
/// How fast K grows, in millionths for an S, for so many S after the engine pushed a request out of its memory.
const GROWTH_AFTER_PREEMPTION: u64 = MICRO / 40;
const HEEDED: u64 = 16;
/// How fast K falls for what is too much, and grows once the engine was seen full, in millionths for an S.
const FALL: u64 = 2;
const GROWTH: u64 = MICRO / 5;
/// First outputs this close together began together.
const BURST: Span = Span::from_millis(5);
/// The mean time of an answer before one is known, and the least it counts as.
const FIRST_LASTED: Span = Span::from_secs(1);
const LEAST_LASTED: Span = Span::from_millis(500);

/// The rule's state.
#[derive(Debug)]
pub(super) struct Adapt {
    silence: Silence,
    unexplained: Unexplained,
    reading: Reading,
    room: u64,
    /// Among how many in flight the room was found.
    room_among: u64,
    tokens: u64,
    lasted: Option<Span>,
    burst: Option<Burst>,
    /// When the latest burst began.
    burst_at: Option<Instant>,
    /// The engine's latest step of which there was output beside first ones, and the one before.
    output_at: Instant,
    output_before: Instant,
    looks: Looks,
    /// Whether too few tokens, or too little room, held a request back that would otherwise have gone.
    short_of_tokens: bool,
    short_of_room: bool,
    /// Whether the engine was ever seen full.
    seen_full: bool,
    passed_at: Instant,
    stepped_at: Instant,
    evidence_at: Instant,
    told: Found,
    news: Option<Found>,
}

/// First outputs that came together.
#[derive(Clone, Copy, Debug)]
struct Burst {
    at: Instant,
    /// How many.
    begun: u64,
    /// When the newest of them was dispatched.
    newest: Instant,
    /// The latest output before them: when the engine looked at its queue, or a little earlier.
    looked: Instant,
}

impl Adapt {
    pub(super) fn new() -> Self {
        let told =
            Found { tokens: Tokens::new(FIRST_TOKENS / MICRO), waiting: 2, cause: Cause::Start, at: Instant::EPOCH };
        Self {
            silence: Silence::default(),
            unexplained: Unexplained::default(),
            reading: Reading::default(),
            room: FIRST_ROOM,
            room_among: 0,
            tokens: FIRST_TOKENS,
            lasted: None,
            burst: None,
            burst_at: None,
            output_at: Instant::EPOCH,
            output_before: Instant::EPOCH,
            looks: Looks::default(),
            short_of_tokens: false,
            short_of_room: false,
            seen_full: false,
            passed_at: Instant::EPOCH,
            stepped_at: Instant::EPOCH,
            evidence_at: Instant::EPOCH,
            told,
            news: None,
        }
    }

    /// The mean time of an answer, from dispatch to its end: the period of adaptation.
    pub(super) fn period(&self) -> Span {
        self.lasted.unwrap_or(FIRST_LASTED).max(LEAST_LASTED)
    }

    /// Whether nothing has begun or completed for so long that nothing is known of the engine.
    pub(super) fn is_blind(&self, now: Instant, flying: InFlight) -> bool {
        flying.requests > 0 && now.since(self.evidence_at) > twice(self.period())
    }

    /// What was found, as of its last change worth telling.
    pub(super) fn told(&self) -> Found {
        self.told
    }

    /// The requests that may wait in the engine once it will look at its queue again.
    pub(super) fn may_wait(&self, flying: InFlight) -> u32 {
        whole(self.room(flying))
    }

    /// A change worth telling that was not told yet.
    pub(super) fn take_news(&mut self) -> Option<Found> {
        self.news.take()
    }

    /// The tokens that may be in flight.
    pub(super) fn tokens(&self) -> Tokens {
        Tokens::new(self.tokens / MICRO)
    }

    /// The requests that may be in flight now: what has begun, and the room for what has not.
    pub(super) fn requests(&self, now: Instant, flying: InFlight) -> u32 {
        let waiting = self.silence.waiting();
        let room = if self.holds_until(now, flying).is_some() { LEAST_ROOM } else { self.room(flying) };
        flying.requests.saturating_sub(waiting).saturating_add(whole(room))
    }

    /// The room there is among what is in flight. Where requests become longer fewer of them run, and as many fewer begin
    /// at a look of the engine; until it is found anew, what was found among many is too much for few.
    fn room(&self, flying: InFlight) -> u64 {
        let twice = 2 * u64::from(flying.requests.max(1));
        if twice >= self.room_among {
            return self.room;
        }
        (self.room * twice / self.room_among).max(LEAST_ROOM)
    }

    /// Time passes: K follows what is passed over, and what will not begin stops counting.
    pub(super) fn step(&mut self, now: Instant, flying: InFlight, most: Tokens) {
        let past = now.since(self.stepped_at).min(self.period());
        if past == Span::ZERO {
            return;
        }
        if let Some(burst) = self.burst.filter(|burst| now.since(burst.at) > BURST) {
            self.burst = None;
            self.judge(burst, flying);
        }
        self.silence.grow_late(now);
        if flying.requests > 0 && !self.is_blind(now, flying) {
            self.move_tokens(now, past, flying);
        }
        self.tokens = self.tokens.clamp(1, most.get().saturating_mul(MICRO).min(MOST_TOKENS));
        self.stepped_at = now;
    }

    fn move_tokens(&mut self, now: Instant, past: Span, flying: InFlight) {
        let passed = share(self.silence.passed_tokens(), flying.tokens).saturating_sub(PASSED_TARGET);
        let (unseen, cause) = self.unseen(now, flying);
        let too_much = passed.max(unseen);
        if too_much > 0 {
            self.tokens -= self.part(past, FALL * too_much).min(self.tokens / 2);
            self.note(now, if passed >= unseen { Cause::PassedOver } else { cause });
        } else if self.short_of_tokens && self.silence.passed_tokens() == Tokens::ZERO {
            self.tokens += self.part(past, self.growth(now, flying));
            self.note(now, Cause::RoomLeft);
        }
        let least = self.least_tokens(now, flying);
        if self.tokens < least {
            self.tokens = least;
            self.note(now, Cause::RoomLeft);
        }
    }

    /// How much too much waits in the engine without being seen to, and by what that is known: by what the engine says or,
    /// where it says nothing, by what the length of answers does not explain.
    fn unseen(&self, now: Instant, flying: InFlight) -> (u64, Cause) {
        match self.reading.too_much(now, flying) {
            Some(too_much) => (too_much, Cause::EngineQueue),
            None => (self.unexplained.share().saturating_sub(UNEXPLAINED_TARGET), Cause::Unexplained),
        }
    }

    /// The engines said this of their load, which may be relied on for so long.
    pub(super) fn read(&mut self, now: Instant, flying: InFlight, gauges: &EngineGauges, fresh: Span) {
        let (hidden, hidden_tokens) = self.silence.ignored();
        let known = Known { flying, waiting: self.silence.waiting(), hidden, hidden_tokens };
        let preempted = self.reading.read(now, gauges, fresh, known);
        if self.unseen(now, flying).0 > 0 {
            (self.seen_full, self.passed_at) = (true, now);
        }
        if preempted && !self.is_blind(now, flying) {
            self.seen_full = true;
            self.tokens = self.tokens.min(self.least_tokens(now, flying).max(1));
            self.note(now, Cause::Preempted);
        }
    }

    /// What K is at least, seeing what the engine has begun.
    fn least_tokens(&self, now: Instant, flying: InFlight) -> u64 {
        let seen = flying.tokens.saturating_sub(self.silence.silent_tokens()).get();
        let begun = seen.saturating_add(self.reading.ran(now).get());
        if self.reading.preempted_within(now, self.period()) {
            // One of them at least did not fit.
            let n = u64::from(flying.requests.max(1));
            return begun.saturating_mul(MICRO / 100 * 102) / n * (n - 1);
        }
        if self.seen_full || begun == 0 {
            return begun.saturating_mul(MICRO / 100 * 102);
        }
        let needs = 2 * (flying.tokens.get() / u64::from(flying.requests.max(1)));
        begun.saturating_mul(MICRO / 2 * 3).saturating_add(needs.saturating_mul(MICRO))
    }

    /// How fast K may grow, in millionths for an S.
    fn growth(&self, now: Instant, flying: InFlight) -> u64 {
        let period = self.period();
        let shows = self.burst_at.is_some_and(|at| now.since(at) <= twice(period));
        if !shows && self.reading.too_much(now, flying).is_none() {
            return if self.seen_full { GROWTH } else { 0 };
        }
        if !self.seen_full {
            return MICRO;
        }
        if self.reading.preempted_within(now, Span::from_nanos(period.as_nanos().saturating_mul(HEEDED))) {
            return GROWTH_AFTER_PREEMPTION;
        }
        let quiet = now.since(self.passed_at).as_nanos() / period.as_nanos();
        (GROWTH << quiet.saturating_sub(1).min(8)).min(MICRO)
    }

    /// K times so many millionths, for this part of an S.
    fn part(&self, past: Span, millionths: u64) -> u64 {
        let whole = u128::from(self.tokens) * u128::from(millionths) / u128::from(MICRO);
        let part = whole * u128::from(past.as_nanos()) / u128::from(self.period().as_nanos());
        u64::try_from(part).unwrap_or(u64::MAX / 2)
    }

    /// A burst is over: whoever was there and has not begun was passed over.
    fn judge(&mut self, burst: Burst, flying: InFlight) {
        let n = u64::from(flying.requests.max(1));
        self.silence.overtake(burst.newest);
        // Of those dispatched together the engine may have begun the first before the others came.
        let together = burst.newest.since(Instant::EPOCH).saturating_sub(BURST);
        // Each counts once: whoever stands in a full engine's queue is passed over at every look, which says nothing new.
        let first = self.silence.pass_over(burst.looked.max(Instant::EPOCH + together));
        let too_many = (first * MILLI).saturating_sub(n * MILLI / ONE_PASSED_OF);
        let any = self.silence.passed_tokens() > Tokens::ZERO;
        if any {
            self.passed_at = burst.at;
        }
        if too_many > 0 {
            self.seen_full = true;
            (self.room, self.room_among) = (self.room(flying).saturating_sub(too_many).max(LEAST_ROOM), n);
            self.note(burst.at, Cause::PassedOver);
        } else if !any && self.short_of_room {
            let gain = if self.seen_full { 3 } else { 1 };
            let room = self.room(flying);
            (self.room, self.room_among) = ((room + room / gain * burst.begun.min(n) / n).min(MOST_ROOM), n);
            self.note(burst.at, Cause::RoomLeft);
        }
        self.short_of_room = false;
    }

    /// Whether one more request would leave room for what has not begun.
    fn has_room(&self, now: Instant, flying: InFlight) -> bool {
        flying.requests < self.requests(now, flying)
    }

    fn has_tokens(&self, flying: InFlight, need: Tokens) -> bool {
        (flying.tokens + need).get().saturating_mul(MICRO) <= self.tokens
    }

    /// Until when only one may wait for the engine's next look.
    fn holds_until(&self, now: Instant, flying: InFlight) -> Option<Instant> {
        let until = self.burst_at? + self.looks.hold();
        (now < until && flying.requests > self.silence.waiting()).then_some(until)
    }

    /// The head was held back, or nothing was: is a cap too low?
    pub(super) fn held(&mut self, now: Instant, flying: InFlight, need: Option<Tokens>) {
        self.short_of_tokens = need.is_some_and(|need| !self.has_tokens(flying, need));
        if need.is_some()
            && !self.short_of_tokens
            && self.holds_until(now, flying).is_none()
            && !self.has_room(now, flying)
        {
            self.short_of_room = true;
        }
    }

    /// When time alone would let the head go.
    pub(super) fn opens_at(&self, now: Instant, flying: InFlight, need: Tokens) -> Option<Instant> {
        if flying.requests == 0 || !self.has_tokens(flying, need) || self.has_room(now, flying) {
            return None;
        }
        let look = self.holds_until(now, flying).filter(|_| self.silence.waiting() < self.may_wait(flying));
        let late = self.silence.next_late().map(|late| late.max(now + Span::from_nanos(1)));
        look.into_iter().chain(late).min()
    }

    pub(super) fn dispatched(&mut self, now: Instant, flying: InFlight, ticket: TicketId, opening: Opening) {
        if flying.requests == 0 {
            // An idle engine has nothing to show.
            self.evidence_at = now;
        }
        self.silence.dispatched(now, ticket, opening);
    }

    /// An answer in flight produced something.
    pub(super) fn progressed(&mut self, now: Instant, ticket: TicketId, flying: InFlight) {
        match self.silence.showed(now, ticket) {
            Begun::Before => self.went_on(now),
            Begun::Unseen => {}
            Begun::Now { dispatched } => self.begin(now, dispatched, flying),
        }
    }

    fn begin(&mut self, now: Instant, dispatched: Instant, flying: InFlight) {
        self.evidence_at = now;
        if let Some(burst) = &mut self.burst {
            burst.begun += 1;
            burst.newest = burst.newest.max(dispatched);
            return;
        }
        // An engine that begins some while it goes on with others shows both at once; it had looked a step earlier.
        let looked = if now.since(self.output_at) > BURST { self.output_at } else { self.output_before };
        if let Some(before) = self.burst_at
            && looked >= before
            && flying.requests > self.silence.waiting().saturating_add(1)
        {
            self.looks.learn(looked.since(before));
        }
        self.burst = Some(Burst { at: now, begun: 1, newest: dispatched, looked });
        self.burst_at = Some(now);
    }

    /// An answer that had begun went on.
    fn went_on(&mut self, now: Instant) {
        if now.since(self.output_at) > BURST {
            self.output_before = self.output_at;
            self.output_at = now;
        }
    }

    /// A request in flight ended; whole where its answer did.
    pub(super) fn ended(
        &mut self,
        now: Instant,
        ticket: TicketId,
        opening: Opening,
        whole: Option<Whole>,
        flying: InFlight,
    ) {
        let begun = self.silence.ended(ticket);
        if whole.is_some_and(|answer| answer.came_at_once()) {
            self.silence.hid_its_beginning(opening);
        }
        if begun == Begun::Before {
            self.went_on(now);
        }
        let Some(answer) = whole else { return };
        self.evidence_at = now;
        let known = self.lasted.unwrap_or(answer.lasted).as_nanos();
        self.lasted = Some(Span::from_nanos(known / 20 * 19 + answer.lasted.as_nanos() / 20));
        if begun == Begun::Before {
            return;
        }
        self.unexplained.learn(answer);
        if self.unseen(now, flying).0 > 0 {
            self.seen_full = true;
        } else if !self.seen_full && self.short_of_tokens {
            self.tokens = self.tokens.saturating_add(opening.need().get().saturating_mul(MICRO)).min(MOST_TOKENS);
            self.note(now, Cause::RoomLeft);
        }
    }

    #[cfg(test)]
    pub(super) fn audit(&self, flying: InFlight) -> Result<(), String> {
        let counts = self.room >= LEAST_ROOM && self.room <= MOST_ROOM && self.tokens > 0 && self.tokens <= MOST_TOKENS;
        if !counts {
            return Err(format!("out of bounds: {self:?}"));
        }
        self.silence.audit(flying.requests)
    }

    /// Remembers a change worth telling: by an eighth, or of the whole requests that may wait.
    fn note(&mut self, now: Instant, cause: Cause) {
        let (tokens, waiting) = (self.tokens(), whole(self.room));
        let apart = tokens.get().abs_diff(self.told.tokens.get());
        if apart > self.told.tokens.get() / 8 || waiting != self.told.waiting {
            self.told = Found { tokens, waiting, cause, at: now };
            self.news = Some(self.told);
        }
    }
}

fn whole(room: u64) -> u32 {
    u32::try_from(room / MILLI).unwrap_or(u32::MAX)
}

fn twice(span: Span) -> Span {
    span.saturating_add(span)
}

/// A part of a whole, in millionths.
fn share(part: Tokens, whole: Tokens) -> u64 {
    let share = u128::from(part.get()) * u128::from(MICRO) / u128::from(whole.get().max(1));
    u64::try_from(share).unwrap_or(MICRO).min(MICRO)
}
