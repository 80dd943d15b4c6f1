//! The window: how much may be dispatched and unfinished.
//!
//! *Decides* whether the head of a pool may go now. *Formula:* `requests + 1 ≤ cap` and `tokens + need ≤ cap`,
//! where a request's need is its input plus reserved output, or what it has really produced where that is
//! more, counted for its whole life: its KV stays resident until the end. The caps are the policy's, or, where the
//! window is adaptive, the lower of those and of what [`adapt`] has found. *Bound:* the fairness bound is
//! `2 · max(w_in · L_in, w_out · M_g)`, and `M_g` is what this window lets be in flight: much larger than the
//! engine's memory destroys isolation, too small costs throughput. *At idle* a request larger than the whole
//! window runs alone, rather than never. *At overload* the head waits and nothing overtakes it, or a stream of
//! small requests would starve a large one. *Never* takes a slot back.

mod adapt;
mod looks;
mod reading;
mod silence;
mod unexplained;

use crate::policy::model;
use crate::units::{EngineGauges, Instant, Limit, Span, TicketId, Tokens, VirtualTokens};

pub(super) use adapt::Whole;
use adapt::{Adapt, InFlight};
pub(super) use silence::Opening;

/// What the window says of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowFound {
    /// Requests in flight.
    pub requests: u32,
    /// Their tokens.
    pub tokens: Tokens,
    /// How much may be in flight now.
    pub caps: model::Window,
    /// What the request would take of it.
    pub need: Tokens,
    /// Whether it may be dispatched now, were it its turn.
    pub fits: bool,
    /// Whether it is larger than the whole window, and so is dispatched only when nothing else is in flight.
    pub runs_alone: bool,
    /// Where the caps were found rather than written: how.
    pub adapted: Option<Adapted>,
}

/// What an adaptive window has found, as of its last change worth telling: of its tokens by an eighth, or of the
/// requests. Asked for rather than told, the requests are what they are among what is in flight now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Tokens that may be in flight, before the policy's own cap.
    pub tokens: Tokens,
    /// Requests that may be in flight without having begun to answer.
    pub waiting: u32,
    /// Why it changed.
    pub cause: Cause,
    /// When.
    pub at: Instant,
}

/// Why an adaptive window changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// It has not yet: this is where it starts.
    Start,
    /// It held requests back and the engine began all it had.
    RoomLeft,
    /// The engine began others and passed requests over: it is full.
    PassedOver,
    /// Answers took longer than their length explains.
    Unexplained,
    /// The engine said that requests wait in its queue that are not seen to.
    EngineQueue,
    /// The engine said that it pushed requests out of its memory.
    Preempted,
}

impl Cause {
    /// Its name in metrics and the admin API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::RoomLeft => "room_left",
            Self::PassedOver => "passed_over",
            Self::Unexplained => "unexplained",
            Self::EngineQueue => "engine_queue",
            Self::Preempted => "preempted",
        }
    }

    /// What happened, to be read after "because".
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Start => "it has only started",
            Self::RoomLeft => "the engine had begun everything it was given while more waited here",
            Self::PassedOver => "the engine was full and let requests wait",
            Self::Unexplained => "answers took longer than their length explains",
            Self::EngineQueue => "the engine said that requests wait in its queue",
            Self::Preempted => "the engine pushed requests out of its memory",
        }
    }
}

/// An adaptive window as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adapted {
    /// What it has found.
    pub found: Found,
    /// The mean time of an answer from dispatch to its end, by which it adapts.
    pub period: Span,
    /// Whether nothing has begun or completed for two periods, so that it holds as it is.
    pub blind: bool,
}

/// What is in flight in one pool, against its caps.
#[derive(Debug)]
pub(super) struct Window {
    caps: model::Window,
    adapt: Option<Adapt>,
    requests: u32,
    tokens: Tokens,
    service: VirtualTokens,
    peak: VirtualTokens,
    now: Instant,
}

impl Window {
    pub(super) fn new(caps: model::Window, adapts: model::Adapt) -> Self {
        let adapt = match adapts {
            model::Adapt::Fixed => None,
            model::Adapt::Auto => Some(Adapt::new()),
        };
        Self {
            caps,
            adapt,
            requests: 0,
            tokens: Tokens::ZERO,
            service: VirtualTokens::ZERO,
            peak: VirtualTokens::ZERO,
            now: Instant::EPOCH,
        }
    }

    /// Time passes. To be called before anything changes.
    pub(super) fn step(&mut self, now: Instant) {
        self.now = now;
        let flying = self.in_flight();
        if let Some(adapt) = &mut self.adapt {
            let most = self.caps.tokens.cap().unwrap_or(Tokens::new(u64::MAX));
            adapt.step(now, flying, most);
        }
    }

    /// The caps that hold now.
    pub(super) fn caps(&self) -> model::Window {
        let Some(adapt) = &self.adapt else { return self.caps };
        let tokens = adapt.tokens();
        let requests = adapt.requests(self.now, self.in_flight());
        model::Window {
            tokens: Limit::AtMost(self.caps.tokens.cap().map_or(tokens, |most| most.min(tokens))),
            requests: Limit::AtMost(self.caps.requests.cap().map_or(requests, |most| most.min(requests))),
        }
    }

