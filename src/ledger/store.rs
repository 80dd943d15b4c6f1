//! The port to what outlives the process: what budgets have granted.
//!
//! The core grants ahead of use, in slices, and lets nothing go upstream that a written grant does not cover. So a store
//! has to promise little, and that without exception:
//!
//! 1. *Durable on return.* Once [`Store::debit`] has returned, no crash loses what it wrote.
//! 2. *All or nothing.* A batch that fails has written none of its grants, and may be tried again.
//! 3. *Never backwards.* Of two grants to one account the greater stands, in whichever order they come; only
//!    [`Store::settle`], at a clean end, writes what was really used, which is less.
//! 4. *One keeper.* Nobody else writes to it meanwhile.
//! 5. *No silence.* What cannot be read or kept is an error that names the place and what to do about it.
//!
//! A crash therefore costs each account at most what it was granted and had not used: a slice, and never grants anything
//! twice.

use std::fmt;

use crate::units::{Amount, UnixTime};

/// Whose grant, of which budget, in which period. By names, since a policy's order may change between two starts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantKey {
    /// The budget's name.
    pub budget: String,
    /// What it counts. Amounts of different measures have nothing to do with each other.
    pub measure: String,
    /// Whose account of it.
    pub owner: String,
    /// When the period began.
    pub period: UnixTime,
}

/// What an account was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Which account.
    pub key: GrantKey,
    /// When its period ends; [`UnixTime::FAR`] where it does not by itself.
    pub end: UnixTime,
    /// How much in all since the period began.
    pub upto: Amount,
}

/// Where grants are kept; see the module for what it promises.
pub trait Store: fmt::Debug + Send {
    /// Every grant it keeps, in order of their keys.
    ///
    /// # Errors
    /// When it cannot be read.
    fn grants(&self) -> Result<Vec<Grant>, StoreError>;

    /// Writes grants, ahead of their use.
    ///
    /// # Errors
    /// When they are not durable; then none is written.
    fn debit(&mut self, grants: &[Grant]) -> Result<(), StoreError>;

    /// Writes what was really used, now that nothing more will be.
    ///
    /// # Errors
    /// When it is not durable; then what was granted still stands.
    fn settle(&mut self, used: &[Grant]) -> Result<(), StoreError>;

    /// Forgets the grants of periods that ended before a moment, and tells how many.
    ///
    /// # Errors
    /// When that is not durable; then they are all still there.
    fn forget_before(&mut self, moment: UnixTime) -> Result<u64, StoreError>;
}

/// Why grants cannot be kept: where, what, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("the ledger {place}: {what}; {fix}")]
pub struct StoreError {
    /// The file or address.
    pub place: String,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub fix: &'static str,
}
