//! Virtual Token Counters: who among siblings goes next.
//!
//! *Decides* the order among the principals of one level of the tree (the tenants of a class, the sessions of a
//! tenant): the eligible one with the least counter `v`, ties to whoever has waited longest for a turn.
//!
//! *From* "Fairness in Serving Large Language Models" (Sheng et al., OSDI 2024), Algorithms 2 and 3. Ours
//! differs in three ways. "Eligible" replaces "has a request in the queue": a principal that a limit of its own
//! holds back leaves the contest, or it would bank credit while it could not have used it. A refund stops at
//! the *floor*, the level at the last lift, or an over-prediction paid back after a lift would recreate the
//! banked credit that the lift erased. And an idle principal is forgotten, see below.
//!
//! *Formulas.* `v`, in virtual tokens per unit of weight:
//!
//! ```text
//! charge   v := v + cost / weight                    cost in virtual tokens
//! lift     floor := level;  v := max(v, floor)       on becoming eligible
//! level    least v of the eligible; of the last served when nobody is eligible
//! refund   v := max(v - refund / weight, floor)
//! ```
//!
//! *Bound.* Two principals of one contest, both eligible all through an interval, of weights `f` and `g`,
//! receive services that differ by at most `U/f + U/g`, where `U = max(w_in · L_in, w_out · M_g)`: `L_in` the
//! longest input in tokens and `M_g` the most tokens dispatched and unfinished at once (Theorem 4.4 with the
//! window in place of the engine's memory). The length of the interval does not matter.
//!
//! *At start* all counters are zero. *At idle* a counter stays: debt is never forgiven by going away, only
//! credit is. An idle principal is forgotten once its `v` is at or below the level, since coming back it would
//! be lifted to just that. If more than a bounded number of debtors is idle, the one that owes least is
//! forgotten too and its debt moves to a table of fixed size, see [`debt`](super::debt). *At overload* nothing
//! changes: a pick is one look at an ordered set, a change of `v` one removal and one insertion, O(log n) in
//! the eligible principals.
//!
//! *Never* preempts, never resets a counter, never looks at a clock.

use std::collections::BTreeSet;

use crate::policy::model::Algorithm;
use crate::units::{VirtualTokens, Weight};

use super::debt::Debts;

/// How many of those that go first are looked at one by one to tell how much is served before another.
pub(super) const MOST_LOOKED_AT: usize = 64;

/// A principal's place in its slab.
pub(super) type Node = usize;

/// An eligible principal's place in the order: least `key` first, then least `since`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Seat {
    /// `v`, or the arrival number of the head request under first come, first served.
    key: VirtualTokens,
    /// When it last took its place at the back among equals.
    since: u64,
    node: Node,
}

/// What a contest knows of one of its principals.
#[derive(Debug)]
pub(super) struct Member {
    node: Node,
    v: VirtualTokens,
    floor: VirtualTokens,
    weight: Weight,
    since: u64,
    seat: Option<Seat>,
    resting: bool,
}

impl Member {
    pub(super) fn v(&self) -> VirtualTokens {
        self.v
    }

    pub(super) fn weight(&self) -> Weight {
        self.weight
    }

    pub(super) fn is_eligible(&self) -> bool {
        self.seat.is_some()
    }
}

/// First come, first served, as an order of counters.
fn by_arrival(number: u64) -> VirtualTokens {
    VirtualTokens::from_micros(i128::from(number))
}

/// Where a request's principal would stand among its siblings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its fair counter, lifted if it becomes eligible with this request.
    pub counter: VirtualTokens,
    /// The contest's level: the least counter of the eligible, or of the last served when nobody is.
    pub level: VirtualTokens,
    /// How many siblings are eligible now, itself included if it is.
    pub eligible: usize,
    /// Whether nobody would go before it.
    pub first: bool,
}

