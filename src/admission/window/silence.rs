//! Requests in flight that have shown nothing yet: which wait for the engine, and which count no longer.
//!
//! *Decides* who counts as waiting in the engine's queue, for the adaptive window. A request counts from its dispatch to
//! its first output. One that has been silent for 32 mean silences is *late* and leaves its place to others; if one of
//! them, dispatched after it, then begins, it is *stalled*, does not wait, and counts no longer. Not counted at all are
//! answers that come in one piece, and streams of tenants whose streams do not show when they begin: there is a score
//! for each of 256 groups of tenants, by the hash of the name, +3 for a request that stalled or whose answer came
//! in one piece after all, -1 for one that showed its beginning in time, and from 4 on a group is not counted. *Bound:* one entry for every
//! request in flight, and the 256 scores. A tenant that stalls every request takes a place twice, for 32 mean silences
//! each. *Never* says what a request may do; whoever is not counted is still held by the window's tokens.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use crate::units::{Instant, Span, TenantId, TicketId, Tokens};

const GROUPS: usize = 256;
/// From this score on a group's streams do not say when they begin.
const MUTE: u8 = 4;
const MOST_SCORE: u8 = 8;
const AMISS: u8 = 3;
/// How many mean silences make a request late, and after what it is before one is known.
const PATIENCE: u64 = 32;
const FIRST_PATIENCE: Span = Span::from_secs(10);

/// Whether an answer will show when it begins, and whose it is.
#[derive(Clone, Copy, Debug)]
pub(in crate::admission) struct Opening {
    need: Tokens,
    streamed: bool,
    group: usize,
}

impl Opening {
    /// Of a request that is dispatched with this need.
    pub(in crate::admission) fn new(need: Tokens, streamed: bool, tenant: &TenantId) -> Self {
        // FNV-1a: what matters is that it is the same everywhere.
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = tenant.as_str().bytes().fold(0xcbf2_9ce4_8422_2325, step);
        Self { need, streamed, group: usize::try_from(hash % GROUPS as u64).unwrap_or(0) }
    }

    pub(super) fn need(&self) -> Tokens {
        self.need
    }
}

/// What a request's output says of its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begun {
    /// It had begun before.
    Before,
    /// It begins now.
    Now {
        /// When it had been dispatched.
        dispatched: Instant,
    },
    /// Nothing: its beginning cannot be seen.
    Unseen,
}

/// Whoever is in flight and has shown nothing.
#[derive(Debug)]
pub(super) struct Silence {
    /// Those that count, in the order of dispatch.
    waiting: BTreeMap<TicketId, Silent>,
    waiting_tokens: Tokens,
    passed_tokens: Tokens,
    /// The newest of them that is late, and how many are.
    late_until: Option<TicketId>,
    late: u32,
    /// Those that do not count.
    ignored: BTreeMap<TicketId, Silent>,
    ignored_tokens: Tokens,
    mean: Option<Span>,
    scores: [u8; GROUPS],
}

#[derive(Clone, Copy, Debug)]
struct Silent {
    opening: Opening,
    dispatched: Instant,
    passed: bool,
}

impl Default for Silence {
    fn default() -> Self {
        Self {
            waiting: BTreeMap::new(),
            waiting_tokens: Tokens::ZERO,
            passed_tokens: Tokens::ZERO,
            late_until: None,
            late: 0,
            ignored: BTreeMap::new(),
            ignored_tokens: Tokens::ZERO,
            mean: None,
            scores: [0; GROUPS],
        }
    }
}

impl Silence {
    /// Requests that count as waiting for the engine and are not late.
    pub(super) fn waiting(&self) -> u32 {
        u32::try_from(self.waiting.len()).unwrap_or(u32::MAX).saturating_sub(self.late)
    }

    /// The tokens, at dispatch, of those that were passed over.
    pub(super) fn passed_tokens(&self) -> Tokens {
        self.passed_tokens
    }

    /// The tokens, at dispatch, of all that have shown nothing.
    pub(super) fn silent_tokens(&self) -> Tokens {
        self.waiting_tokens + self.ignored_tokens
    }

    /// Those of them that do not count, and their tokens at dispatch.
    pub(super) fn ignored(&self) -> (u32, Tokens) {
        (u32::try_from(self.ignored.len()).unwrap_or(u32::MAX), self.ignored_tokens)
    }

    pub(super) fn dispatched(&mut self, now: Instant, ticket: TicketId, opening: Opening) {
        let silent = Silent { opening, dispatched: now, passed: false };
        if opening.streamed && self.scores[opening.group] < MUTE {
            self.waiting_tokens += opening.need;
            self.waiting.insert(ticket, silent);
        } else {
            self.ignore(ticket, silent);
        }
    }

    fn ignore(&mut self, ticket: TicketId, silent: Silent) {
        self.ignored_tokens += silent.opening.need;
        self.ignored.insert(ticket, silent);
    }

