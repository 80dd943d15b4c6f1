//! The books: what was reserved, settled and refunded, per account, in exact integers.
//!
//! The port is the trait [`Ledger`] and its guarantees; [`Memory`] keeps the books of one process. For every
//! account, always and exactly, `reserved = settled + refunded + live`: debt is kept and never clipped, unused
//! reservation is given back, and what is neither is still running.

mod entry;
mod memory;
mod store;

pub use entry::{Account, Entry, Movement};
pub use memory::{Balance, Ledger, Memory};
pub use store::{Grant, GrantKey, Store, StoreError};
