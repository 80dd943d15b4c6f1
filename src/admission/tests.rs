//! The machine as a whole, driven by hand.

mod flow;
mod order;
mod queue;
mod world;
