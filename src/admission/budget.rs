//! Budgets: so much in a period of the calendar, or in the life of a session or a task.
//!
//! *Decides* whether what is left of a budget covers an amount. *Formula:* `used + min(asked, amount) ≤ amount`, where
//! `used` is what is settled and what is held for requests that have not ended; what is expected to take more than the
//! whole needs the whole. *Source:* the design's table of the flow of money. The
//! period of a request is the one in which it was held, whenever it ends. Periods only follow each other: a calendar
//! that is set back does not open one anew. *Durability:* where a ledger keeps them, each account has a *grant* that was
//! written down ahead of use, in slices of a hundredth of the budget. No request goes upstream before a grant that
//! covers it is written, so a crash loses no charge and grants nothing twice; what it costs is the unused rest of a
//! slice. *Bound:* [`MOST`] accounts for each budget; beyond that the one that has used least is forgotten.
//! *Never* forgets an account that holds something for a request.

use std::collections::{BTreeMap, BTreeSet};

use crate::policy::model::{Bounds, Budget};
use crate::units::{Amount, UnixTime};

use super::rule::Owner;

/// The most accounts remembered for one budget.
pub(super) const MOST: usize = 65_536;
/// How much of a budget is granted ahead at once.
const SLICES: i128 = 100;

/// A number of a grant, in the order in which they are made, of all budgets together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DebitNumber(u64);

impl DebitNumber {
    /// Wraps a number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Which account of a budget: whose, and of which period.
type Key = (UnixTime, Owner);

/// One budget's accounts.
#[derive(Debug)]
pub(super) struct Accounts {
    amount: Amount,
    slice: Amount,
    /// The period that is on.
    bounds: Bounds,
    by_owner: BTreeMap<Key, Account>,
    /// Those that hold nothing, least used first.
    resting: BTreeSet<(Amount, Key)>,
}

/// What of a budget is used and held.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    used: Amount,
    /// How many requests something is held for.
    open: u32,
    granted: Amount,
    /// The grant that covers what is used.
    debit: DebitNumber,
}

/// A grant to be written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) upto: Amount,
    pub(super) end: UnixTime,
}

impl Accounts {
    pub(super) fn new(budget: &Budget) -> Self {
        let slice = Amount::from_parts((budget.amount.parts() / SLICES).max(1));
        Self {
            amount: budget.amount,
            slice,
            bounds: Bounds { start: UnixTime::from_nanos(i64::MIN), end: UnixTime::from_nanos(i64::MIN) },
            by_owner: BTreeMap::new(),
            resting: BTreeSet::new(),
        }
    }

    /// The calendar has come this far. Accounts of periods that are over go once they hold nothing.
    pub(super) fn advance(&mut self, budget: &Budget, wall: UnixTime) {
        if wall < self.bounds.end || self.bounds.end == UnixTime::FAR {
            return;
        }
        self.bounds = budget.period.around(wall);
        let start = self.bounds.start;
        self.by_owner.retain(|(period, _), account| *period >= start || account.open > 0);
        self.resting.retain(|(_, (period, _))| *period >= start);
    }

    pub(super) fn bounds(&self) -> Bounds {
        self.bounds
    }

    pub(super) fn left(&self, owner: &Owner) -> Amount {
        self.amount - self.account(&self.key(owner)).used
    }

    pub(super) fn allows(&self, owner: &Owner, asked: Amount) -> bool {
        self.left(owner) >= asked.min(self.amount)
    }

    fn key(&self, owner: &Owner) -> Key {
        (self.bounds.start, owner.clone())
    }

    fn account(&self, key: &Key) -> Account {
        self.by_owner.get(key).copied().unwrap_or_default()
    }

    /// Holds so much for a request, in the period that is on.
    pub(super) fn hold(&mut self, owner: &Owner, amount: Amount) -> UnixTime {
        let key = self.key(owner);
        let account = self.account(&key);
        self.put(key, Account { used: account.used + amount, open: account.open + 1, ..account });
        self.bounds.start
    }

    /// A hold, of the period in which it was made, turns out to be so much more, or less.
    pub(super) fn change(&mut self, period: UnixTime, owner: &Owner, by: Amount) {
        let key = (period, owner.clone());
        if let Some(account) = self.by_owner.get(&key).copied() {
            let used = (account.used + by).max(Amount::ZERO);
            self.put(key, Account { used, ..account });
        }
    }

    /// A request that something was held for has ended, and what was held is now used.
    pub(super) fn close(&mut self, period: UnixTime, owner: &Owner) {
        let key = (period, owner.clone());
        if let Some(account) = self.by_owner.get(&key).copied() {
            self.put(key, Account { open: account.open.saturating_sub(1), ..account });
        }
    }

    fn put(&mut self, key: Key, account: Account) {
        if let Some(before) = self.by_owner.insert(key.clone(), account)
            && before.open == 0
        {
            self.resting.remove(&(before.used, key.clone()));
        }
        if account.open == 0 {
            if key.0 < self.bounds.start {
                self.by_owner.remove(&key);
            } else {
                self.resting.insert((account.used, key));
            }
        }
        if self.by_owner.len() > MOST
            && let Some((_, least)) = self.resting.pop_first()
        {
            self.by_owner.remove(&least);
        }
    }

