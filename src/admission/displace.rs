//! Who leaves a full queue: the rule of [`queue`](super::queue), worked out without changing anything.
//!
//! *Decides* which waiting requests a newcomer displaces, or that it is itself the one to go. The plan is made
//! against the queue as it stands, with the departures planned so far taken off, and carried out only if the
//! newcomer then fits: check all, then commit.

use std::collections::BTreeMap;

use crate::units::{ClassIndex, Instant, Weight};

use super::pool::Pool;
use super::queue::{Fullness, Load, MOST_VICTIMS, per_weight};
use super::refusal::{Level, Reason, Unit};
use super::request::Request;
use super::tree::Slot;
use super::vtc::Node;

/// What has to happen for a newcomer to be queued within the shared caps.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Displacement {
    /// There is room.
    Nobody,
    /// These have to leave.
    These(Vec<Victim>),
    /// The newcomer itself is the one to go.
    Newcomer(Reason),
}

/// A waiting request that has to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Victim {
    pub(super) slot: Slot,
    /// The cap it leaves for.
    pub(super) reason: Reason,
}

/// Plans for a newcomer of this load and deadline.
pub(super) fn plan(pool: &Pool, request: &Request, asked: Load, deadline: Instant) -> Displacement {
    let mut plan = Plan { pool, request, asked, deadline, leaving: BTreeMap::new(), victims: Vec::new() };
    while let Some(reason) = plan.exceeded() {
        let victim = if plan.victims.len() < MOST_VICTIMS { plan.victim(reason) } else { None };
        match victim {
            Some(slot) => plan.leave(slot, reason),
            None => return Displacement::Newcomer(reason),
        }
    }
    if plan.victims.is_empty() { Displacement::Nobody } else { Displacement::These(plan.victims) }
}

/// The levels whose caps are shared, in the order they are checked, with so much queued at them and so much kept.
pub(super) fn shared_levels(pool: &Pool, in_class: Load, in_pool: Load, kept: Load) -> [Fullness; 2] {
    [
        Fullness { level: Level::Class, cap: pool.caps.class, queued: in_class, kept },
        Fullness { level: Level::Pool, cap: pool.caps.pool, queued: in_pool, kept },
    ]
}

struct Plan<'a> {
    pool: &'a Pool,
    request: &'a Request,
    asked: Load,
    deadline: Instant,
    /// What is planned to leave, by tenant.
    leaving: BTreeMap<Node, Load>,
    victims: Vec<Victim>,
}

impl Plan<'_> {
    /// The shared cap that the newcomer would still exceed.
    fn exceeded(&self) -> Option<Reason> {
        let class = self.request.subject.class;
        let (mut in_class, mut in_pool) = (self.pool.tree.classes[class.index()].queued, self.pool.tree.queued);
        for (tenant, load) in &self.leaving {
            in_pool = in_pool.minus(*load);
            if self.pool.tree.tenants[*tenant].class == class {
                in_class = in_class.minus(*load);
            }
        }
        shared_levels(self.pool, in_class, in_pool, Load::default()).iter().find_map(|level| level.exceeded(self.asked))
    }

    fn leave(&mut self, slot: Slot, cap: Reason) {
        let waiting = &self.pool.tree.waiting[slot];
        let load = self.leaving.entry(waiting.place.tenant).or_default();
        *load = load.plus(waiting.load());
        let reason = match cap {
            Reason::QueueFull { level, unit, cap, queued, asked, .. } => {
                Reason::QueueFull { level, unit, cap, queued, asked, displaced: true }
            }
            other => other,
        };
        self.victims.push(Victim { slot, reason });
    }

    /// Who goes for this cap; `None` when it is the newcomer.
    fn victim(&self, reason: Reason) -> Option<Slot> {
        let Reason::QueueFull { level, unit, .. } = reason else { return None };
        let own = self.request.subject.class;
        if level == Level::Class {
            return self.victim_in(own, unit).flatten();
        }
        let from_lowest = self.pool.tree.by_rank.iter().rev();
        from_lowest.filter(|class| !self.is_owed(**class)).find_map(|class| self.victim_in(*class, unit)).flatten()
    }

    fn is_owed(&self, class: ClassIndex) -> bool {
        let head = self.pool.tree.head(class).map(|slot| self.pool.tree.waiting[slot].cost);
        head.is_some_and(|cost| self.pool.tree.classes[class.index()].owed.is_due(cost))
    }

    /// The victim in a class: `None` when nobody there has anything queued, `Some(None)` when it is the newcomer.
    fn victim_in(&self, class: ClassIndex, unit: Unit) -> Option<Option<Slot>> {
        let heaviest = self.heaviest(class, unit);
        if class != self.request.subject.class {
            return heaviest.map(|(_, tenant)| self.latest(tenant));
        }
        let own = self.pool.tree.find_tenant(class, &self.request.subject.tenant);
        let own_load = own.map_or(Load::default(), |tenant| self.remaining(tenant)).plus(self.asked);
        let own_amount = per_weight(own_load, unit, self.request.weight);
        Some(match heaviest {
            Some((amount, tenant)) if Some(tenant) != own && amount > own_amount => self.latest(tenant),
            _ => own.and_then(|tenant| self.latest(tenant)).filter(|slot| self.waits_longer(*slot)),
        })
    }

    /// Whether a waiting request's deadline is later than the newcomer's, which loses ties.
    fn waits_longer(&self, slot: Slot) -> bool {
        self.pool.tree.waiting[slot].deadline > self.deadline
    }

    /// The tenant with the most queued work per weight, departures taken off.
    fn heaviest(&self, class: ClassIndex, unit: Unit) -> Option<(u128, Node)> {
        let touched = self.leaving.keys().filter(|tenant| self.pool.tree.tenants[**tenant].class == class);
        let touched = touched.map(|tenant| (per_weight(self.remaining(*tenant), unit, self.weight(*tenant)), *tenant));
        let order = self.pool.tree.classes[class.index()].heaviest.descending(unit);
        let untouched = order.into_iter().find(|(_, tenant)| !self.leaving.contains_key(tenant));
        let left = touched.filter(|(_, tenant)| !self.remaining(*tenant).is_empty());
        left.chain(untouched).max_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)))
    }

    fn remaining(&self, tenant: Node) -> Load {
        self.pool.tree.tenants[tenant].queued.minus(self.leaving.get(&tenant).copied().unwrap_or_default())
    }

    fn weight(&self, tenant: Node) -> Weight {
        self.pool.tree.tenants[tenant].member.weight()
    }

    fn latest(&self, tenant: Node) -> Option<Slot> {
        self.pool.tree.by_latest_deadline(tenant).find(|slot| self.victims.iter().all(|victim| victim.slot != *slot))
    }
}
