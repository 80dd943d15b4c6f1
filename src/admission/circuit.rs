//! One circuit: whether what stands behind it may be reached now, and how much of that at once.
//!
//! *Decides* nothing by itself: [`breaker`](super::breaker) has the rule, and one circuit for the pool and one for each
//! tenant that is held back by itself. Here is what each may be, and how it gets from one to the next.

use crate::units::{Instant, Limit, TenantId, TicketId};

/// How a pool's upstream is treated, or one tenant's requests to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerStage {
    /// Everything is let through.
    Serving,
    /// It served again, and so many may be in flight for now.
    Returning {
        /// How many, of those sent since.
        most: u32,
    },
    /// A budget at the upstream is spent: nothing is let through before this.
    Paused {
        /// Until when.
        until: Instant,
    },
    /// It failed: nothing is let through before this, and newcomers are refused.
    Tripped {
        /// Until when.
        until: Instant,
    },
    /// One request at a time is let through, to see how it goes.
    Probing,
}

impl BreakerStage {
    /// The words for all of them.
    pub const NAMES: [&'static str; 5] = ["serving", "returning", "paused", "tripped", "probing"];

    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::Returning { .. } => "returning",
            Self::Paused { .. } => "paused",
            Self::Tripped { .. } => "tripped",
            Self::Probing => "probing",
        }
    }

    /// Until when nothing changes by itself.
    #[must_use]
    pub const fn until(self) -> Option<Instant> {
        match self {
            Self::Paused { until } | Self::Tripped { until } => Some(until),
            Self::Serving | Self::Returning { .. } | Self::Probing => None,
        }
    }
}

/// What a pool's breaker lets through now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// Whoever is next.
    Open,
    /// One request, to see how it goes.
    OneProbe,
    /// Nobody.
    Shut,
}

/// A circuit has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shift {
    /// Whose it is; the pool's where it is no tenant's.
    pub(super) tenant: Option<TenantId>,
    pub(super) stage: BreakerStage,
}

/// Where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Serving { most: Limit<u32> },
    Paused { until: Instant, then: u32 },
    Tripped { until: Instant },
    Probing { probe: Option<TicketId> },
}

/// The pool's breaker, or one tenant's.
#[derive(Debug)]
pub(super) struct Circuit {
    pub(super) state: State,
    /// The first ticket since it last returned. What was sent before says nothing any more.
    pub(super) since: TicketId,
    /// What is in flight since then.
    pub(super) out: u32,
}

impl Circuit {
    pub(super) fn new(state: State) -> Self {
        Self { state, since: TicketId::new(0), out: 0 }
    }

    pub(super) fn stage(&self) -> BreakerStage {
        match self.state {
            State::Serving { most: Limit::Unlimited } => BreakerStage::Serving,
            State::Serving { most: Limit::AtMost(most) } => BreakerStage::Returning { most },
            State::Paused { until, .. } => BreakerStage::Paused { until },
            State::Tripped { until } => BreakerStage::Tripped { until },
            State::Probing { .. } => BreakerStage::Probing,
        }
    }

    pub(super) fn passage(&self) -> Passage {
        match self.state {
            State::Serving { most } if most.allows(self.out.saturating_add(1)) => Passage::Open,
            State::Probing { probe: None } => Passage::OneProbe,
            State::Serving { .. }
            | State::Probing { probe: Some(_) }
            | State::Paused { .. }
            | State::Tripped { .. } => Passage::Shut,
        }
    }

    pub(super) fn depart(&mut self, ticket: TicketId) {
        self.out += 1;
        if let State::Probing { probe } = &mut self.state {
            probe.get_or_insert(ticket);
        }
    }

    /// A request ended. Returns whether it was the probe, which there is none any more.
    pub(super) fn land(&mut self, ticket: TicketId) -> bool {
        if ticket >= self.since {
            self.out = self.out.saturating_sub(1);
        }
        self.give_up_probe(ticket)
    }

    pub(super) fn give_up_probe(&mut self, ticket: TicketId) -> bool {
        let is_probe = self.state == State::Probing { probe: Some(ticket) };
        if is_probe {
            self.state = State::Probing { probe: None };
        }
        is_probe
    }

    /// It returns: of what is sent from this ticket on so many may be in flight.
    pub(super) fn restart(&mut self, since: TicketId, out: u32, most: u32) {
        *self = Self { state: State::Serving { most: Limit::AtMost(most) }, since, out };
    }

    /// One more may be in flight. Returns whether it is whole now.
    pub(super) fn grow(&mut self, peak: u32) -> bool {
        let State::Serving { most: Limit::AtMost(most) } = self.state else { return false };
        let whole = most >= peak;
        self.state =
            State::Serving { most: if whole { Limit::Unlimited } else { Limit::AtMost(most.saturating_add(1)) } };
        whole
    }

    pub(super) fn shrink(&mut self) {
        if let State::Serving { most: Limit::AtMost(most) } = self.state {
            self.state = State::Serving { most: Limit::AtMost((most / 2).max(1)) };
        }
    }

    /// What was to be until now is over: probing after a trip, returning after a pause. Returns whether it was.
    pub(super) fn turn(&mut self, now: Instant, next: TicketId) -> bool {
        match self.state {
            State::Tripped { until } if until <= now => self.state = State::Probing { probe: None },
            State::Paused { until, then } if until <= now => self.restart(next, 0, then),
            _ => return false,
        }
        true
    }
}
