//! The machine as a whole, driven by hand.

mod agents;
mod ahead;
mod audit;
mod breaker;
mod ceiling;
mod explain;
mod flow;
mod hits;
mod limits;
mod order;
mod promise;
mod queue;
mod retry;
mod signals;
mod vacancy;
pub(in crate::admission) mod world;
