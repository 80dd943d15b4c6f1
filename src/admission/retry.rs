//! Retry budgets: how much of an upstream's trouble its clients may add to.
//!
//! *Decides* whether a request that says it is not its client's first try may pass. *From* Finagle's and Linkerd's retry
//! budgets, which a client keeps for itself; here the gateway keeps one for each tenant. *Formula:*
//!
//! ```text
//! a retry passes while   retries + 1 ≤ floor + ratio · successes      of its tenant, in the last minute
//! ```
//!
//! counted in steps of [`STEP`]. A request that we refused never reached the upstream, so coming back when told is no
//! retry: each refusal excuses one return from its time on. A refusal for the budget itself names the first step in
//! which there is room, and takes that room; so whoever comes back then is let in, and of a hundred that are refused at
//! once a hundred are not told the same. Where a whole minute has no room left the time after it is told, and excuses
//! nobody. Further tries of a proxy between us and the upstream pass us by; they are
//! counted when its answer tells of them, and so leave less for the others. *Bound:* [`MOST_TENANTS`] are remembered;
//! one that is forgotten has its floor. A time further off than [`LONGEST`] is told and neither kept nor excused, since
//! clients are told not to return then. *At start and at idle* the floor is all there is. *Never* counts a request that
//! does not say which try it is, and never refuses for this what the upstream has not seen.

use std::collections::{BTreeMap, BTreeSet};

use crate::policy::model;
use crate::units::{Instant, Span, TenantId};

use super::request::{Attempt, Request};

/// How finely time is cut.
const STEP: Span = Span::from_secs(10);
/// How many steps are looked back on, the present one included, and how many ahead are taken.
const STEPS: u64 = 6;
/// Steps past, present and to come.
#[expect(clippy::cast_possible_truncation, reason = "a dozen")]
const SLOTS: usize = 2 * STEPS as usize + 1;
/// How long whoever was told to come back may take over it.
const GRACE: Span = Span::from_secs(60);
/// How far off a time may be that is kept: a minute, and the jitter that comes on top of it.
const LONGEST: Span = Span::from_secs(75);
/// The most tenants that are remembered.
pub(super) const MOST_TENANTS: usize = 4_096;

/// What a request is to the retry budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Try {
    /// Its client's first, or it does not say.
    First,
    /// It comes back because it was told to.
    Told,
    /// A retry.
    Again,
}

/// What the retry budget says of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetriesFound {
    /// What it is.
    pub which: Try,
    /// Its tenant's retries in the last minute, and how many may be; nothing where that is not limited.
    pub budget: Option<RetryCount>,
}

/// A tenant's retries in the last minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryCount {
    /// How many there were.
    pub retries: u32,
    /// How many there may be.
    pub allowed: u32,
}

impl RetryCount {
    fn has_room(self) -> bool {
        self.retries < self.allowed
    }
}

/// The retry budgets of all tenants.
#[derive(Debug)]
pub(super) struct Retries {
    rule: Option<model::Retries>,
    tenants: BTreeMap<TenantId, Tally>,
    /// The step in which each was last heard of.
    by_last: BTreeSet<(u64, TenantId)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    number: u64,
    successes: u32,
    /// Those that were let in, and those that were told to come back in it.
    retries: u32,
}

#[derive(Debug, Default)]
struct Tally {
    slots: [Slot; SLOTS],
    /// Returns, by the second in which they are due.
    told: BTreeMap<u64, u32>,
    last: u64,
}

fn second(at: Instant) -> u64 {
    at.as_nanos() / Span::from_secs(1).as_nanos()
}

fn step(at: Instant) -> u64 {
    at.as_nanos() / STEP.as_nanos()
}

impl Tally {
    fn slot(&mut self, number: u64) -> &mut Slot {
        #[expect(clippy::cast_possible_truncation, reason = "less than SLOTS")]
        let slot = &mut self.slots[(number % SLOTS as u64) as usize];
        if slot.number != number {
            *slot = Slot { number, ..Slot::default() };
        }
        slot
    }

    /// The slots of a minute that ends with a step.
    fn minute(&self, last: u64) -> impl Iterator<Item = &Slot> {
        let first = (last + 1).saturating_sub(STEPS);
        self.slots.iter().filter(move |slot| (first..=last).contains(&slot.number))
    }

    fn count(&self, rule: &model::Retries, last: u64) -> RetryCount {
        let (mut successes, mut retries) = (0u64, 0u32);
        for slot in self.minute(last) {
            successes += u64::from(slot.successes);
            retries = retries.saturating_add(slot.retries);
        }
        let part = successes.saturating_mul(u64::from(rule.ratio.millionths())) / 1_000_000;
        RetryCount { retries, allowed: rule.floor.saturating_add(u32::try_from(part).unwrap_or(u32::MAX)) }
    }

