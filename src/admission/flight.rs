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
//! An abort therefore never costs zero, and walking away just before the end saves nothing. The upstream's word is
//! final for a complete answer only; of one that broke off it is what had been reported by then, and counts as
//! counted. A figure that is not the upstream's final word is marked as estimated. *The observed token rate* is the
//! pool's mean output tokens per second of one choice over recent complete answers; unknown until the first, and
//! then only what was counted is charged. *Never* below what was already seen of an answer that broke off, and never
//! above the request's cap: a report beyond it is evidence of a fault, not of work.

use std::num::NonZeroU32;

use crate::units::{Instant, Limit, Span, Tokens, Usage, VirtualTokens};

use super::limits::Holds;
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
    /// What it owes at least, for room that stood empty before it.
    pub(super) vacancy: VirtualTokens,
    /// What is held for it of rates and budgets.
    pub(super) holds: Holds,
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
        match (ending.outcome, ending.usage) {
            (Outcome::Completed | Outcome::ClosedAfterFinal, Reported::Final(usage)) => {
                let plausible = self.within_cap(usage);
                self.priced(plausible, plausible != usage)
            }
            (Outcome::Completed | Outcome::ClosedAfterFinal, Reported::Counted(usage)) => {
                self.priced(self.within_cap(usage), true)
            }
            (Outcome::Completed | Outcome::ClosedAfterFinal, Reported::Nothing) => {
                self.priced(self.request.expected, true)
            }
            (Outcome::Lost, _) => Bill { usage: self.request.expected, cost: self.reserved, estimated: true },
            (Outcome::UpstreamFailed, reported) if !self.has_begun(reported) => match reported {
                Reported::Final(usage) => self.priced(usage, false),
                Reported::Counted(_) | Reported::Nothing => self.priced(Usage::default(), false),
            },
            (Outcome::UpstreamFailed | Outcome::ClientAborted | Outcome::TimedOut | Outcome::Evicted, reported) => {
                self.broken_off(reported, now, speed)
            }
        }
    }

    /// The bill of an answer that broke off: what was reported or counted by then, or what time says.
    fn broken_off(&self, reported: Reported, now: Instant, speed: &Speed) -> Bill {
        // A door that never sent the request upstream says so: nothing was used and nothing seen.
        if reported == Reported::Final(Usage::default()) && self.output == Tokens::ZERO {
            return self.priced(Usage::default(), false);
        }
        let counted = match reported {
            Reported::Final(usage) | Reported::Counted(usage) => self.within_cap(usage),
            Reported::Nothing => self.so_far(),
        };
        self.priced(self.produced(counted, self.seen(reported), now, speed), true)
    }

    /// The most output that was reported, counted or told as progress.
    fn seen(&self, reported: Reported) -> Tokens {
        let reported = match reported {
            Reported::Final(usage) | Reported::Counted(usage) => self.within_cap(usage).output(),
            Reported::Nothing => Tokens::ZERO,
        };
        reported.max(self.output)
    }

    /// Whether anything of its answer came, as far as anybody has said.
    fn has_begun(&self, reported: Reported) -> bool {
        self.first_output_at.is_some() || self.seen(reported) != Tokens::ZERO
    }

    /// A report with no more output than the request's cap allows, or than was seen.
    fn within_cap(&self, usage: Usage) -> Usage {
        let Limit::AtMost(cap) = self.request.output_cap else { return usage };
        let most = cap.max(self.output);
        if usage.output() <= most {
            return usage;
        }
        let visible_output = usage.visible_output.min(most);
        Usage { visible_output, reasoning_output: most.saturating_sub(visible_output), ..usage }
    }

    fn priced(&self, usage: Usage, estimated: bool) -> Bill {
        Bill { usage, cost: self.request.price.cost(&usage), estimated }
    }

    /// Input as the door knows it, and the most that can have been produced by now.
    fn produced(&self, counted: Usage, seen: Tokens, now: Instant, speed: &Speed) -> Usage {
        let by_time = speed.tokens_in(self.producing(now)).times(u64::from(self.request.choices.get()));
        let capped = match self.request.output_cap {
            Limit::AtMost(cap) => by_time.min(cap),
            Limit::Unlimited => by_time,
        };
        let output = capped.max(seen);
        if counted.output() == output { counted } else { counted.with_output(output) }
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

/// Output tokens per second of one choice, over recent complete answers.
#[derive(Debug, Default)]
pub(super) struct Speed {
    tokens: u64,
    time: Span,
}

/// Halve the sums beyond this, so that old answers fade.
const MOST_TOKENS: u64 = 100_000;

impl Speed {
    /// A complete answer of this much output, all choices together, took this long to produce.
    pub(super) fn learn(&mut self, output: Tokens, choices: NonZeroU32, producing: Span) {
        let output = output.get() / u64::from(choices.get());
        // One answer, however it is reported, never outweighs all before it.
        if output == 0 || producing == Span::ZERO || output > MOST_TOKENS {
            return;
        }
        self.tokens += output;
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
