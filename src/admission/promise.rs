//! Promises: who was told to come back, when, and the room that is kept for them until then.
//!
//! *Decides* whether a newcomer may take the place of somebody of its own tenant who was refused before it and told
//! when to come back. Without that, a Retry-After is a guess about a queue that newcomers fill again before its time
//! has come: at one and a half times the capacity one in three of those who came back was let in. With it, refusals
//! form a queue of their own outside the gateway, in the order in which they were given. *Formulas:*
//!
//! ```text
//! for a newcomer    queued and ahead count p · what is promised, of its session and its tenant, and due before its
//!                   own turn would come, which what is queued alone says; what is due later finds it gone
//! p                 the part of the tenant's promises that are redeemed, of late; 1/2 before anything is known
//! told to come back now + 9/8 · (what is ahead of it, all promises included, ÷ drain rate)
//!                   - half of what it may wait
//! for a lead        with nothing waiting or in flight here: without what is promised to its session, which it goes
//!                   before
//! for who returns   its own promise is taken off, and the promises of others do not count against it
//! ```
//!
//! Half of what it may wait, so that a prediction that is off by as much still lets it in; and an eighth more, so that
//! what is promised stays below what the engine gives and a late answer does not make all that follow late: what is
//! left goes to newcomers. Whoever says it returns (`x-stainless-retry-count`) takes the earliest promise of its
//! session, and gives it up if it comes too soon; whoever says nothing takes one that is due; whoever says it is new
//! takes none. All of it concerns one tenant's requests among themselves: a forged retry takes a place from the
//! forger's own session. *Bound:* [`MOST`] promises in a pool and [`MOST_OF_A_TENANT`] of one tenant and class, none of
//! them longer than [`LONGEST`], the wait beyond which clients are told not to return; one that is not redeemed lapses
//! [`GRACE`] after its time. *At idle* nothing is kept from anybody: what need not wait is never refused, a tenant
//! whose clients do not come back soon keeps no room for them, and nothing is promised to what no queue could hold.
//! *Never* holds a slot: the engine does not wait for those who were told to come back.

use std::collections::{BTreeMap, BTreeSet};

use crate::units::{ClassIndex, Instant, SessionId, Span, TenantId, VirtualTokens};

use super::queue::Load;
use super::request::{Attempt, Subject};

/// The most promises kept in one pool.
pub(super) const MOST: usize = 65_536;
/// The most promises kept of one tenant in one class.
pub(super) const MOST_OF_A_TENANT: usize = 4_096;
/// The longest wait that is promised anything.
pub(super) const LONGEST: Span = Span::from_secs(60);
/// The most tenants of which it is remembered how many come back, while nothing is promised to them.
const MOST_REMEMBERED: usize = 4_096;
/// The most promises that lapse in one step.
const MOST_LAPSES: usize = 256;
/// How long after its time a promise lapses.
const GRACE: Span = Span::from_secs(2);

/// The part of the engine that is not promised, so that promises can be kept.
pub(super) fn slack(wait: Span) -> Span {
    Span::from_nanos(wait.as_nanos() / 8)
}

/// How long until a wait now predicted has shrunk to half of what may be waited.
pub(super) fn until_bearable(predicted: Span, allowed: Span) -> Span {
    predicted.saturating_sub(Span::from_nanos(allowed.as_nanos() / 2))
}

/// What is promised, in the units of the caps and in work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) load: Load,
    pub(super) work: VirtualTokens,
}

impl Kept {
    fn plus(self, other: Self) -> Self {
        Self { load: self.load.plus(other.load), work: self.work + other.work }
    }

    fn minus(self, other: Self) -> Self {
        Self { load: self.load.minus(other.load), work: self.work - other.work }
    }

    fn times(self, part: Part) -> Self {
        let work = self.work.as_micros().saturating_mul(i128::from(part.0)) / i128::from(Part::ALL);
        Self { load: self.load.part(part.0, Part::ALL), work: VirtualTokens::from_micros(work) }
    }
}

/// What is promised to a request's own tenant and session, and in its class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Promised {
    pub(super) in_class: Kept,
    pub(super) of_tenant: Kept,
    pub(super) of_session: Kept,
}

/// The part of promises that is redeemed, in 65,536ths: a mean that fades over some sixteen promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part(u32);

impl Part {
    const ALL: u32 = 65_536;
    const UNKNOWN: Self = Self(Self::ALL / 2);
    const FADE: u32 = 16;

    fn redeemed(&mut self) {
        self.0 += (Self::ALL - self.0) / Self::FADE;
    }