    /// The first step after this with room for one more, if it is not too far off.
    fn next_room(&self, rule: &model::Retries, now: u64) -> Option<u64> {
        (now + 1..=now + STEPS).find(|step| self.count(rule, *step).has_room())
    }

    /// The earliest second with a return that is due.
    fn due(&self, now: Instant) -> Option<u64> {
        let oldest = Instant::from_nanos(now.as_nanos().saturating_sub(GRACE.as_nanos()));
        self.told.range(second(oldest)..=second(now)).next().map(|(due, _)| *due)
    }

    /// Somebody is told to come back then.
    fn tell(&mut self, due: Instant, now: Instant) {
        let oldest = second(Instant::from_nanos(now.as_nanos().saturating_sub(GRACE.as_nanos())));
        while self.told.first_key_value().is_some_and(|(due, _)| *due < oldest) {
            self.told.pop_first();
        }
        *self.told.entry(second(due)).or_default() += 1;
    }

    fn redeem(&mut self, due: u64) {
        if let Some(count) = self.told.get_mut(&due) {
            *count -= 1;
            if *count == 0 {
                self.told.remove(&due);
            }
        }
    }
}

impl Retries {
    pub(super) fn new(rule: Option<model::Retries>) -> Self {
        Self { rule, tenants: BTreeMap::new(), by_last: BTreeSet::new() }
    }

    pub(super) fn found(&self, request: &Request, now: Instant) -> RetriesFound {
        let Some(rule) = &self.rule else { return RetriesFound { which: self.which(request, now), budget: None } };
        let known = self.tenants.get(&request.subject.tenant);
        let none = RetryCount { retries: 0, allowed: rule.floor };
        let budget = known.map_or(none, |tally| tally.count(rule, step(now)));
        RetriesFound { which: self.which(request, now), budget: Some(budget) }
    }

    /// What a request is.
    pub(super) fn which(&self, request: &Request, now: Instant) -> Try {
        let known = || self.tenants.get(&request.subject.tenant);
        match request.attempt {
            Attempt::First | Attempt::Unsaid => Try::First,
            Attempt::Again if known().is_some_and(|tally| tally.due(now).is_some()) => Try::Told,
            Attempt::Again => Try::Again,
        }
    }

    /// When there is room for a retry again, where there is none now.
    pub(super) fn room_at(&self, request: &Request, now: Instant) -> Option<(RetryCount, Instant)> {
        let rule = self.rule.as_ref()?;
        let tally = self.tenants.get(&request.subject.tenant)?;
        let count = tally.count(rule, step(now));
        if count.has_room() || self.which(request, now) != Try::Again {
            return None;
        }
        let room = tally.next_room(rule, step(now)).unwrap_or(step(now) + STEPS + 1);
        Some((count, Instant::from_nanos(room.saturating_mul(STEP.as_nanos()))))
    }

    /// A request came: if it was told to, that is settled.
    pub(super) fn came(&mut self, request: &Request, now: Instant) {
        if self.rule.is_none() || request.attempt != Attempt::Again {
            return;
        }
        if let Some(tally) = self.tenants.get_mut(&request.subject.tenant)
            && let Some(due) = tally.due(now)
        {
            tally.redeem(due);
        }
    }

    /// So many of a tenant's retries were let in, or went past us.
    pub(super) fn passed(&mut self, tenant: &TenantId, count: u32, now: Instant) {
        if count > 0
            && let Some(tally) = self.tally(tenant, now)
        {
            let slot = tally.slot(step(now));
            slot.retries = slot.retries.saturating_add(count);
        }
    }

    /// A retry was refused, and takes the first room there is; says whether there was any.
    pub(super) fn refused(&mut self, tenant: &TenantId, now: Instant) -> bool {
        let Some(rule) = self.rule else { return false };
        let Some(tally) = self.tally(tenant, now) else { return false };
        let room = tally.next_room(&rule, step(now));
        if let Some(room) = room {
            tally.slot(room).retries += 1;
        }
        room.is_some()
    }

    /// Somebody was told to come back then, or told to and not when.
    pub(super) fn told(&mut self, tenant: &TenantId, due: Option<Instant>, now: Instant) {
        let due = due.unwrap_or(now);
        if due.since(now) > LONGEST {
            return;
        }
        if let Some(tally) = self.tally(tenant, now) {
            tally.tell(due, now);
        }
    }

    /// A request of a tenant's ended well.
    pub(super) fn succeeded(&mut self, tenant: &TenantId, now: Instant) {
        if let Some(tally) = self.tally(tenant, now) {
            let slot = tally.slot(step(now));
            slot.successes = slot.successes.saturating_add(1);
        }
    }

