//! Running totals per account: admitted, refused, charged, and the share of the last minute.
//!
//! `share_60s` is the part of a pool's service that an account was charged in the last sixty seconds, in the twelve
//! five-second slots that lie within them. A refund lowers the slot it falls in, so a share can briefly be less than
//! what was really used; it is never told as less than nothing.
//!
//! Bounded: of more than [`Totals::MOST_ACCOUNTS`] accounts the one longest without news is forgotten, with its
//! totals.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::admission::{Event, Subject};
use crate::ledger::Account;
use crate::units::{Instant, PoolIndex, Span, VirtualTokens};

const SLOTS: usize = 12;
const SLOT: Span = Span::from_secs(5);

/// What one account comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// Requests let through.
    pub admitted: u64,
    /// Requests refused, on arrival or later.
    pub refused: u64,
    /// What its fair counter was charged, refunds taken off, before division by weight.
    pub charged: VirtualTokens,
}

/// All accounts' totals.
#[derive(Debug)]
pub struct Totals {
    most: usize,
    accounts: HashMap<Account, Entry>,
    /// Accounts by when they last had news.
    order: BTreeSet<(u64, Account)>,
    pools: BTreeMap<PoolIndex, Ring>,
    news: u64,
}

#[derive(Debug, Default)]
struct Entry {
    total: Total,
    ring: Ring,
    latest: u64,
}

/// What was charged in each of the last slots.
#[derive(Debug, Default)]
struct Ring {
    slots: [VirtualTokens; SLOTS],
    newest: u64,
}

impl Ring {
    fn slot_of(at: Instant) -> u64 {
        at.as_nanos() / SLOT.as_nanos()
    }

    fn index(slot: u64) -> usize {
        usize::try_from(slot % SLOTS as u64).unwrap_or_default()
    }

    fn add(&mut self, at: Instant, amount: VirtualTokens) {
        let slot = Self::slot_of(at).max(self.newest);
        let passed = slot - self.newest;
        for missed in 0..passed.min(SLOTS as u64) {
            self.slots[Self::index(slot - missed)] = VirtualTokens::ZERO;
        }
        self.newest = slot;
        self.slots[Self::index(slot)] += amount;
    }

    /// What was charged in the last minute as seen from `now`.
    fn sum(&self, now: Instant) -> VirtualTokens {
        let oldest = (Self::slot_of(now) + 1).saturating_sub(SLOTS as u64);
        let first = (self.newest + 1).saturating_sub(SLOTS as u64).max(oldest);
        (first..=self.newest).map(|slot| self.slots[Self::index(slot)]).sum::<VirtualTokens>().max(VirtualTokens::ZERO)
    }
}

impl Default for Totals {
    fn default() -> Self {
        Self::with_most_accounts(Self::MOST_ACCOUNTS)
    }
}

impl Totals {
    /// How many accounts are remembered.
    pub const MOST_ACCOUNTS: usize = 65_536;

    fn with_most_accounts(most: usize) -> Self {
        Self { most, accounts: HashMap::new(), order: BTreeSet::new(), pools: BTreeMap::new(), news: 0 }
    }

    /// Counts an event.
    pub fn note(&mut self, event: &Event) {
        match event {
            Event::Dispatched { subject, .. } => self.entry(subject).total.admitted += 1,
            Event::Refused { refusal, .. } => self.entry(&refusal.subject).total.refused += 1,
            Event::Charged { at, subject, amount, .. } => {
                let entry = self.entry(subject);
                entry.total.charged += *amount;
                entry.ring.add(*at, *amount);
                self.pools.entry(subject.pool).or_default().add(*at, *amount);
            }
            Event::Queued { .. }
            | Event::Demoted { .. }
            | Event::Shadowed { .. }
            | Event::Hit { .. }
            | Event::Vacated { .. }
            | Event::Breaker { .. }
            | Event::Settled { .. }
            | Event::Cancelled { .. }
            | Event::WindowMoved { .. }
            | Event::UnknownTicket { .. } => {}
        }
    }

