//! Token-fair admission control for LLM gateways.

pub mod admission;
pub mod app;
pub mod cli;
pub mod costing;
pub mod demo;
pub mod engines;
pub mod envoy_check;
pub mod ledger;
pub mod observe;
pub mod policy;
pub mod settings;
pub mod shell;
pub mod sim;
pub mod store;
pub mod units;
pub mod wire;
pub mod yaml;