    /// The grant an account needs now: when what is used comes near what is granted, as much again as a slice.
    pub(super) fn grant(&mut self, period: UnixTime, owner: &Owner, number: DebitNumber) -> Option<Grant> {
        let account = self.by_owner.get_mut(&(period, owner.clone()))?;
        let near = Amount::from_parts(self.slice.parts() / 2);
        if account.used + near <= account.granted {
            return None;
        }
        account.granted = account.used + self.slice;
        account.debit = number;
        let end = if period == self.bounds.start { self.bounds.end } else { self.bounds.start };
        Some(Grant { upto: account.granted, end })
    }

    /// The grant that covers all that an account has used.
    pub(super) fn debit(&self, period: UnixTime, owner: &Owner) -> DebitNumber {
        self.account(&(period, owner.clone())).debit
    }

    /// What was granted before a restart counts as used.
    pub(super) fn restore(&mut self, period: UnixTime, owner: &Owner, granted: Amount) {
        if period == self.bounds.start {
            let key = (period, owner.clone());
            let account = self.account(&key);
            let used = account.used + granted;
            self.put(key, Account { used, granted: account.granted + granted, ..account });
        }
    }

    /// What whoever has used most has used; nothing where nobody has.
    pub(super) fn most_used(&self) -> Option<Amount> {
        self.by_owner.values().map(|account| account.used).max()
    }

    /// Every account: whose, of which period, what is used of it.
    pub(super) fn used(&self) -> impl Iterator<Item = (&Owner, UnixTime, Amount)> {
        self.by_owner.iter().map(|((period, owner), account)| (owner, *period, account.used))
    }
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;

    use super::{Accounts, Amount, Budget, DebitNumber, MOST, Owner, UnixTime};
    use crate::policy::model::{Per, Period, Scope, Spent};
    use crate::units::{Measure, TenantId};

    const HOUR: i64 = 3_600_000_000_000;

    fn budget(period: Period) -> Budget {
        Budget {
            name: "test".into(),
            scope: Scope::default(),
            per: Per::Tenant,
            measure: Measure::Tokens,
            amount: parts(1_000),
            period,
            spent: Spent::Refuse,
            warn_at: Vec::new(),
        }
    }

    fn parts(parts: i128) -> Amount {
        Amount::from_parts(parts)
    }

    fn owner(name: &str) -> Owner {
        Owner::Tenant(TenantId::from(name))
    }

    fn hour(number: i64) -> UnixTime {
        UnixTime::from_nanos(number * HOUR + 5)
    }

    #[test]
    fn a_period_that_is_over_is_a_budget_anew_and_a_hold_stays_in_its_own() {
        let budget = budget(Period::Hour(TimeZone::UTC));
        let mut accounts = Accounts::new(&budget);
        let who = owner("a");
        accounts.advance(&budget, hour(10));
        let period = accounts.hold(&who, parts(800));
        assert!(accounts.allows(&who, parts(200)) && !accounts.allows(&who, parts(201)));
        accounts.advance(&budget, hour(11));
        assert!(accounts.allows(&who, parts(1_000)), "a new hour");
        accounts.change(period, &who, parts(-300));
        accounts.close(period, &who);
        assert_eq!(accounts.left(&who), parts(1_000), "what is given back belongs to the hour before");
        assert_eq!(accounts.used().count(), 0, "which is gone");
        accounts.hold(&who, parts(1_000));
        accounts.advance(&budget, hour(10));
        assert!(!accounts.allows(&who, parts(1)), "a calendar set back opens nothing anew");
    }

    #[test]
    fn what_is_used_is_granted_ahead_and_once() {
        let budget = budget(Period::Hour(TimeZone::UTC));
        let mut accounts = Accounts::new(&budget);
        let who = owner("a");
        accounts.advance(&budget, hour(10));
        let period = accounts.hold(&who, parts(1));
        let mut granted = Amount::ZERO;
        for number in 1..500 {
            accounts.change(period, &who, parts(2));
            if let Some(grant) = accounts.grant(period, &who, DebitNumber::new(number)) {
                assert!(grant.upto > granted);
                granted = grant.upto;
                assert_eq!(grant.end, UnixTime::from_nanos(11 * HOUR));
            }
            let used = parts(1_000) - accounts.left(&who);
            assert!(used <= granted && granted <= used + parts(10), "{used:?} {granted:?}");
        }
        let mut restarted = Accounts::new(&budget);
        restarted.advance(&budget, hour(10));
        restarted.restore(period, &who, granted);
        assert_eq!(restarted.left(&who), parts(1_000) - granted);
        restarted.hold(&who, parts(1));
        assert!(restarted.grant(period, &who, DebitNumber::new(1)).is_some_and(|grant| grant.upto > granted));
    }

    #[test]
    fn accounts_are_bounded_and_the_least_used_goes_first() {
        let budget = budget(Period::Lifetime);
        let mut accounts = Accounts::new(&budget);
        accounts.advance(&budget, hour(10));
        for number in 0..MOST + 100 {
            let who = owner(&number.to_string());
            let period = accounts.hold(&who, parts(if number == 0 { 900 } else { 1 }));
            accounts.close(period, &who);
        }
        assert_eq!(accounts.used().count(), MOST);
        assert!(!accounts.allows(&owner("0"), parts(101)));
    }
}