    fn lapsed(&mut self) {
        self.0 -= self.0.div_ceil(Self::FADE);
    }
}

/// When, and in which order they were given.
type Due = (Instant, u64);

#[derive(Debug)]
struct Promise {
    owner: Owner,
    kept: Kept,
}

/// To whom something is promised.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Owner {
    class: ClassIndex,
    tenant: TenantId,
    session: Option<SessionId>,
}

impl Owner {
    fn of(subject: &Subject) -> Self {
        Self { class: subject.class, tenant: subject.tenant.clone(), session: subject.session.clone() }
    }
}

/// What is promised, by the second in which it is due.
#[derive(Debug, Default)]
struct Calendar(BTreeMap<u64, Kept>);

impl Calendar {
    fn second(at: Instant) -> u64 {
        at.as_nanos() / Span::from_secs(1).as_nanos()
    }

    fn add(&mut self, due: Instant, kept: Kept) {
        let day = self.0.entry(Self::second(due)).or_default();
        *day = day.plus(kept);
    }

    fn take(&mut self, due: Instant, kept: Kept) {
        let second = Self::second(due);
        if let Some(entry) = self.0.get_mut(&second) {
            *entry = entry.minus(kept);
            if entry.load.is_empty() {
                self.0.remove(&second);
            }
        }
    }

    fn until(&self, at: Instant) -> Kept {
        self.0.range(..=Self::second(at)).fold(Kept::default(), |sum, (_, kept)| sum.plus(*kept))
    }
}

#[derive(Debug, Default)]
struct OfSession {
    calendar: Calendar,
    due: BTreeSet<Due>,
}

#[derive(Debug)]
struct OfTenant {
    calendar: Calendar,
    count: usize,
    redeemed: Part,
}

impl Default for OfTenant {
    fn default() -> Self {
        Self { calendar: Calendar::default(), count: 0, redeemed: Part::UNKNOWN }
    }
}

/// One pool's promises.
#[derive(Debug, Default)]
pub(super) struct Promises {
    by_due: BTreeMap<Due, Promise>,
    sessions: BTreeMap<Owner, OfSession>,
    tenants: BTreeMap<(ClassIndex, TenantId), OfTenant>,
    classes: BTreeMap<ClassIndex, Calendar>,
    given: u64,
}

impl Promises {
    /// Keeps room for whoever was told to come back then; not if that is too far off, or too much is promised.
    pub(super) fn give(&mut self, subject: &Subject, now: Instant, due: Instant, kept: Kept) {
        if due.since(now) > LONGEST || self.by_due.len() >= MOST {
            return;
        }
        let of_tenant = self.tenants.entry((subject.class, subject.tenant.clone())).or_default();
        if of_tenant.count >= MOST_OF_A_TENANT {
            return;
        }
        of_tenant.calendar.add(due, kept);
        of_tenant.count += 1;
        self.classes.entry(subject.class).or_default().add(due, kept);
        self.given += 1;
        let owner = Owner::of(subject);
        let of_session = self.sessions.entry(owner.clone()).or_default();
        of_session.calendar.add(due, kept);
        of_session.due.insert((due, self.given));
        self.by_due.insert((due, self.given), Promise { owner, kept });
    }

    /// Whether a request that arrives redeems a promise, which is then gone.
    pub(super) fn redeem(&mut self, subject: &Subject, attempt: Attempt, now: Instant) -> bool {
        let Some(due) = self.redeemable(subject, attempt, now) else { return false };
        self.remove(due, Part::redeemed);
        true
    }

    /// Whether a request that arrived now would redeem a promise whose time has come. Who comes sooner gives its promise
    /// up and is a newcomer, or whoever obeys would find its place taken by who does not.
    pub(super) fn redeems(&self, subject: &Subject, attempt: Attempt, now: Instant) -> bool {
        self.redeemable(subject, attempt, now).is_some_and(|(due, _)| due <= now)
    }

    fn redeemable(&self, subject: &Subject, attempt: Attempt, now: Instant) -> Option<Due> {
        let first = self.sessions.get(&Owner::of(subject)).and_then(|of_session| of_session.due.first().copied());
        first.filter(|(due, _)| match attempt {
            Attempt::First => false,
            Attempt::Again => true,
            Attempt::Unsaid => *due <= now,
        })
    }

