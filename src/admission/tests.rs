//! The machine as a whole, driven by hand.

mod agents;
mod audit;
mod explain;
mod flow;
mod order;
mod promise;
mod queue;
mod signals;
mod vacancy;
mod world;
