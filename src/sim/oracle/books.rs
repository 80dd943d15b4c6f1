//! The books, added up a second time.

use std::collections::BTreeMap;

use crate::units::{ClassIndex, PoolIndex, RequestId, TenantId, VirtualTokens};

/// Whose account: fairness is reckoned per pool and class, and so are the books.
pub type AccountKey = (PoolIndex, ClassIndex, TenantId);

/// A movement on an account, for one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Booking {
    /// Whose account.
    pub account: AccountKey,
    /// For which request.
    pub request: RequestId,
    /// Newly held.
    pub reserved: VirtualTokens,
    /// Of what was held, now owed for good.
    pub settled: VirtualTokens,
    /// Of what was held, now given back.
    pub refunded: VirtualTokens,
}

/// An account's totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Ever held.
    pub reserved: VirtualTokens,
    /// Owed for good.
    pub settled: VirtualTokens,
    /// Given back.
    pub refunded: VirtualTokens,
    /// Still held.
    pub live: VirtualTokens,
}

impl Totals {
    /// Whether nothing was made or lost.
    #[must_use]
    pub fn balance(&self) -> bool {
        self.reserved == self.settled + self.refunded + self.live
    }
}

/// Adds the bookings up, per account, with what is live reckoned from the single requests, and says what is
/// wrong with them: a negative movement, a request that gives back more than it held, an account whose live
/// holds are not what its totals leave, or a request with something still held that is not in `open`.
#[must_use]
pub fn books(bookings: &[Booking], open: impl Fn(RequestId) -> bool) -> (BTreeMap<AccountKey, Totals>, Vec<String>) {
    let mut wrong = Vec::new();
    let mut accounts: BTreeMap<_, Totals> = BTreeMap::new();
    let mut held: BTreeMap<(RequestId, &AccountKey), VirtualTokens> = BTreeMap::new();
    for booking in bookings {
        let Booking { account, request, reserved, settled, refunded } = booking;
        if [*reserved, *settled, *refunded].into_iter().any(|amount| amount < VirtualTokens::ZERO) {
            wrong.push(format!("{request}: a negative movement: {booking:?}"));
        }
        let totals = accounts.entry(account.clone()).or_default();
        totals.reserved += *reserved;
        totals.settled += *settled;
        totals.refunded += *refunded;
        let live = held.entry((*request, account)).or_default();
        *live += *reserved - *settled - *refunded;
        if *live < VirtualTokens::ZERO {
            wrong.push(format!("{request}: gave back or owes {} more than it held", -*live));
        }
    }
    for ((request, account), live) in held {
        if live != VirtualTokens::ZERO && !open(request) {
            wrong.push(format!("{request}: has ended and still holds {live}"));
        }
        if let Some(totals) = accounts.get_mut(account) {
            totals.live += live;
        }
    }
    let unbalanced = accounts.iter().filter(|(_, totals)| !totals.balance());
    wrong.extend(unbalanced.map(|(account, totals)| format!("{account:?} does not balance: {totals:?}")));
    (accounts, wrong)
}
