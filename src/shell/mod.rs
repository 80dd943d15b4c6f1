//! The only place with tasks and clocks: it drives the core in real time.
//!
//! [`Gate`] owns the core, the predictor, the books and the observers behind one lock, tells the core what time it
//! is, wakes it when it asks to be woken, and hands its verdicts to whoever waits for them. A decision takes the
//! lock, never the network; the lock is never held across an await.

mod ask;
mod build;
mod clock;
mod desk;
mod gate;
mod keep;
mod leases;
mod pace;
mod permit;
mod shutdown;
mod watch;

pub use ask::{Ask, Patience, Quoted, Sight};
pub use build::{GateBuilder, GateError, seed};
pub use clock::Clock;
pub use gate::{Broken, Denied, Gate, Seen, WeakGate};
pub use leases::{Full, LeaseId, Leases, NoLeaseId, NotLive};
pub use permit::Permit;
pub use shutdown::{asked_to_stop, drain};