    /// What has to be reckoned with, of the promises to the tenant and the session of a newcomer that are due by then.
    /// What the newcomer would give up is not among them.
    pub(super) fn expected(&self, subject: &Subject, attempt: Attempt, now: Instant, by: Instant) -> Promised {
        let Some(of_tenant) = self.tenants.get(&(subject.class, subject.tenant.clone())) else {
            return Promised::default();
        };
        let Promised { of_tenant: tenant, of_session: session, .. } = self.promised(subject, by);
        let own =
            self.redeemable(subject, attempt, now).filter(|(due, _)| Calendar::second(*due) <= Calendar::second(by));
        let own = own.and_then(|due| self.by_due.get(&due)).map(|promise| promise.kept).unwrap_or_default();
        let (tenant, session) = (tenant.minus(own), session.minus(own));
        let part = of_tenant.redeemed;
        let of_tenant = tenant.times(part);
        // Of its class too only its own tenant's: what others were told is no reason to refuse it.
        Promised { in_class: of_tenant, of_tenant, of_session: session.times(part) }
    }

    /// All that is promised to the tenant and the session of a request, and due by then.
    pub(super) fn promised(&self, subject: &Subject, by: Instant) -> Promised {
        let of_tenant = self.tenants.get(&(subject.class, subject.tenant.clone()));
        let of_session = self.sessions.get(&Owner::of(subject));
        let in_class = self.classes.get(&subject.class);
        Promised {
            in_class: in_class.map(|calendar| calendar.until(by)).unwrap_or_default(),
            of_tenant: of_tenant.map(|of_tenant| of_tenant.calendar.until(by)).unwrap_or_default(),
            of_session: of_session.map(|of_session| of_session.calendar.until(by)).unwrap_or_default(),
        }
    }

    /// Drops what was due too long ago, a few at a time: nobody waits while thousands lapse after a silence.
    pub(super) fn lapse(&mut self, now: Instant) {
        for _ in 0..MOST_LAPSES {
            let Some(due) = self.by_due.keys().next().copied().filter(|(due, _)| *due + GRACE < now) else { return };
            self.remove(due, Part::lapsed);
        }
    }