/// The siblings of one level, and the order among them.
#[derive(Debug)]
pub(super) struct Contest {
    algorithm: Algorithm,
    eligible: BTreeSet<Seat>,
    eligible_weight: u64,
    last_served: Option<Node>,
    served_level: VirtualTokens,
    stamp: u64,
    resting: BTreeSet<(VirtualTokens, Node)>,
    debts: Debts,
}

impl Contest {
    pub(super) fn new(algorithm: Algorithm, debts: Debts) -> Self {
        Self {
            algorithm,
            eligible: BTreeSet::new(),
            eligible_weight: 0,
            last_served: None,
            served_level: VirtualTokens::ZERO,
            stamp: 0,
            resting: BTreeSet::new(),
            debts,
        }
    }

    /// A newcomer, or one that was forgotten: it starts with the debt remembered for its name.
    pub(super) fn member(&self, node: Node, name: &str, weight: Weight) -> Member {
        let v = self.debts.of(name);
        Member { node, v, floor: v, weight, since: 0, seat: None, resting: false }
    }

    /// Whether the counters are service received, and so say how much is served before whose turn.
    pub(super) fn counts_service(&self) -> bool {
        matches!(self.algorithm, Algorithm::Vtc | Algorithm::LeastCounter)
    }

    /// Whose turn it is.
    pub(super) fn first(&self) -> Option<Node> {
        self.eligible.first().map(|seat| seat.node)
    }

    /// How many are eligible.
    pub(super) fn eligible_count(&self) -> usize {
        self.eligible.len()
    }

    /// The summed weight of the eligible, in thousandths.
    pub(super) fn eligible_weight(&self) -> u64 {
        self.eligible_weight
    }

    /// What a newcomer's counter would be lifted to.
    pub(super) fn level(&self) -> VirtualTokens {
        match self.algorithm {
            Algorithm::LeastCounter => VirtualTokens::ZERO,
            Algorithm::Fcfs => self.served_level,
            Algorithm::Vtc | Algorithm::RoundRobin => self.eligible.first().map_or(self.served_level, |seat| seat.key),
        }
    }

    /// Where a principal would stand if it had one more request, and were eligible with `head` as its first; `member`
    /// is `None` for one that is not known, or was forgotten.
    pub(super) fn standing(&self, member: Option<&Member>, name: &str, head: u64) -> Standing {
        let v = member.map_or_else(|| self.debts.of(name), Member::v);
        let seat = member.and_then(|member| member.seat);
        let lifts = seat.is_none() && self.algorithm != Algorithm::LeastCounter;
        let counter = if lifts { v.max(self.level()) } else { v };
        let key = if self.algorithm == Algorithm::Fcfs { by_arrival(head) } else { counter };
        let since = seat.map_or(u64::MAX, |seat| seat.since);
        let others = self.eligible.iter().find(|other| seat.is_none_or(|seat| seat.node != other.node));
        Standing {
            counter,
            level: self.level(),
            eligible: self.eligible.len(),
            first: others.is_none_or(|other| (key, since) < (other.key, other.since)),
        }
    }

    /// What the eligible but one are given before their counters reach this, as the fair order has it: each what its own is
    /// short of it, by its weight. Beyond the [`MOST_LOOKED_AT`] that go first, the rest count as if they were as far
    /// behind as the last of these, which is never too little.
    pub(super) fn given_before(
        &self,
        but: Option<Node>,
        counter: VirtualTokens,
        weight_of: impl Fn(Node) -> Weight,
    ) -> VirtualTokens {
        let (mut given, mut rest, mut last) = (VirtualTokens::ZERO, self.eligible_weight, counter);
        for seat in self.eligible.iter().take(MOST_LOOKED_AT) {
            if seat.key >= counter {
                return given;
            }
            let thousandths = u64::from(weight_of(seat.node).thousandths());
            (rest, last) = (rest - thousandths, seat.key);
            if Some(seat.node) != but {
                given += (counter - seat.key).times_thousandths(thousandths);
            }
        }
        given + (counter - last).times_thousandths(rest)
    }

