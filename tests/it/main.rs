//! The integration tests, in one binary so that they link once.
//!
//! Each module tests one claim about the whole; unit tests live beside the code they test.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a test says loudly what it skips")]

mod acquire;
mod admin;
mod autoscaling;
mod check;
mod decisions;
mod deploy;
mod dialects;
mod door;
mod doors;
mod envoy_check;
mod estimates;
mod examples;
mod explain;
mod gauges;
mod generated;
mod ledger;
mod overload;
mod published;
mod scenarios;
mod sdk;
mod serve;
mod support;
mod tidy;
mod window;
mod worlds;