    /// Whether a request of this size may be dispatched now.
    pub(super) fn fits(&self, need: Tokens) -> bool {
        if self.requests == 0 {
            return self.caps.requests.allows(1);
        }
        let caps = self.caps();
        caps.requests.allows(self.requests.saturating_add(1)) && caps.tokens.allows(self.tokens + need)
    }

    /// What is in flight, against the caps, for a request of this size.
    pub(super) fn found(&self, need: Tokens) -> WindowFound {
        let caps = self.caps();
        WindowFound {
            requests: self.requests,
            tokens: self.tokens,
            caps,
            need,
            fits: self.fits(need),
            runs_alone: !caps.tokens.allows(need),
            adapted: self.adapted(),
        }
    }

    /// The room no request has, and all there is; where tokens are what is short, and not requests.
    pub(super) fn free_tokens(&self) -> Option<(Tokens, Tokens)> {
        let caps = self.caps();
        let one_more = caps.requests.allows(self.requests.saturating_add(1));
        let all = caps.tokens.cap().filter(|_| one_more)?;
        Some((all.saturating_sub(self.tokens), all))
    }

    /// A request of this size heads the queue and was not let go, or nothing is held back.
    pub(super) fn held(&mut self, need: Option<Tokens>) {
        let (now, flying) = (self.now, self.in_flight());
        // What the policy's own caps hold back says nothing of the engine.
        let allows = |need: &Tokens| {
            self.caps.requests.allows(self.requests.saturating_add(1)) && self.caps.tokens.allows(self.tokens + *need)
        };
        let need = need.filter(allows);
        if let Some(adapt) = &mut self.adapt {
            adapt.held(now, flying, need);
        }
    }

    /// The engines of the pool said this of their load, which may be relied on for so long.
    pub(super) fn read(&mut self, gauges: &EngineGauges, fresh: Span) {
        let flying = self.in_flight();
        if let Some(adapt) = &mut self.adapt {
            adapt.read(self.now, flying, gauges, fresh);
        }
    }

    /// Whether it finds its caps itself.
    pub(super) fn adapts(&self) -> bool {
        self.adapt.is_some()
    }

    /// When time alone would let a request of this size go.
    pub(super) fn opens_at(&self, need: Tokens) -> Option<Instant> {
        self.adapt.as_ref().and_then(|adapt| adapt.opens_at(self.now, self.in_flight(), need))
    }

    pub(super) fn take(&mut self, ticket: TicketId, opening: Opening, service: VirtualTokens) {
        let flying = self.in_flight();
        if let Some(adapt) = &mut self.adapt {
            adapt.dispatched(self.now, flying, ticket, opening);
        }
        self.requests += 1;
        self.count(opening.need(), service);
    }

    /// A request in flight has produced something, and needs this much more than was counted for it.
    pub(super) fn grow(&mut self, ticket: TicketId, need: Tokens, service: VirtualTokens) {
        self.count(need, service);
        let flying = self.in_flight();
        if let Some(adapt) = &mut self.adapt {
            adapt.progressed(self.now, ticket, flying);
        }
    }

    fn count(&mut self, need: Tokens, service: VirtualTokens) {
        self.tokens += need;
        self.service += service;
        self.peak = self.peak.max(self.service);
    }

    /// A request in flight ended; `whole` where its answer came to its end.
    pub(super) fn release(&mut self, ticket: TicketId, opening: Opening, service: VirtualTokens, whole: Option<Whole>) {
        self.requests -= 1;
        self.tokens = self.tokens.saturating_sub(opening.need());
        self.service -= service;
        let flying = self.in_flight();
        if let Some(adapt) = &mut self.adapt {
            adapt.ended(self.now, ticket, opening, whole, flying);
        }
    }

    /// What must hold whatever happened.
    #[cfg(test)]
    pub(super) fn audit(&self) -> Result<(), String> {
        let Some(adapt) = &self.adapt else { return Ok(()) };
        adapt.audit(self.in_flight())
    }

    fn in_flight(&self) -> InFlight {
        InFlight { requests: self.requests, tokens: self.tokens }
    }

    /// A change of what it has found that was not told yet.
    pub(super) fn take_news(&mut self) -> Option<Found> {
        self.adapt.as_mut().and_then(Adapt::take_news)
    }

    pub(super) fn requests(&self) -> u32 {
        self.requests
    }

    pub(super) fn tokens(&self) -> Tokens {
        self.tokens
    }

    /// The most service ever in flight at once: `w_out · M_g` of the bound, or more.
    pub(super) fn peak(&self) -> VirtualTokens {
        self.peak
    }

    /// What it has found, where it adapts.
    pub(super) fn adapted(&self) -> Option<Adapted> {
        let adapt = self.adapt.as_ref()?;
        let blind = adapt.is_blind(self.now, self.in_flight());
        let found = Found { waiting: adapt.may_wait(self.in_flight()), ..adapt.told() };
        Some(Adapted { found, period: adapt.period(), blind })
    }
}

#[cfg(test)]
mod tests;
