//! Counts what the core says happened, for people: metrics, running totals, decision log lines.
//!
//! Everything here derives from [`Event`](crate::admission::Event)s and decides nothing. What grows with the number
//! of tenants is bounded, and says so where it folds.

mod log;
mod metrics;
mod totals;

pub use log::Journal;
pub use metrics::{Gauges, Metrics, QueueGauge};
pub use totals::{Total, Totals};
