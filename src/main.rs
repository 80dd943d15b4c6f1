//! The `tallygate` command: reads the arguments, runs one subcommand, returns its exit code.

fn main() {}
