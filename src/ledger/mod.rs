//! The books: what was reserved, settled and refunded, per account, in exact integers.

mod entry;

pub use entry::{Account, Entry, Movement};
