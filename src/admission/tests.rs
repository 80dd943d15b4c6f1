//! The machine as a whole, driven by hand.

mod agents;
mod audit;
mod explain;
mod flow;
mod limits;
mod order;
mod promise;
mod queue;
mod signals;
mod vacancy;
mod world;
