//! The machine as a whole, driven by hand.

mod agents;
mod audit;
mod breaker;
mod explain;
mod flow;
mod order;
mod promise;
mod queue;
mod vacancy;
pub(in crate::admission) mod world;