    /// Brings a member's place up to date: `head` is the arrival number of its first request if it is
    /// eligible, `None` if it is not. Becoming eligible lifts.
    pub(super) fn reseat(&mut self, member: &mut Member, head: Option<u64>) {
        let Some(head) = head else {
            self.stand_up(member);
            return;
        };
        if member.seat.is_none() {
            self.lift(member);
        }
        let seat = Seat { key: self.key(member, head), since: member.since, node: member.node };
        match member.seat.replace(seat) {
            Some(old) if old == seat => {}
            Some(old) => {
                self.eligible.remove(&old);
                self.eligible.insert(seat);
            }
            None => {
                self.eligible_weight += u64::from(member.weight.thousandths());
                self.eligible.insert(seat);
            }
        }
    }

    fn stand_up(&mut self, member: &mut Member) {
        if let Some(seat) = member.seat.take() {
            self.eligible.remove(&seat);
            self.eligible_weight -= u64::from(member.weight.thousandths());
        }
    }

    fn lift(&mut self, member: &mut Member) {
        if self.algorithm != Algorithm::LeastCounter {
            member.floor = self.level();
            member.v = member.v.max(member.floor);
        }
        member.since = self.next_stamp();
    }

    fn key(&self, member: &Member, head: u64) -> VirtualTokens {
        match self.algorithm {
            Algorithm::Fcfs => by_arrival(head),
            Algorithm::Vtc | Algorithm::RoundRobin | Algorithm::LeastCounter => member.v,
        }
    }

    fn next_stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }

    /// A changed weight holds from now on; what was charged stays as it was.
    pub(super) fn weigh(&mut self, member: &mut Member, weight: Weight) {
        if member.is_eligible() {
            self.eligible_weight -= u64::from(member.weight.thousandths());
            self.eligible_weight += u64::from(weight.thousandths());
        }
        member.weight = weight;
    }

    /// The member was given a turn: it goes to the back among equals. Its new place is taken at the next
    /// [`reseat`](Self::reseat).
    pub(super) fn served(&mut self, member: &mut Member) {
        member.since = self.next_stamp();
        self.last_served = Some(member.node);
        self.served_level = member.v;
    }

    /// Moves a member's counter by a cost at a weight; negative refunds, at most down to the floor. The new
    /// place is taken at the next [`reseat`](Self::reseat).
    pub(super) fn charge(&mut self, member: &mut Member, cost: VirtualTokens, weight: Weight) {
        let moved = if cost >= VirtualTokens::ZERO {
            member.v + cost.over(weight)
        } else {
            (member.v - (-cost).over(weight)).max(member.floor)
        };
        member.v = moved;
        if self.last_served == Some(member.node) {
            self.served_level = moved;
        }
    }

    /// The member has neither queued nor running work.
    pub(super) fn rest(&mut self, member: &mut Member) {
        debug_assert!(!member.is_eligible(), "whoever is eligible has work");
        if !member.resting {
            member.resting = true;
            self.resting.insert((member.v, member.node));
        }
    }

    /// The member has work again.
    pub(super) fn wake(&mut self, member: &mut Member) {
        if member.resting {
            member.resting = false;
            self.resting.remove(&(member.v, member.node));
        }
    }

    /// A resting member whose counter a newcomer would be lifted to anyway, so that nothing is lost with it.
    pub(super) fn forgettable(&self) -> Option<Node> {
        self.resting.first().filter(|(v, _)| *v <= self.level()).map(|(_, node)| *node)
    }

    /// The resting member that owes least, when more than `most` rest.
    pub(super) fn excess(&self, most: usize) -> Option<Node> {
        if self.resting.len() > most { self.resting.first().map(|(_, node)| *node) } else { None }
    }

    /// Forgets a resting member, keeping what it owes above the level under its name.
    pub(super) fn forget(&mut self, member: &mut Member, name: &str) {
        self.wake(member);
        if self.last_served == Some(member.node) {
            self.last_served = None;
        }
        if member.v > self.level() {
            self.debts.keep(name, member.v);
        }
    }
}
