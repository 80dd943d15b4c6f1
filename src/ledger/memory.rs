//! The books of one process, in memory.
//!
//! Bounded: beyond 65,536 the accounts that have nothing running are folded, longest idle first,
//! into one closed account per pool and class, so that totals stay exact while names are given up.

use std::collections::{BTreeMap, BTreeSet};

use crate::units::{ClassIndex, PoolIndex, VirtualTokens};

use super::entry::{Account, Entry, Movement};

/// How many accounts are kept by name.
const MOST_ACCOUNTS: usize = 65_536;

/// Where the core's entries go.
///
/// An implementation applies every entry exactly once and in order, and keeps for each account
/// `reserved = settled + refunded + live` in exact integers.
pub trait Ledger {
    /// Writes one entry.
    fn post(&mut self, entry: &Entry);

    /// The balance of an account; all zero if nothing was ever posted to it, or its name was given up.
    fn balance(&self, account: &Account) -> Balance;
}

/// What an account comes to, in unweighted virtual tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// All that was ever held.
    pub reserved: VirtualTokens,
    /// What of it was owed in the end.
    pub settled: VirtualTokens,
    /// What of it was given back.
    pub refunded: VirtualTokens,
}

impl Balance {
    /// What is held for requests that have not ended: `reserved − settled − refunded`.
    #[must_use]
    pub fn live(&self) -> VirtualTokens {
        self.reserved - self.settled - self.refunded
    }

    fn apply(&mut self, movement: Movement, amount: VirtualTokens) {
        match movement {
            Movement::Reserve => self.reserved += amount,
            Movement::Settle => self.settled += amount,
            Movement::Refund => self.refunded += amount,
        }
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            reserved: self.reserved + other.reserved,
            settled: self.settled + other.settled,
            refunded: self.refunded + other.refunded,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Open {
    balance: Balance,
    /// The number of its latest entry.
    latest: u64,
}

/// The in-memory ledger.
#[derive(Debug)]
pub struct Memory {
    most: usize,
    open: BTreeMap<Account, Open>,
    /// Accounts with nothing running, by their latest entry, oldest first.
    idle: BTreeSet<(u64, Account)>,
    closed: BTreeMap<(PoolIndex, ClassIndex), Balance>,
    entries: u64,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    /// Empty books.
    #[must_use]
    pub fn new() -> Self {
        Self::with_most_accounts(MOST_ACCOUNTS)
    }

    /// Empty books that keep at most so many idle accounts by name.
    #[must_use]
    pub fn with_most_accounts(most: usize) -> Self {
        Self { most, open: BTreeMap::new(), idle: BTreeSet::new(), closed: BTreeMap::new(), entries: 0 }
    }

    /// Every account kept by name, in order.
    pub fn accounts(&self) -> impl Iterator<Item = (&Account, Balance)> + '_ {
        self.open.iter().map(|(account, open)| (account, open.balance))
    }

    /// What the accounts whose names were given up came to, by pool and class.
    pub fn closed(&self) -> impl Iterator<Item = ((PoolIndex, ClassIndex), Balance)> + '_ {
        self.closed.iter().map(|(place, balance)| (*place, *balance))
    }

    /// Everything together.
    #[must_use]
    pub fn total(&self) -> Balance {
        let open = self.open.values().map(|open| &open.balance);
        open.chain(self.closed.values()).fold(Balance::default(), |sum, balance| sum.plus(balance))
    }

    /// Gives up the name of the account that has been idle longest, if one is.
    fn close_one(&mut self) {
        let Some((_, account)) = self.idle.pop_first() else { return };
        if let Some(open) = self.open.remove(&account) {
            let closed = self.closed.entry((account.pool, account.class)).or_default();
            *closed = closed.plus(&open.balance);
        }
    }
}

impl Ledger for Memory {
    fn post(&mut self, entry: &Entry) {
        self.entries += 1;
        let open = self.open.entry(entry.account.clone()).or_default();
        if open.balance.live() == VirtualTokens::ZERO {
            self.idle.remove(&(open.latest, entry.account.clone()));
        }
        open.balance.apply(entry.movement, entry.amount);
        open.latest = self.entries;
        if open.balance.live() == VirtualTokens::ZERO {
            self.idle.insert((self.entries, entry.account.clone()));
        }
        if self.open.len() > self.most {
            self.close_one();
        }
    }

    fn balance(&self, account: &Account) -> Balance {
        self.open.get(account).map(|open| open.balance).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::{Account, Balance, Entry, Ledger, Memory, Movement, VirtualTokens};
    use crate::units::{ClassIndex, PoolIndex, RequestId, TenantId};

    fn entry(tenant: &str, movement: Movement, amount: u64) -> Entry {
        let account = Account { pool: PoolIndex::new(0), class: ClassIndex::new(0), tenant: TenantId::from(tenant) };
        Entry { account, request: RequestId::new(0), movement, amount: VirtualTokens::whole(amount) }
    }

    #[test]
    fn what_is_reserved_is_settled_refunded_or_live() {
        let mut books = Memory::new();
        books.post(&entry("a", Movement::Reserve, 100));
        books.post(&entry("a", Movement::Settle, 60));
        assert_eq!(books.balance(&entry("a", Movement::Settle, 0).account).live(), VirtualTokens::whole(40));
        books.post(&entry("a", Movement::Refund, 40));
        assert_eq!(books.total().live(), VirtualTokens::ZERO);
    }

    #[test]
    fn idle_names_are_given_up_but_no_amount_is() {
        let mut books = Memory::with_most_accounts(10);
        books.post(&entry("busy", Movement::Reserve, 7));
        for tenant in 0..1_000 {
            let name = format!("tenant-{tenant}");
            books.post(&entry(&name, Movement::Reserve, 5));
            books.post(&entry(&name, Movement::Settle, 3));
            books.post(&entry(&name, Movement::Refund, 2));
        }
        assert!(books.accounts().count() <= 12);
        let vt = VirtualTokens::whole;
        assert_eq!(books.total(), Balance { reserved: vt(5_007), settled: vt(3_000), refunded: vt(2_000) });
        assert_eq!(
            books.balance(&entry("busy", Movement::Settle, 0).account).live(),
            vt(7),
            "running work keeps its name"
        );
    }
}
