//! What the engines of a pool say of their queue and memory: a second opinion for the adaptive window.
//!
//! *Decides* nothing; keeps how much of what is in flight waits in the engines' queues beyond what is seen to wait, how
//! much of it runs, and whether they have just pushed requests out of their memory. What shows when it begins is seen to
//! wait ([`silence`](super::silence)); an answer in one piece and one whose stream is held back on its way are not, and
//! stand in the engines' own count only. *Formula*, at every reading, n being what is in flight and h what of it does not
//! show when it begins:
//!
//! ```text
//! unseen = min(waiting · n / max(n, running + waiting) - those seen to wait, h)     share += (unseen / n - share) / 4
//! ran    = 21/20 · tokens of h · running / (running + waiting)                       by the latest reading
//! ```
//!
//! where others who use the same engines have their part of what waits there, and a reading catches requests that were
//! dispatched and not yet looked at, so that single ones say little. *Bound:* five numbers; where everything shows when it
//! begins nothing is unseen, however much others have waiting there; where nothing shows when it begins, an engine in which every request waits more than a fifteenth of its
//! time, however few there are, is left partly empty. *At start* there is no opinion, and neither is there once the latest
//! reading is older than the policy trusts. *Never* takes a lower count of preemptions for news: the engine has restarted.

use crate::units::{EngineGauges, Instant, Span, Tokens};

use super::adapt::InFlight;

const MICRO: u64 = 1_000_000;
/// How much of what is in flight may wait unseen when the engines are asked, in millionths; and half a request.
const TARGET: u64 = MICRO / 20;
/// A reading counts as one of so many.
const OF: u64 = 4;

/// What the engines have said of late.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// In millionths of what is in flight.
    unseen: Option<u64>,
    /// Of the tokens in flight that do not show when they begin, those that ran.
    ran: Tokens,
    preemptions: Option<u64>,
    preempted_at: Option<Instant>,
    fresh_until: Instant,
}

/// What is known of what is in flight when the engines are asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) flying: InFlight,
    /// Requests that are seen to wait.
    pub(super) waiting: u32,
    /// Those that do not show when they begin, and their tokens.
    pub(super) hidden: u32,
    pub(super) hidden_tokens: Tokens,
}

impl Reading {
    /// The engines said this, which may be relied on for so long. Says whether they pushed requests out of their memory
    /// since they last said how many.
    pub(super) fn read(&mut self, now: Instant, gauges: &EngineGauges, fresh: Span, known: Known) -> bool {
        if now > self.fresh_until {
            *self = Self::default();
        }
        self.fresh_until = now + fresh;
        let ran = gauges.running.zip(gauges.waiting).and_then(|(running, waiting)| {
            let ran = u128::from(known.hidden_tokens.get()) * u128::from(running) / 20 * 21;
            u64::try_from(ran.checked_div(u128::from(running) + u128::from(waiting))?).ok()
        });
        self.ran = Tokens::new(ran.unwrap_or(0));
        if let Some(waiting) = gauges.waiting.filter(|_| known.flying.requests > 0) {
            let n = u64::from(known.flying.requests);
            let there = waiting.saturating_add(gauges.running.unwrap_or(0)).max(n);
            let ours = u128::from(waiting) * u128::from(n) / u128::from(there);
            let ours = u64::try_from(ours).unwrap_or(n);
            let unseen = ours.saturating_sub(u64::from(known.waiting)).min(u64::from(known.hidden));
            let share = unseen * MICRO / n;
            let before = self.unseen.unwrap_or(share);
            self.unseen = Some(before / OF * (OF - 1) + share / OF);
        }
        let before = self.preemptions;
        self.preemptions = gauges.preemptions.or(before);
        let preempted = before.zip(gauges.preemptions).is_some_and(|(before, now)| now > before);
        if preempted {
            self.preempted_at = Some(now);
        }
        preempted
    }

    /// Of the tokens that do not show when they begin, how many ran when the engines were last asked; none where that is
    /// not known.
    pub(super) fn ran(&self, now: Instant) -> Tokens {
        if now <= self.fresh_until { self.ran } else { Tokens::ZERO }
    }

    /// By how much more waits in the engines' queues unseen than may, in millionths of what is in flight; nothing where that
    /// is not known, or not any more.
    pub(super) fn too_much(&self, now: Instant, flying: InFlight) -> Option<u64> {
        let half_of_one = MICRO / 2 / u64::from(flying.requests.max(1));
        self.unseen.filter(|_| now <= self.fresh_until).map(|unseen| unseen.saturating_sub(TARGET.max(half_of_one)))
    }

    /// Whether the engines have pushed a request out of their memory in the last while.
    pub(super) fn preempted_within(&self, now: Instant, span: Span) -> bool {
        self.preempted_at.is_some_and(|at| now.since(at) <= span)
    }
}
