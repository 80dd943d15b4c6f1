//! How a request is refused: what it is told, and what of that is remembered.
//!
//! *Decides* the time it is told, which is that of the rule that refused with jitter on top. Whoever was told one is
//! remembered twice: by the promises ([`promise`](super::promise)), so that there is room then, and by the retry budget
//! ([`retry`](super::retry)), so that coming back is no retry. *Never* decides whether a request is refused.

use rand::RngExt;

use crate::units::{Span, VirtualTokens};

use super::effect::{Effect, Verdict};
use super::engine::Engine;
use super::event::Event;
use super::order::Wait;
use super::promise::Kept;
use super::queue::Load;
use super::refusal::{Reason, Refusal, Retry};
use super::request::Request;
use super::tree::Waiting;

/// The most that is added to the time to come back.
const MOST_JITTER: Span = Span::from_secs(60);

impl Engine {
    pub(super) fn refuse_waiting(&mut self, waiting: &Waiting, reason: Reason, wait: Wait) {
        let retry = self.retry(self.after_shut(&waiting.request.subject, wait));
        self.promise(&waiting.request, waiting.cost, retry);
        let waited = self.now().since(waiting.arrived_at);
        self.refuse(&waiting.request, reason, retry, waited);
    }

    pub(super) fn refuse(&mut self, request: &Request, reason: Reason, retry: Retry, waited: Span) {
        let (tenant, now) = (&request.subject.tenant, self.now());
        let is_expected = !matches!(reason, Reason::RetryBudget { .. }) || self.retries.refused(tenant, now);
        match retry {
            Retry::At(due) if is_expected => self.retries.told(tenant, Some(due), now),
            Retry::Unknown if is_expected => self.retries.told(tenant, None, now),
            Retry::At(_) | Retry::Unknown | Retry::Never => {}
        }
        let left = self.left(request, 0);
        let (subject, request) = (request.subject.clone(), request.id);
        let refusal = Refusal { request, subject, reason, retry, left };
        self.emit(Event::Refused { at: self.now(), waited, refusal: refusal.clone() });
        self.effects.push(Effect::Answer { request, verdict: Verdict::Refused(refusal) });
    }

    /// Keeps room for a request that was told when to come back.
    pub(super) fn promise(&mut self, request: &Request, cost: VirtualTokens, retry: Retry) {
        if let Retry::At(due) = retry {
            let kept = Kept { load: Load::of(request.expected.total(), request.bytes), work: cost };
            let now = self.now();
            self.pools[request.subject.pool.index()].promises.give(&request.subject, now, due, kept);
        }
    }

    /// Upward jitter of up to a fifth of the wait and a second, and a minute at most, since clients add none of their own and would
    /// all come back at once.
    pub(super) fn retry(&mut self, wait: Wait) -> Retry {
        match wait {
            Wait::Forever => Retry::Never,
            Wait::Unknown => Retry::Unknown,
            Wait::For(span) => {
                let most = Span::from_nanos(span.as_nanos() / 5).saturating_add(Span::from_secs(1)).min(MOST_JITTER);
                let jitter = Span::from_nanos(self.rng.random_range(0..=most.as_nanos()));
                Retry::At(self.now() + span + jitter)
            }
        }
    }
}