    /// A request showed output.
    pub(super) fn showed(&mut self, now: Instant, ticket: TicketId) -> Begun {
        if let Some(Silent { opening, dispatched, .. }) = self.take_waiting(ticket) {
            self.timely(opening.group);
            self.learn(now.since(dispatched));
            return Begun::Now { dispatched };
        }
        match self.ignored.get(&ticket).copied() {
            None => Begun::Before,
            Some(silent) if silent.opening.streamed => {
                self.take_ignored(ticket);
                if now.since(silent.dispatched) < self.patience() {
                    self.timely(silent.opening.group);
                }
                Begun::Before
            }
            Some(_) => Begun::Unseen,
        }
    }

    /// A request ended, well or not. [`Begun::Before`] where it had been seen to begin.
    pub(super) fn ended(&mut self, ticket: TicketId) -> Begun {
        let unseen = self.take_waiting(ticket).or_else(|| self.take_ignored(ticket)).is_some();
        if unseen { Begun::Unseen } else { Begun::Before }
    }

    /// An answer that was to be streamed came in one piece: what looked like its beginning was its end.
    pub(super) fn hid_its_beginning(&mut self, opening: Opening) {
        if opening.streamed {
            self.amiss(opening.group);
        }
    }

    fn take_waiting(&mut self, ticket: TicketId) -> Option<Silent> {
        let silent = self.waiting.remove(&ticket)?;
        if self.late_until.is_some_and(|last| ticket <= last) {
            self.late -= 1;
        }
        self.waiting_tokens = self.waiting_tokens.saturating_sub(silent.opening.need);
        if silent.passed {
            self.passed_tokens = self.passed_tokens.saturating_sub(silent.opening.need);
        }
        Some(silent)
    }

    fn take_ignored(&mut self, ticket: TicketId) -> Option<Silent> {
        let silent = self.ignored.remove(&ticket)?;
        self.ignored_tokens = self.ignored_tokens.saturating_sub(silent.opening.need);
        Some(silent)
    }

    /// Whoever has been silent for too long leaves its place to others.
    pub(super) fn grow_late(&mut self, now: Instant) {
        while let Some((ticket, late_at)) = self.next_to_be_late()
            && late_at <= now
        {
            self.late_until = Some(ticket);
            self.late += 1;
        }
    }

    /// When the next will have been silent for too long.
    pub(super) fn next_late(&self) -> Option<Instant> {
        self.next_to_be_late().map(|(_, at)| at)
    }

    fn next_to_be_late(&self) -> Option<(TicketId, Instant)> {
        let mut timely = match self.late_until {
            Some(last) => self.waiting.range((Excluded(last), Unbounded)),
            None => self.waiting.range(..),
        };
        timely.next().map(|(ticket, silent)| (*ticket, silent.dispatched + self.patience()))
    }

    fn patience(&self) -> Span {
        self.mean.map_or(FIRST_PATIENCE, |mean| Span::from_nanos(mean.as_nanos().saturating_mul(PATIENCE)))
    }

    /// A request dispatched then has begun: whoever is late and was dispatched before does not wait for the engine.
    pub(super) fn overtake(&mut self, dispatched: Instant) {
        let Some(last) = self.late_until else { return };
        while let Some((ticket, oldest)) = self.waiting.first_key_value()
            && *ticket <= last
            && oldest.dispatched < dispatched
        {
            let ticket = *ticket;
            let Some(stalled) = self.take_waiting(ticket) else { return };
            self.amiss(stalled.opening.group);
            self.ignore(ticket, stalled);
        }
    }

    /// Whoever was dispatched by then and has not begun was passed over; says how many were for the first time.
    pub(super) fn pass_over(&mut self, by: Instant) -> u64 {
        let mut first = 0;
        for silent in self.waiting.values_mut().take_while(|silent| silent.dispatched <= by) {
            if !std::mem::replace(&mut silent.passed, true) {
                self.passed_tokens += silent.opening.need;
                first += 1;
            }
        }
        first
    }

    #[cfg(test)]
    pub(super) fn audit(&self, in_flight: u32) -> Result<(), String> {
        let sum = |of: &BTreeMap<TicketId, Silent>, passed: bool| -> Tokens {
            of.values().filter(|silent| silent.passed || !passed).map(|silent| silent.opening.need).sum()
        };
        let late = self.waiting.keys().filter(|ticket| self.late_until.is_some_and(|last| **ticket <= last)).count();
        let counted = (sum(&self.waiting, false), sum(&self.waiting, true), sum(&self.ignored, false), late);
        let kept = (self.waiting_tokens, self.passed_tokens, self.ignored_tokens, self.late as usize);
        if counted != kept || self.waiting.len() + self.ignored.len() > in_flight as usize {
            return Err(format!("counted {counted:?}, kept {kept:?}, {in_flight} in flight"));
        }
        Ok(())
    }

    fn amiss(&mut self, group: usize) {
        self.scores[group] = self.scores[group].saturating_add(AMISS).min(MOST_SCORE);
    }

    fn timely(&mut self, group: usize) {
        self.scores[group] = self.scores[group].saturating_sub(1);
    }

    fn learn(&mut self, silence: Span) {
        let known = self.mean.unwrap_or(silence).as_nanos();
        self.mean = Some(Span::from_nanos(known / 20 * 19 + silence.as_nanos() / 20));
    }
}
