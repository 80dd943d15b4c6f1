//! One line of the books.

use crate::units::{ClassIndex, PoolIndex, RequestId, TenantId, VirtualTokens};

/// Whose books: fairness is reckoned per pool and class, and so are the accounts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Account {
    /// The pool that serves.
    pub pool: PoolIndex,
    /// The class served in.
    pub class: ClassIndex,
    /// Who pays.
    pub tenant: TenantId,
}

/// A movement on an account. All amounts are at least zero, in unweighted virtual tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Whose.
    pub account: Account,
    /// For which request.
    pub request: RequestId,
    /// Which way.
    pub movement: Movement,
    /// How much.
    pub amount: VirtualTokens,
}

/// Which way an amount moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Movement {
    /// Held for a request: at arrival, and whenever progress exceeds the hold.
    Reserve,
    /// Held before, now owed for good.
    Settle,
    /// Held before, now given back.
    Refund,
}
