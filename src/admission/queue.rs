//! Queue caps, and who has to leave when a shared one is reached.
//!
//! *Decides* whether a request may wait. Caps stand at four levels (session, tenant in a class, class, pool) in
//! three units (requests, tokens, bytes). The first two are the newcomer's own: reached, they refuse the
//! newcomer. The last two are shared, and refusing whoever comes next would let one tenant fill the queue and
//! lock the others out; so a victim is *displaced*:
//!
//! ```text
//! class    the lowest by rank that has something queued and is not owed its share (the newcomer counts)
//! tenant   in it, with the most queued ÷ weight, in the unit of the cap (the newcomer counts)
//! request  of it, with the latest deadline
//! ```
//!
//! A newcomer loses every tie, so that equals do not push each other out in turn. *Bound:* at a full queue a
//! tenant below its weighted share of it is never refused in favour of one above. One newcomer displaces at
//! most [`MOST_VICTIMS`]; a larger one is refused. *At idle* nothing is kept. Shuffle-sharding into
//! a fixed number of queues, the usual alternative, bounds memory but not who suffers. *Never* displaces what
//! has been dispatched.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::policy::model::QueueCap;
use crate::units::{Bytes, Limit, Tokens, Weight};

use super::refusal::{Level, Reason, Unit};
use super::vtc::Node;

/// The most requests one newcomer may displace.
pub(super) const MOST_VICTIMS: usize = 64;

/// How much something is, in the three units of the caps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// In requests.
    pub requests: u32,
    /// In input plus expected output tokens.
    pub tokens: Tokens,
    /// In bytes of request bodies.
    pub bytes: Bytes,
}

/// What is queued at one level, against its caps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fullness {
    /// Whose.
    pub level: Level,
    /// The most that may be queued there.
    pub cap: QueueCap,
    /// What is queued there now.
    pub queued: Load,
    /// What is kept there for those who were refused and told to come back.
    pub kept: Load,
}

/// What is queued at one level in one unit, against the cap in that unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// The unit.
    pub unit: Unit,
    /// The most that may be queued, in that unit.
    pub cap: u64,
    /// What is queued now, in that unit, with what is kept for those who were told to come back.
    pub queued: u64,
    /// What the request would add, in that unit.
    pub asked: u64,
}

impl Fill {
    /// Whether the request would be too much.
    #[must_use]
    pub const fn exceeds(&self) -> bool {
        self.queued.saturating_add(self.asked) > self.cap
    }
}

impl Fullness {
    /// How a request that asks for so much compares with each cap that is set, in the order they are checked.
    pub fn fills(&self, asked: Load) -> impl Iterator<Item = Fill> + '_ {
        Unit::ALL.into_iter().filter_map(move |unit| {
            let cap = cap_in(&self.cap, unit).cap()?;
            let queued = self.queued.plus(self.kept).in_unit(unit);
            Some(Fill { unit, cap, queued, asked: asked.in_unit(unit) })
        })
    }

    /// The first unit in which the request would be too much, as the reason for a refusal.
    pub(super) fn exceeded(&self, asked: Load) -> Option<Reason> {
        let Fill { unit, cap, queued, asked } = self.fills(asked).find(Fill::exceeds)?;
        Some(Reason::QueueFull { level: self.level, unit, cap, queued, asked, displaced: false })
    }
}

impl Load {
    pub(super) fn of(tokens: Tokens, bytes: Bytes) -> Self {
        Self { requests: 1, tokens, bytes }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_add(other.requests),
            tokens: self.tokens + other.tokens,
            bytes: self.bytes + other.bytes,
        }
    }

    pub(super) fn minus(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(other.requests),
            tokens: self.tokens.saturating_sub(other.tokens),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }

    /// So many of `all` parts of it, rounded up.
    pub(super) fn part(self, part: u32, all: u32) -> Self {
        let of = |amount: u64| (u128::from(amount) * u128::from(part)).div_ceil(u128::from(all.max(1)));
        let of = |amount: u64| u64::try_from(of(amount)).unwrap_or(u64::MAX);
        Self {
            requests: u32::try_from(of(u64::from(self.requests))).unwrap_or(u32::MAX),
            tokens: Tokens::new(of(self.tokens.get())),
            bytes: Bytes::new(of(self.bytes.get())),
        }
    }

    pub(super) fn is_empty(self) -> bool {
        self.requests == 0
    }

    /// How much it is in one unit.
    #[must_use]
    pub fn in_unit(self, unit: Unit) -> u64 {
        match unit {
            Unit::Requests => u64::from(self.requests),
            Unit::Tokens => self.tokens.get(),
            Unit::Bytes => self.bytes.get(),
        }
    }
}

/// The cap in one unit.
fn cap_in(cap: &QueueCap, unit: Unit) -> Limit<u64> {
    match unit {
        Unit::Requests => cap.requests.cap().map(u64::from).into(),
        Unit::Tokens => cap.tokens.cap().map(Tokens::get).into(),
        Unit::Bytes => cap.bytes.cap().map(Bytes::get).into(),
    }
}

/// The units in which a cap is set.
pub(super) fn capped_units(cap: &QueueCap) -> impl Iterator<Item = Unit> + '_ {
    Unit::ALL.into_iter().filter(|unit| cap_in(cap, *unit).is_limited())
}

/// Queued work per weight, for comparison: millionths of a unit per unit of weight.
pub(super) fn per_weight(load: Load, unit: Unit, weight: Weight) -> u128 {
    u128::from(load.in_unit(unit)) * 1_000_000 / u128::from(weight.thousandths())
}

/// The tenants of a class by queued work per weight, in each unit in which a shared cap is set.
#[derive(Debug, Default)]
pub(super) struct Heaviest {
    by_unit: BTreeMap<Unit, BTreeSet<(Reverse<u128>, Node)>>,
}

impl Heaviest {
    pub(super) fn new(units: impl Iterator<Item = Unit>) -> Self {
        Self { by_unit: units.map(|unit| (unit, BTreeSet::new())).collect() }
    }

    /// A tenant's queued work or weight changed.
    pub(super) fn update(&mut self, node: Node, old: (Load, Weight), new: (Load, Weight)) {
        for (unit, order) in &mut self.by_unit {
            let key = |(load, weight): (Load, Weight)| (Reverse(per_weight(load, *unit, weight)), node);
            if !old.0.is_empty() {
                order.remove(&key(old));
            }
            if !new.0.is_empty() {
                order.insert(key(new));
            }
        }
    }

    /// The tenants with the most queued work per weight, most first, and how much that is.
    pub(super) fn descending(&self, unit: Unit) -> impl Iterator<Item = (u128, Node)> + '_ {
        self.by_unit.get(&unit).into_iter().flatten().map(|(Reverse(amount), node)| (*amount, *node))
    }
}
