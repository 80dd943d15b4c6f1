//! Ledgers that outlive the process, behind the port in `ledger/store.rs`.
//!
//! A room of its own because they do IO, which the books themselves never do. No clock here and no task: the shell says
//! when something is written and what time it is, on a thread that may wait for a disk.

mod file;

pub use file::FileStore;
