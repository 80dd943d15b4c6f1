//! Leave to send one request upstream, which cannot be lost.
//!
//! A permit is settled exactly once: by [`Permit::settle`], which consumes it, or when it is dropped on any other
//! path (the client left, the handler panicked, the connection broke), and then as aborted with what was counted so
//! far. One that ends before anything was sent upstream costs nothing, since nothing was produced.

use crate::admission::{Ending, Left, Outcome, Reported, Ticket};
use crate::observe::Source;
use crate::policy::model::Orca;
use crate::units::{Instant, PoolIndex, Span, Tokens, Usage, VirtualTokens};

use super::gate::Gate;

/// Leave to send one request upstream.
#[derive(Debug)]
pub struct Permit {
    gate: Gate,
    ticket: Ticket,
    pool: PoolIndex,
    expected: Usage,
    counted: Tokens,
    stage: Stage,
}

/// How far the request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing was sent upstream.
    Admitted,
    /// It was sent upstream.
    Sent,
    /// The answer began.
    Answering,
    /// It is settled.
    Settled,
}

impl Permit {
    pub(super) fn new(gate: Gate, (ticket, pool, expected): (Ticket, PoolIndex, Usage)) -> Self {
        Self { gate, ticket, pool, expected, counted: Tokens::ZERO, stage: Stage::Admitted }
    }

    /// How long the request had waited.
    #[must_use]
    pub fn waited(&self) -> Span {
        self.ticket.waited
    }

    /// What time it is, in seconds since 1970.
    #[must_use]
    pub fn unix_now(&self) -> f64 {
        let clock = self.gate.clock();
        clock.unix_seconds(clock.now())
    }

    /// What is left of the limits that concern it.
    #[must_use]
    pub fn left(&self) -> &Left {
        &self.ticket.left
    }

    /// What the request is expected to use.
    #[must_use]
    pub fn expected(&self) -> Usage {
        self.expected
    }

    /// The request goes upstream now; from here on it costs something.
    pub fn sent(&mut self) {
        if self.stage == Stage::Admitted {
            self.stage = Stage::Sent;
        }
    }

    /// The first byte of the answer is here.
    pub fn began(&mut self) {
        if self.stage == Stage::Sent {
            self.stage = Stage::Answering;
            self.gate.began(self.pool, &self.ticket);
        }
    }

    /// The answer has been coming since then, as others tell later. What was seen of it before stands.
    pub fn began_since(&mut self, since: Instant) {
        if self.stage == Stage::Sent {
            self.stage = Stage::Answering;
            self.gate.began_since(self.pool, &self.ticket, since);
        }
    }

    /// The answer has come to this much output, in all. Going backwards changes nothing.
    pub fn progress(&mut self, output: Tokens) {
        if output > self.counted {
            if self.counted == Tokens::ZERO {
                self.gate.first_token(self.ticket.request);
            }
            self.counted = output;
            self.gate.progress(self.ticket.id, output);
        }
    }

    /// In which form the engine is asked to report its load, if it is.
    #[must_use]
    pub fn load_asked(&self) -> Option<Orca> {
        self.gate.load_asked(self.pool)
    }

    /// The answer carried this load report.
    pub fn load_reported(&self, header: &str) {
        self.gate.load_reported(self.pool, header);
    }

    /// What a count of the answer's output comes to as usage, with the input as it was expected.
    #[must_use]
    pub fn counted(&self, visible: Tokens, reasoning: Tokens) -> Reported {
        Reported::Counted(Usage { reasoning_output: reasoning, ..self.expected.with_output(visible) })
    }

    /// From where it is known what the request used.
    pub fn used_from(&self, source: Source) {
        self.gate.metrics().used_from(source);
    }

    /// The upstream reported a usage that cannot be.
    pub fn disbelieved(&self) {
        self.gate.metrics().disbelieved(self.pool);
        tracing::warn!(
            decision = %self.gate.decision_of(self.ticket.request),
            "the upstream reports a usage that cannot be; the request is settled by estimate"
        );
    }

    /// Ends the request, and tells what it came to; nothing where the core is broken.
    #[allow(clippy::must_use_candidate, reason = "the settlement is the point, not what it came to")]
    pub fn settle(mut self, ending: Ending) -> Option<VirtualTokens> {
        self.end(ending)
    }

    fn end(&mut self, ending: Ending) -> Option<VirtualTokens> {
        if self.stage == Stage::Settled {
            return None;
        }
        let unsent = std::mem::replace(&mut self.stage, Stage::Settled) == Stage::Admitted;
        let usage = match ending.usage {
            // Nothing was produced, however long that took.
            Reported::Nothing | Reported::Counted(_) if unsent => Reported::Final(Usage::default()),
            told => told,
        };
        self.gate.settle(self.ticket.id, Ending { usage, ..ending })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let usage = self.counted(self.counted, Tokens::ZERO);
        self.end(Ending { outcome: Outcome::ClientAborted, usage, heard: None });
    }
}
