//! Classes: who is served before whom, and the share nobody may take.
//!
//! *Decides* which class of a pool is served next: the first, by rank, that is *owed*; if none is, the first
//! by rank that has an eligible request. *Formula:* while a class has an eligible request,
//!
//! ```text
//! D := clamp(D + min_share · service given by the pool − service given to the class, 0, most)
//! most = one window, or the cost of the class's head where that is more
//! owed when D ≥ the cost of its head, and D > 0
//! ```
//!
//! and, where it may have at most a part `c` of the window in flight,
//!
//! ```text
//! it takes a turn while   it has nothing in flight, or
//!                         its requests + 1 ≤ c · window requests   and   its tokens + need ≤ c · window tokens
//! ```
//!
//! A class at its ceiling is skipped, as a principal is that a cap of its own holds back, and accrues nothing, or it would
//! bank credit that it could not have used. What a class is owed and does not ask for is lent to the others, all of it,
//! and is back with the next turn; a ceiling on the others is how to keep room free for a class that is idle.
//!
//! `D` is in unweighted virtual tokens, at dispatch with the expected cost and made true at the end. *Bound:* over any
//! interval in which it has an eligible request, the class receives at least `min_share` of the pool's
//! service, less one window and one request; a head dearer than the window would otherwise never be due and void the
//! share of everybody behind it. *At start and at idle* `D` is zero: a class that asks for nothing
//! is owed nothing. `D` never goes below zero, so service that nobody else wanted is not held against its
//! receiver. *At overload* the shares of all owed classes are honoured by rank. *Never* interrupts a request
//! that runs.

use crate::policy::model::Window;
use crate::units::{Limit, Share, Tokens, VirtualTokens};

use super::queue::Load;

/// What a class is owed.
#[derive(Debug)]
pub(super) struct Owed {
    min_share: Share,
    deficit: VirtualTokens,
}

impl Owed {
    pub(super) fn new(min_share: Share) -> Self {
        Self { min_share, deficit: VirtualTokens::ZERO }
    }

    /// Service was given while the class had an eligible request.
    pub(super) fn given(&mut self, by_pool: VirtualTokens, to_class: VirtualTokens, most: VirtualTokens) {
        let due = by_pool.as_micros().saturating_mul(i128::from(self.min_share.millionths())) / 1_000_000;
        let deficit = self.deficit + VirtualTokens::from_micros(due) - to_class;
        self.deficit = deficit.clamp(VirtualTokens::ZERO, most.max(VirtualTokens::ZERO));
    }

    /// The class has no eligible request any more.
    pub(super) fn rest(&mut self) {
        self.deficit = VirtualTokens::ZERO;
    }

    /// Whether the class goes first with a head of this cost.
    pub(super) fn is_due(&self, head: VirtualTokens) -> bool {
        self.deficit.is_positive() && self.deficit >= head
    }

    pub(super) fn deficit(&self) -> VirtualTokens {
        self.deficit
    }

    pub(super) fn min_share(&self) -> Share {
        self.min_share
    }
}

/// Whether a class with so much in flight may have one more request, which needs so many tokens.
pub(super) fn is_below_ceiling(most: Limit<Share>, window: Window, in_flight: Load, need: Tokens) -> bool {
    let Limit::AtMost(share) = most else { return true };
    let part = |whole: u64| {
        let part = u128::from(whole) * u128::from(share.millionths()) / 1_000_000;
        u64::try_from(part).unwrap_or(u64::MAX)
    };
    let by_requests = window.requests.cap().is_none_or(|cap| u64::from(in_flight.requests) < part(u64::from(cap)));
    let by_tokens = window.tokens.cap().is_none_or(|cap| (in_flight.tokens + need).get() <= part(cap.get()));
    in_flight.requests == 0 || (by_requests && by_tokens)
}

#[cfg(test)]
mod tests {
    use super::{Owed, Share, VirtualTokens};

    #[test]
    fn a_share_accrues_is_spent_and_is_not_banked() {
        let vt = VirtualTokens::whole;
        let mut owed = Owed::new(Share::new(0.25).expect("valid"));
        owed.given(vt(100), VirtualTokens::ZERO, vt(1_000));
        assert!(owed.is_due(vt(25)) && !owed.is_due(vt(26)));
        owed.given(vt(25), vt(25), vt(1_000));
        assert_eq!(owed.deficit(), VirtualTokens::from_micros(6_250_000));
        owed.given(vt(100), vt(100), vt(1_000));
        assert_eq!(owed.deficit(), VirtualTokens::ZERO, "service beyond the share is not held against it");
        owed.given(vt(100_000), VirtualTokens::ZERO, vt(1_000));
        assert_eq!(owed.deficit(), vt(1_000), "at most one window is owed");
        owed.rest();
        assert!(!owed.is_due(VirtualTokens::ZERO), "no share configured or nothing accrued is never due");
    }
}
