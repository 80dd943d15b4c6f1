//! The command line: one file a subcommand, each turning its arguments into one call of the library.
//!
//! Nothing here ends the process. A subcommand returns what became of it, errors go up to `main`, and only that
//! turns them into an exit code.

mod admin;
mod check;
mod envoy_check;
mod explain;
mod serve;
mod show;
mod simulate;

use clap::{Parser, Subcommand};

/// Token-fair admission control for LLM gateways.
#[derive(Debug, Parser)]
#[command(name = "tallygate", version, about, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What became of a command that ran to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// What was asked for is done or holds.
    Success,
    /// It does not hold, and why has been told.
    Failure,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Serve),
    Check(check::Check),
    Explain(explain::Explain),
    Simulate(simulate::Simulate),
    Admin(admin::Admin),
    EnvoyCheck(envoy_check::EnvoyCheck),
}

impl Cli {
    /// Does what the command line asks for.
    ///
    /// # Errors
    /// When it cannot be done.
    pub fn run(self) -> anyhow::Result<Outcome> {
        match self.command {
            Command::Serve(serve) => serve.run(),
            Command::Check(check) => check.run(),
            Command::Explain(explain) => explain.run(),
            Command::Simulate(simulate) => simulate.run(),
            Command::Admin(admin) => admin.run(),
            Command::EnvoyCheck(check) => check.run(),
        }
    }
}
