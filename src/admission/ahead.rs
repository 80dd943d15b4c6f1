//! How much work the fair order serves before a newcomer.
//!
//! *Decides* nothing itself: it is what a wait is predicted from ([`deadline`](super::deadline)), and so who is refused
//! for it. *Formula*, in virtual tokens:
//!
//! ```text
//! own   = min(work queued by the tenant, work queued by its session × eligible sessions)
//! turn  = v + own ÷ w                      the tenant's counter when the newcomer's turn comes
//! ahead = min(work queued in the class, own + Σ w_j · max(0, turn − v_j)) + cost ÷ 2     over the other tenants j
//! ```
//!
//! of the eligible, counts including the newcomer's, `v` as it would be lifted. Half of the newcomer's own cost, since room
//! for it must come free too, of which half is free on average. A tenant that received less than its share has a counter
//! below the others', and so less before it than one that received more: the same queue refuses the one above its share
//! first. Were every tenant taken to stand at the same counter, the one behind would be refused for a wait that it would
//! not have had. Where the order keeps no counter of service (first come, first served, and round robin), the others are
//! given `own · Σ w_j ÷ w`. *Bound:* an estimate: what arrives later and goes before is not in it. One look costs at most
//! [`MOST_LOOKED_AT`](super::vtc::MOST_LOOKED_AT) steps.

use crate::units::{VirtualTokens, Weight};

use super::tree::{ClassNode, Tree};
use super::vtc::Node;

/// The work the fair order may serve before a newcomer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead<'a> {
    pub(super) in_class: VirtualTokens,
    pub(super) of_tenant: VirtualTokens,
    pub(super) of_session: VirtualTokens,
    /// Eligible sessions of the tenant, the newcomer's included.
    pub(super) sessions: u64,
    /// Half of what the newcomer costs.
    pub(super) half: VirtualTokens,
    pub(super) others: Others<'a>,
}

/// The eligible tenants of a class beside the newcomer's own, and where that one stands among them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Others<'a> {
    pub(super) tree: &'a Tree,
    pub(super) class: &'a ClassNode,
    /// The newcomer's tenant, where it is known.
    pub(super) own: Option<Node>,
    /// Its counter, lifted if it becomes eligible with the newcomer.
    pub(super) counter: VirtualTokens,
    pub(super) weight: Weight,
}

impl Ahead<'_> {
    /// `ahead` of the module's formula.
    pub(super) fn work(&self) -> VirtualTokens {
        self.of_class(self.own()) + self.half
    }

    /// What is served in the class while the tenant is served this much.
    pub(super) fn of_class(&self, own: VirtualTokens) -> VirtualTokens {
        (own + self.others.given_beside(own)).min(self.in_class)
    }

    /// The newcomer's weight, in thousandths.
    pub(super) fn weight(&self) -> u64 {
        u64::from(self.others.weight.thousandths())
    }

    /// Summed weight of the class's eligible tenants, the newcomer's included, in thousandths.
    pub(super) fn weights(&self) -> u64 {
        self.others.weights().saturating_add(self.weight())
    }

    fn own(&self) -> VirtualTokens {
        let sessions = self.of_session.as_micros().saturating_mul(i128::from(self.sessions));
        VirtualTokens::from_micros(sessions).min(self.of_tenant)
    }
}

impl Others<'_> {
    /// What they are given while the newcomer's tenant is given this much.
    fn given_beside(&self, own: VirtualTokens) -> VirtualTokens {
        let contest = &self.class.contest;
        if contest.counts_service() {
            let turn = self.counter + own.over(self.weight);
            return contest.given_before(self.own, turn, |node| self.tree.tenants[node].member.weight());
        }
        own.over(self.weight).times_thousandths(self.weights())
    }

    fn weights(&self) -> u64 {
        let own = self.own.map(|own| &self.tree.tenants[own].member).filter(|own| own.is_eligible());
        self.class.contest.eligible_weight() - own.map_or(0, |own| u64::from(own.weight().thousandths()))
    }
}
