//! Room that stands empty because the head of a pool does not fit it, and who pays for that.
//!
//! *Decides* what a request owes for having held a pool up. Nothing overtakes a head that does not fit, or large
//! requests would starve; so while it waits, the room that others leave stays empty. A request that then runs pays
//! for the service it gets. One that leaves instead (its deadline passes, its client goes, the upstream turns it
//! away for nothing) would have emptied the engine at no cost to its tenant, again and again. *Formula:*
//!
//! ```text
//! vacancy of a request = the sum, over the time it was a head that did not fit while others waited, of
//!                        free tokens / window tokens × R × time        R: the pool's measured service rate
//! charged in all       = max(what it is settled for, its vacancy)      on the fair counters alone
//! ```
//!
//! *Bound:* at most the most service that was ever in flight at once, which is what can be missing. A tenant can
//! thus waste its own share of the engine and no more. *At start* the rate is unknown and nobody owes. *Never*
//! touches the books, rates or budgets: an empty room is a matter between the tenants, not of money.

use crate::units::{ClassIndex, Instant, Tokens, VirtualTokens};

use super::circuit::Passage;
use super::pool::{Pool, Slots};
use super::tree::Slot;

/// A head that does not fit, and the room that stands empty before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vacancy {
    slot: Slot,
    since: Instant,
    free: Tokens,
    of: Tokens,
}

impl Pool {
    /// Charges the head that stood before empty room since the last step. To be called before anything changes.
    pub(super) fn count_vacancy(&mut self, now: Instant) {
        let Some(vacancy) = self.vacancy.take().filter(|vacancy| now > vacancy.since) else { return };
        // The pool's own rate: classes that had their backlogs one after the other were each served all of it.
        let Some(per_second) = self.drain.per_second(now) else { return };
        let (free, of) = (i128::from(vacancy.free.get()), i128::from(vacancy.of.get().max(1)));
        let nanos = i128::from(now.since(vacancy.since).as_nanos());
        let missing = per_second.as_micros().saturating_mul(nanos) / 1_000_000_000;
        let missing = VirtualTokens::from_micros(missing.saturating_mul(free) / of);
        let most = self.window.peak();
        let waiting = &mut self.tree.waiting[vacancy.slot];
        waiting.vacancy = (waiting.vacancy + missing).min(most);
    }

    /// Notes which head stands before empty room, if one does. To be called when all that fits was dispatched.
    pub(super) fn note_vacancy(&mut self, now: Instant) {
        // What the breaker holds back holds nobody up.
        let head = self.head().filter(|_| self.breaker.passage() == Passage::Open);
        self.vacancy = match (self.slots, head, self.window.free_tokens()) {
            (Slots::Window, Some(slot), Some((free, of))) if free > Tokens::ZERO && self.holds_others_up(slot) => {
                Some(Vacancy { slot, since: now, free, of })
            }
            _ => None,
        };
    }

    /// Whether somebody else could have a turn meanwhile: another tenant, or another session of the head's own.
    fn holds_others_up(&self, head: Slot) -> bool {
        let sessions = self.tree.tenants[self.tree.waiting[head].place.tenant].contest.eligible_count();
        let classes = (0u16..).take(self.tree.classes.len()).map(ClassIndex::new);
        let classes = classes.filter(|class| self.head_of(*class).is_some());
        let tenants: usize = classes.map(|class| self.tree.classes[class.index()].contest.eligible_count()).sum();
        sessions > 1 || tenants > 1
    }
}
