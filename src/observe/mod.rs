//! Counts what the core says happened, for people: metrics, running totals, decision log lines, and decisions
//! remembered.
//!
//! Everything here derives from [`Event`](crate::admission::Event)s, and of decisions from what the doors know beside
//! them; it decides nothing. What grows with the number of tenants is bounded, and says so where it folds.

mod breakers;
pub mod decisions;
mod leases;
mod log;
mod maker;
mod metrics;
mod signals;
mod sources;
mod totals;

pub use breakers::BreakerGauge;
pub use decisions::{Decisions, Keep};
pub use leases::{LeaseNews, Lessor, LogEntry};
pub use log::Journal;
pub use maker::Described;
pub use metrics::{Gauges, Metrics, PoolGauge, QueueGauge};
pub use sources::Source;
pub use totals::{Total, Totals};