    /// A tenant's tally, made if it is not there; nothing where nothing is limited.
    fn tally(&mut self, tenant: &TenantId, now: Instant) -> Option<&mut Tally> {
        self.rule?;
        let last = step(now);
        if !self.tenants.contains_key(tenant) {
            self.make_room();
            self.tenants.insert(tenant.clone(), Tally { last, ..Tally::default() });
            self.by_last.insert((last, tenant.clone()));
        }
        let tally = self.tenants.get_mut(tenant)?;
        if tally.last != last {
            self.by_last.remove(&(tally.last, tenant.clone()));
            self.by_last.insert((last, tenant.clone()));
            tally.last = last;
        }
        Some(tally)
    }

    /// Forgets whoever was not heard of for longest, if there are too many.
    fn make_room(&mut self) {
        if self.tenants.len() >= MOST_TENANTS
            && let Some((_, tenant)) = self.by_last.pop_first()
        {
            self.tenants.remove(&tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST_TENANTS, Retries, RetryCount, model};
    use crate::admission::tests::world::{World, at, of, policy};
    use crate::admission::{Attempt, Request};
    use crate::units::{Instant, PoolIndex, Share, TenantId};

    fn budget(ratio: f64, floor: u32) -> Retries {
        Retries::new(Some(model::Retries { ratio: Share::new(ratio).expect("valid"), floor }))
    }

    fn again() -> Request {
        let ask = crate::admission::tests::world::Ask { attempt: Attempt::Again, ..of("a") };
        World::new(policy()).request(PoolIndex::new(0), &ask)
    }

    fn pass(retries: &mut Retries, times: usize, secs: f64) -> usize {
        let (request, now) = (again(), at(secs));
        (0..times)
            .filter(|_| {
                let passes = retries.room_at(&request, now).is_none();
                if passes {
                    retries.passed(&request.subject.tenant, 1, now);
                }
                passes
            })
            .count()
    }

    #[test]
    fn a_part_of_the_successes_of_the_last_minute_and_a_floor_may_be_retries() {
        let mut retries = budget(0.1, 3);
        assert_eq!(pass(&mut retries, 9, 0.0), 3);
        for _ in 0..100 {
            retries.succeeded(&TenantId::from("a"), at(5.0));
        }
        assert_eq!(pass(&mut retries, 99, 9.0), 10);
        assert_eq!(pass(&mut retries, 99, 59.0), 0);
        assert_eq!(pass(&mut retries, 99, 60.0), 3, "a minute later all of it is forgotten");
    }

    #[test]
    fn whoever_is_refused_takes_the_first_room_and_is_let_in_then() {
        let mut retries = budget(0.1, 2);
        let (request, tenant) = (again(), TenantId::from("a"));
        assert_eq!(pass(&mut retries, 9, 1.0), 2);
        let mut told = Vec::new();
        for _ in 0..5 {
            let (count, room) = retries.room_at(&request, at(1.0)).expect("none is left");
            assert_eq!(count, RetryCount { retries: 2, allowed: 2 });
            assert!(retries.refused(&tenant, at(1.0)) || room == at(70.0), "room was taken, or there is none");
            retries.told(&tenant, Some(room), at(1.0));
            told.push(room);
        }
        assert_eq!(told, [at(60.0), at(60.0), at(70.0), at(70.0), at(70.0)], "two in a minute, and then further off");
        assert_eq!(pass(&mut retries, 1, 59.0), 0, "whoever comes too soon is not let in");
        for _ in 0..2 {
            assert!(retries.room_at(&request, at(60.0)).is_none());
            retries.came(&request, at(60.0));
        }
        assert!(retries.room_at(&request, at(60.0)).is_some(), "the others' room was taken");
    }

    #[test]
    fn coming_back_when_told_is_no_retry_and_is_settled_once() {
        let mut retries = budget(0.0, 1);
        let (request, tenant) = (again(), TenantId::from("a"));
        assert_eq!(pass(&mut retries, 9, 0.0), 1);
        retries.told(&tenant, Some(at(15.0)), at(0.0));
        assert!(retries.room_at(&request, at(5.0)).is_some(), "not before its time");
        assert!(retries.room_at(&request, at(15.0)).is_none());
        retries.came(&request, at(15.0));
        assert!(retries.room_at(&request, at(15.0)).is_some());
        retries.told(&tenant, None::<Instant>, at(16.0));
        assert!(retries.room_at(&request, at(16.0)).is_none(), "at once where it was not said when");
    }

    #[test]
    fn tenants_are_bounded_and_the_longest_silent_are_forgotten() {
        let mut retries = budget(0.1, 1);
        for number in 0..=MOST_TENANTS {
            retries.succeeded(&TenantId::from(format!("t{number}").as_str()), at(0.0));
        }
        assert_eq!((retries.tenants.len(), retries.by_last.len()), (MOST_TENANTS, MOST_TENANTS));
    }
}
