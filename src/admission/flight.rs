//! Requests in flight, and what they are settled for.
//!
//! *Decides* what a dispatched request has cost so far and what it is settled for, which is the design's table
//! of the flow of money:
//!
//! ```text
//! completed            the usage reported, else counted, else expected
//! aborted, timed out,  the usage reported, else input + max(counted, elapsed × observed token rate),
//! evicted              at most the request's own cap
//! upstream failed      before the first byte what was reported, else nothing; after it, as aborted
//! lost                 what was held
//! ```
//!
//! An abort therefore never costs zero, and walking away just before the end saves nothing. A figure that is not
//! the upstream's word is marked as estimated. *The observed token rate* is the pool's mean output tokens per
//! second and stream over recent complete answers; unknown until the first, and then only what was counted is
//! charged. *Never* below what was already produced.

use crate::units::{Instant, Limit, Span, Tokens, Usage, VirtualTokens};

use super::request::Request;
use super::ticket::{Ending, Outcome, Reported, Ticket};
use super::tree::Place;

/// A request in flight.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) ticket: Ticket,
    pub(super) request: Box<Request>,
    pub(super) place: Place,
    pub(super) arrived_at: Instant,
    pub(super) deadline: Instant,
    /// The expected cost at dispatch, by which the class's share was reckoned.
    pub(super) expected_cost: VirtualTokens,
    /// What the fair counter was charged so far.
    pub(super) charged: VirtualTokens,
    /// What the books hold so far.
    pub(super) reserved: VirtualTokens,
    /// What the window counts so far, in tokens and in service.
    pub(super) need: Tokens,
    pub(super) service: VirtualTokens,
    /// Output seen so far.
    pub(super) output: Tokens,
    pub(super) first_output_at: Option<Instant>,
}

/// What a ticket is settled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bill {
    pub(super) usage: Usage,
    pub(super) cost: VirtualTokens,
    pub(super) estimated: bool,
}

impl Flight {
    /// What the request has used so far, as far as the door has said.
    pub(super) fn so_far(&self) -> Usage {
        self.request.expected.with_output(self.output)
    }

    /// What it is settled for.
    pub(super) fn bill(&self, ending: Ending, now: Instant, speed: &Speed) -> Bill {
        if let Reported::Final(usage) = ending.usage {
            return self.priced(usage, false);
        }
        let counted = match ending.usage {
            Reported::Counted(usage) => usage,
            Reported::Nothing | Reported::Final(_) => self.so_far(),
        };
        match ending.outcome {
            Outcome::Completed | Outcome::ClosedAfterFinal => match ending.usage {
                Reported::Counted(usage) => self.priced(usage, true),
                Reported::Nothing | Reported::Final(_) => self.priced(self.request.expected, true),
            },
            Outcome::UpstreamFailed if counted.output().max(self.output) == Tokens::ZERO => {
                self.priced(Usage::default(), false)
            }
            Outcome::UpstreamFailed | Outcome::ClientAborted | Outcome::TimedOut | Outcome::Evicted => {
                self.priced(self.produced(counted, now, speed), true)
            }
            Outcome::Lost => Bill { usage: self.request.expected, cost: self.reserved, estimated: true },
        }
    }

    fn priced(&self, usage: Usage, estimated: bool) -> Bill {
        Bill { usage, cost: self.request.price.cost(&usage), estimated }
    }

    /// Input as the door knows it, and the most that can have been produced by now.
    fn produced(&self, counted: Usage, now: Instant, speed: &Speed) -> Usage {
        let by_time = speed.tokens_in(self.producing(now));
        let seen = counted.output().max(self.output);
        let capped = match self.request.output_cap {
            Limit::AtMost(cap) => by_time.min(cap),
            Limit::Unlimited => by_time,
        };
        if capped > seen {
            counted.with_output(capped)
        } else if counted.output() == seen {
            counted
        } else {
            counted.with_output(seen)
        }
    }

    /// How long it has been producing output, as far as the door can tell.
    pub(super) fn producing(&self, now: Instant) -> Span {
        match (self.request.streamed, self.first_output_at) {
            (_, Some(since)) => now.since(since),
            (true, None) => Span::ZERO,
            (false, None) => now.since(self.ticket.dispatched_at),
        }
    }
}

/// Output tokens per second and stream, over recent complete answers.
#[derive(Debug, Default)]
pub(super) struct Speed {
    tokens: u64,
    time: Span,
}

/// Halve the sums beyond this, so that old answers fade.
const MOST_TOKENS: u64 = 100_000;

impl Speed {
    /// A complete answer of this much output took this long to produce.
    pub(super) fn learn(&mut self, output: Tokens, producing: Span) {
        if output == Tokens::ZERO || producing == Span::ZERO {
            return;
        }
        self.tokens = self.tokens.saturating_add(output.get());
        self.time = self.time.saturating_add(producing);
        if self.tokens > MOST_TOKENS {
            self.tokens /= 2;
            self.time = Span::from_nanos(self.time.as_nanos() / 2);
        }
    }

    fn tokens_in(&self, span: Span) -> Tokens {
        let nanos = u128::from(self.time.as_nanos());
        if nanos == 0 {
            return Tokens::ZERO;
        }
        let tokens = u128::from(self.tokens) * u128::from(span.as_nanos()) / nanos;
        Tokens::new(u64::try_from(tokens).unwrap_or(u64::MAX))
    }
}
