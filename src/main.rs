//! The `tallygate` command: arguments in, exit code out. 0 when what was asked for is done or holds, 1 when not,
//! 2 when the command line itself cannot be understood.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use tallygate::cli::{Cli, Outcome};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version come this way too, and are no failure. There is nobody left to tell when even this
            // cannot be printed.
            let _ = error.print();
            return u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from);
        }
    };
    match cli.run() {
        Ok(Outcome::Success) => ExitCode::SUCCESS,
        Ok(Outcome::Failure) => ExitCode::FAILURE,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "tallygate: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the reader of our output has seen enough, as `head` has after some lines.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>()).map(io::Error::kind);
    kind == Some(io::ErrorKind::BrokenPipe)
}
