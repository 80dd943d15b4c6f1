//! Doors: they translate between a wire and the core, and decide nothing.
//!
//! A door reads who is calling ([`identity`]) and what is asked for ([`dialect`]), has it quoted and admitted, and
//! passes the answer through while watching what it really costs. What a refusal looks like on a wire stands in one
//! table, [`answer`]. What happens to one request is the same at every door and stands in `exchange`; a door only reads and
//! writes its wire.

pub mod access_log;
pub mod acquire;
pub mod admin;
pub mod answer;
pub mod dialect;
mod exact;
mod exchange;
pub mod explain;
pub mod ext_authz;
pub mod ext_proc;
mod front;
pub mod grpc;
mod guard;
pub mod identity;
mod left;
#[cfg(test)]
mod lives;
pub mod paths;
pub mod proxy;
pub mod rate_limit;
pub mod server;
pub mod spent;
pub mod tower;

pub use crate::costing::Call;