    /// What an account comes to; nothing if it was never heard of or is forgotten.
    #[must_use]
    pub fn total(&self, account: &Account) -> Total {
        self.accounts.get(account).map(|entry| entry.total).unwrap_or_default()
    }

    /// Every account remembered, in no order.
    pub fn accounts(&self) -> impl Iterator<Item = &Account> {
        self.accounts.keys()
    }

    /// The part of its pool's service an account was charged in the last minute; none when the pool gave none.
    #[must_use]
    pub fn share_60s(&self, account: &Account, now: Instant) -> f64 {
        let own = self.accounts.get(account).map(|entry| entry.ring.sum(now)).unwrap_or_default().as_f64();
        let all = self.pools.get(&account.pool).map(|ring| ring.sum(now)).unwrap_or_default().as_f64();
        if all > 0.0 { (own / all).min(1.0) } else { 0.0 }
    }

    fn entry(&mut self, subject: &Subject) -> &mut Entry {
        let account = Account { pool: subject.pool, class: subject.class, tenant: subject.tenant.clone() };
        self.news += 1;
        let news = self.news;
        match self.accounts.get(&account) {
            Some(entry) => {
                self.order.remove(&(entry.latest, account.clone()));
            }
            None if self.accounts.len() >= self.most => {
                if let Some((_, oldest)) = self.order.pop_first() {
                    self.accounts.remove(&oldest);
                }
            }
            None => {}
        }
        self.order.insert((news, account.clone()));
        let entry = self.accounts.entry(account).or_default();
        entry.latest = news;
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::{Account, Total, Totals};
    use crate::admission::{Event, Subject};
    use crate::units::{ClassIndex, Instant, PoolIndex, RequestId, Span, TenantId, VirtualTokens};

    fn subject(tenant: &str) -> Subject {
        let (pool, class) = (PoolIndex::new(0), ClassIndex::new(0));
        Subject { pool, class, tenant: TenantId::from(tenant), session: None }
    }

    fn account(tenant: &str) -> Account {
        Account { pool: PoolIndex::new(0), class: ClassIndex::new(0), tenant: TenantId::from(tenant) }
    }

    fn at(secs: u64) -> Instant {
        Instant::EPOCH + Span::from_secs(secs)
    }

    fn charge(totals: &mut Totals, secs: u64, tenant: &str, amount: i128) {
        let amount = VirtualTokens::from_micros(amount * 1_000_000);
        let request = RequestId::new(1);
        totals.note(&Event::Charged { at: at(secs), request, subject: subject(tenant), amount });
    }

    fn close(found: f64, expected: f64) -> bool {
        (found - expected).abs() < 1e-9
    }

    #[test]
    fn a_share_is_of_the_last_minute_of_the_pool() {
        let mut totals = Totals::default();
        charge(&mut totals, 100, "a", 300);
        charge(&mut totals, 101, "b", 150);
        charge(&mut totals, 130, "b", -50);
        assert!(close(totals.share_60s(&account("a"), at(131)), 0.75));
        assert!(close(totals.share_60s(&account("b"), at(131)), 0.25));
        assert_eq!(totals.total(&account("b")).charged, VirtualTokens::whole(100), "charged for good");
        // The first charges leave the minute; what is left is b's refund, which is no share at all.
        assert!(close(totals.share_60s(&account("b"), at(165)), 0.0));
        charge(&mut totals, 400, "b", 1);
        assert!(close(totals.share_60s(&account("b"), at(400)), 1.0));
        assert!(close(totals.share_60s(&account("a"), at(400)), 0.0));
        assert!(close(totals.share_60s(&account("nobody"), at(9_999)), 0.0));
    }

    #[test]
    fn the_account_longest_without_news_is_forgotten_first() {
        let mut totals = Totals::with_most_accounts(2);
        for tenant in ["a", "b", "a", "c"] {
            charge(&mut totals, 1, tenant, 1);
        }
        assert_eq!(totals.accounts().count(), 2);
        assert_eq!(totals.total(&account("b")), Total::default());
        assert_eq!(totals.total(&account("a")).charged, VirtualTokens::whole(2));
        assert_eq!(totals.order.len(), 2);
    }
}
