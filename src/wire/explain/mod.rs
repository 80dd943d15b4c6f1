//! Why a request was refused, and what would have let it in: decisions and explanations, as rows and in words.
//!
//! The core tells numbers ([`Explanation`](crate::admission::Explanation)), the store of decisions tells what happened
//! ([`Record`](crate::observe::decisions::Record)); here both become JSON that tools read by name and sentences that a
//! newcomer can act on, each naming the policy's key that holds the limit. Nothing here decides.

mod decision;
mod found;
mod overload;
mod request;
mod words;
mod would;

pub(super) use decision::{brief, decision};
pub use request::{DEFAULT_PATH, Sketch, read_listener};
pub use would::{Doors, Unexplained, Would, would};