    fn remove(&mut self, due: Due, learn: fn(&mut Part)) {
        let Some(Promise { owner, kept }) = self.by_due.remove(&due) else { return };
        if let Some(of_session) = self.sessions.get_mut(&owner) {
            of_session.calendar.take(due.0, kept);
            of_session.due.remove(&due);
            if of_session.due.is_empty() {
                self.sessions.remove(&owner);
            }
        }
        if let Some(calendar) = self.classes.get_mut(&owner.class) {
            calendar.take(due.0, kept);
        }
        let (tenant, crowded) = ((owner.class, owner.tenant), self.tenants.len() > MOST_REMEMBERED);
        if let Some(of_tenant) = self.tenants.get_mut(&tenant) {
            of_tenant.calendar.take(due.0, kept);
            of_tenant.count -= 1;
            learn(&mut of_tenant.redeemed);
            if of_tenant.count == 0 && crowded {
                self.tenants.remove(&tenant);
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::{
        Attempt, Calendar, Kept, LONGEST, Load, MOST_LAPSES, MOST_OF_A_TENANT, Owner, Promise, Promised, Promises,
    };
    use crate::admission::request::Subject;
    use crate::units::{Bytes, ClassIndex, Instant, PoolIndex, SessionId, Span, TenantId, Tokens, VirtualTokens};

    /// Whether every sum agrees with the promises themselves.
    pub(in crate::admission) fn agree(promises: &Promises) -> bool {
        let sum = |keep: &dyn Fn(&Owner) -> bool| {
            let mut calendar = Calendar::default();
            for ((due, _), Promise { kept, .. }) in promises.by_due.iter().filter(|(_, given)| keep(&given.owner)) {
                calendar.add(*due, *kept);
            }
            calendar.0
        };
        let of =
            |owner: &Owner, class: &ClassIndex, tenant: &TenantId| owner.class == *class && owner.tenant == *tenant;
        promises
            .sessions
            .iter()
            .all(|(owner, known)| known.calendar.0 == sum(&|other| other == owner) && !known.due.is_empty())
            && promises.tenants.iter().all(|((class, tenant), known)| {
                let count = promises.by_due.values().filter(|given| of(&given.owner, class, tenant)).count();
                known.calendar.0 == sum(&|owner| of(owner, class, tenant)) && known.count == count
            })
            && promises.classes.iter().all(|(class, known)| known.0 == sum(&|owner| owner.class == *class))
            && promises.by_due.values().all(|given| promises.sessions.contains_key(&given.owner))
    }

    fn subject(tenant: &str, session: Option<&str>) -> Subject {
        let session = session.map(SessionId::from);
        Subject { pool: PoolIndex::new(0), class: ClassIndex::new(0), tenant: TenantId::from(tenant), session }
    }

    fn kept(requests: u32) -> Kept {
        let many = u64::from(requests);
        let load = Load { requests, tokens: Tokens::new(100 * many), bytes: Bytes::ZERO };
        Kept { load, work: VirtualTokens::whole(100 * many) }
    }

    fn at(secs: f64) -> Instant {
        Instant::from_secs_f64(secs)
    }

    fn give(promises: &mut Promises, to: &Subject, due: f64) {
        promises.give(to, at(0.0), at(due), kept(1));
    }

    #[test]
    fn a_promise_counts_until_it_is_redeemed_or_lapses_and_only_for_its_own() {
        let mut promises = Promises::default();
        let (a, b, other) = (subject("a", Some("s")), subject("a", Some("t")), subject("b", Some("s")));
        give(&mut promises, &a, 5.0);
        give(&mut promises, &a, 9.0);
        give(&mut promises, &b, 7.0);
        let of = |promises: &Promises, who: &Subject, by: f64| {
            let Promised { in_class, of_tenant, of_session } = promises.promised(who, at(by));
            [in_class, of_tenant, of_session].map(|kept| kept.load.requests)
        };
        assert_eq!(of(&promises, &a, 8.0), [2, 2, 1], "what is due later does not count");
        assert_eq!(of(&promises, &a, 60.0), [3, 3, 2]);
        assert_eq!(of(&promises, &other, 60.0), [3, 0, 0], "another tenant's session of the same name is another");
        assert!(promises.redeem(&a, Attempt::Again, at(1.0)), "the earliest of its session");
        assert_eq!(of(&promises, &a, 8.0), [1, 1, 0]);
        promises.lapse(at(9.0));
        assert_eq!(of(&promises, &a, 60.0), [2, 2, 1], "two seconds of grace");
        promises.lapse(at(11.1));
        assert_eq!(of(&promises, &a, 60.0), [0, 0, 0]);
    }

    #[test]
    fn who_says_it_is_new_redeems_nothing_and_who_says_nothing_only_what_is_due() {
        let mut promises = Promises::default();
        let a = subject("a", None);
        for due in [5.0, 6.0, 7.0] {
            give(&mut promises, &a, due);
        }
        assert!(!promises.redeem(&a, Attempt::First, at(9.0)));
        assert!(!promises.redeem(&a, Attempt::Unsaid, at(4.9)));
        assert!(promises.redeem(&a, Attempt::Unsaid, at(5.0)));
        assert!(promises.redeem(&a, Attempt::Again, at(5.0)), "early, but it says it returns");
        assert!(!promises.redeem(&subject("a", Some("forged")), Attempt::Again, at(9.0)), "nothing is promised to it");
    }

    #[test]
    fn a_tenant_whose_clients_do_not_come_back_soon_keeps_no_room_for_them() {
        let mut promises = Promises::default();
        let a = subject("a", None);
        let expected = |promises: &mut Promises, redeem: bool| {
            for _ in 0..60 {
                promises.give(&a, at(0.0), at(1.0), kept(1));
                if redeem {
                    assert!(promises.redeem(&a, Attempt::Again, at(1.0)));
                } else {
                    promises.lapse(at(10.0));
                }
            }
            promises.give(&a, at(0.0), at(1.0), kept(100));
            let expected = promises.expected(&a, Attempt::First, at(1.0), at(2.0)).of_tenant.load.requests;
            promises.redeem(&a, Attempt::Again, at(1.0));
            expected
        };
        assert!(expected(&mut promises, false) <= 5);
        assert!(expected(&mut promises, true) >= 95);
    }

    #[test]
    fn promises_are_bounded_in_number_and_time() {
        let mut promises = Promises::default();
        let a = subject("a", None);
        promises.give(&a, at(0.0), at(0.0) + LONGEST + Span::from_millis(1), kept(1));
        assert_eq!(promises.promised(&a, Instant::FAR), Promised::default(), "too far off");
        for _ in 0..=MOST_OF_A_TENANT {
            give(&mut promises, &a, 5.0);
        }
        give(&mut promises, &subject("b", None), 5.0);
        assert_eq!(promises.by_due.len(), MOST_OF_A_TENANT + 1);
        promises.lapse(at(100.0));
        assert_eq!(promises.by_due.len(), MOST_OF_A_TENANT + 1 - MOST_LAPSES, "a few at a time");
        (0..MOST_OF_A_TENANT / MOST_LAPSES).for_each(|_| promises.lapse(at(100.0)));
        assert!(promises.by_due.is_empty() && promises.sessions.is_empty());
    }
}
