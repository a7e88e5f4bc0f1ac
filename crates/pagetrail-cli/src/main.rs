//! The command `pagetrail`: arguments in, exit code out; everything else is in the modules.
//!
//! Exit codes: 0 fine, 1 a negative finding, 2 a usage or operation error, 3 not possible on this machine.

mod args;
mod bench;
mod commands;
mod report;
#[cfg(test)]
mod testing;
#[cfg_attr(
    not(test),
    expect(
        dead_code,
        reason = "the loop that feeds it comes with the `top` subcommand"
    )
)]
mod top;

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};

const OPERATION_ERROR: u8 = 2;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.command {
        Command::Report(args) => commands::report::run(args),
        Command::Bench(args) => commands::bench::run(args),
    };
    result.unwrap_or_else(|error| {
        // The reader of a pipe that went away, `head` say, has what it wanted.
        if is_broken_pipe(&error) {
            return ExitCode::SUCCESS;
        }
        // Nothing is left to be done where standard error cannot be written.
        let _ = writeln!(io::stderr(), "pagetrail: {error:#}");
        ExitCode::from(OPERATION_ERROR)
    })
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let mut causes = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|error| error.kind() == ErrorKind::BrokenPipe)
}
