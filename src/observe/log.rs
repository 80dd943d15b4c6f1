//! One structured line a decision: target `tallygate::decision`.
//!
//! Refusals are told at `info`, admissions and ends at `debug`. A flood of refusals must not become a flood of lines,
//! so at most [`Journal::LINES_PER_SECOND`] are written in any second and the rest are counted and told with the
//! next line. Names in them are at most as long as the door lets them be.

use tracing::{debug, info, warn};

use crate::admission::Event;
use crate::policy::Policy;
use crate::units::{DecisionId, Instant, Span};

/// Writes decision lines.
#[derive(Debug)]
pub struct Journal {
    epoch: u32,
    second: Instant,
    written: u32,
    withheld: u64,
}

impl Journal {
    /// The most lines in a second.
    pub const LINES_PER_SECOND: u32 = 200;

    /// A journal of this start of the process.
    #[must_use]
    pub fn new(epoch: u32) -> Self {
        Self { epoch, second: Instant::EPOCH, written: 0, withheld: 0 }
    }

    /// Whether a line may be written at this moment; `Some` tells how many were withheld since the last one.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if now.since(self.second) >= Span::from_secs(1) {
            self.second = now;
            self.written = 0;
        }
        if self.written >= Self::LINES_PER_SECOND {
            self.withheld += 1;
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.withheld))
    }

    /// Writes the line for an event, if it has one and there is room for it.
    pub fn write(&mut self, policy: &Policy, event: &Event) {
        match event {
            Event::Refused { at, waited, refusal } => {
                let Some(withheld) = self.admit(*at) else { return };
                let decision = DecisionId { epoch: self.epoch, request: refusal.request };
                let subject = &refusal.subject;
                let pool = &*policy.pools[subject.pool.index()].name;
                let class = &*policy.classes[subject.class.index()].name;
                let (tenant, reason) = (&subject.tenant, refusal.reason.code());
                info!(target: "tallygate::decision", %decision, pool, class, %tenant, reason,
                    waited_ms = waited.as_millis_up(), withheld, "refused: {}", refusal.reason);
            }
            Event::Dispatched { at, request, subject, waited, expected, .. } => {
                if !tracing::enabled!(target: "tallygate::decision", tracing::Level::DEBUG) {
                    return;
                }
                let Some(withheld) = self.admit(*at) else { return };
                let decision = DecisionId { epoch: self.epoch, request: *request };
                let pool = &*policy.pools[subject.pool.index()].name;
                let class = &*policy.classes[subject.class.index()].name;
                let tenant = &subject.tenant;
                debug!(target: "tallygate::decision", %decision, pool, class, %tenant,
                    waited_ms = waited.as_millis_up(), input = expected.input().get(),
                    predicted = expected.output().get(), withheld, "admitted");
            }
            Event::Settled { at, request, subject, outcome, usage, estimated, cost, lasted, .. } => {
                if !tracing::enabled!(target: "tallygate::decision", tracing::Level::DEBUG) {
                    return;
                }
                let Some(withheld) = self.admit(*at) else { return };
                let decision = DecisionId { epoch: self.epoch, request: *request };
                let (tenant, outcome) = (&subject.tenant, outcome.name());
                debug!(target: "tallygate::decision", %decision, %tenant, outcome, input = usage.input().get(),
                    output = usage.output().get(), estimated, %cost, lasted_ms = lasted.as_millis_up(), withheld,
                    "settled");
            }
            Event::UnknownTicket { at, ticket } => {
                let Some(withheld) = self.admit(*at) else { return };
                warn!(target: "tallygate::decision", %ticket, withheld, "a ticket that is not live was reported on");
            }
            Event::Breaker { at, pool, tenant, stage } => {
                let Some(withheld) = self.admit(*at) else { return };
                let pool = &*policy.pools[pool.index()].name;
                let tenant = tenant.as_ref().map(ToString::to_string).unwrap_or_default();
                let for_ms = stage.until().map(|until| until.since(*at).as_millis_up());
                warn!(target: "tallygate::decision", pool, %tenant, stage = stage.name(), for_ms, withheld,
                    "the breaker of an upstream");
            }
            Event::WindowMoved { at, pool, found } => {
                if !tracing::enabled!(target: "tallygate::window", tracing::Level::DEBUG) {
                    return;
                }
                let Some(withheld) = self.admit(*at) else { return };
                let pool = &*policy.pools[pool.index()].name;
                debug!(target: "tallygate::window", pool, tokens = found.tokens.get(), waiting = found.waiting,
                    cause = found.cause.name(), withheld, "the window moved");
            }
            Event::Queued { .. }
            | Event::Demoted { .. }
            | Event::Shadowed { .. }
            | Event::Hit { .. }
            | Event::Charged { .. }
            | Event::Vacated { .. }
            | Event::Cancelled { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Journal;
    use crate::units::{Instant, Span};

    #[test]
    fn a_flood_is_counted_instead_of_written() {
        let mut journal = Journal::new(1);
        let at = |millis: u64| Instant::EPOCH + Span::from_millis(millis);
        let written = (0..1_000).filter(|_| journal.admit(at(5_000)).is_some()).count();
        assert_eq!(written, Journal::LINES_PER_SECOND as usize);
        assert_eq!(journal.admit(at(5_999)), None);
        assert_eq!(journal.admit(at(6_000)), Some(801));
        assert_eq!(journal.admit(at(6_000)), Some(0));
    }
}
