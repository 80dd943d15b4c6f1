//! The integration tests, in one binary so that they link once.
//!
//! Each module tests one claim about the whole; unit tests live beside the code they test.

mod check;
mod generated;
mod published;
mod scenarios;
mod support;
mod tidy;
mod worlds;
