//! The command `pagetrail`: arguments in, exit code out; everything else is in the modules.

mod args;
mod bench;
mod commands;
mod endpoint;
mod exit;
#[cfg(test)]
mod fuzzing;
mod model;
mod outfile;
mod recording;
mod report;
#[cfg(test)]
mod testing;
mod tier;
mod top;
mod tracking;
mod vm;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let result = match &cli.command {
        Command::Check(args) => commands::check::run(args),
        Command::Record(args) => commands::record::run(args),
        Command::Report(args) => commands::report::run(args),
        Command::Top(args) => commands::top::run(args),
        Command::Checkpoints(command) => commands::checkpoint::run(command),
        Command::Bench(args) => commands::bench::run(args),
        Command::Model(args) => commands::model::run(args),
        Command::Tier(args) => commands::tier::run(args),
        Command::Vm(args) => commands::vm::run(args),
        Command::Generate(args) => commands::generate::run(args),
    };
    result.unwrap_or_else(|error| exit::report(&error))
}

/// Help and versions as they are; what is wrong with the arguments in one line.
fn usage(error: &clap::Error) -> ExitCode {
    let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if is_help || !error.use_stderr() {
        // Whoever closed the pipe has read enough.
        let _ = error.print();
        return ExitCode::from(if is_help { exit::OPERATION } else { 0 });
    }
    exit::message(&in_one_line(error));
    ExitCode::from(exit::OPERATION)
}

fn in_one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let mut line = String::new();
    for part in text.lines().map(str::trim) {
        if part.starts_with("Usage:") || part.starts_with("For more information") {
            break;
        }
        if part.starts_with("tip:") {
            line += ";";
        }
        if !part.is_empty() {
            line += " ";
            line += part;
        }
    }
    if error.kind() == ErrorKind::UnknownArgument && !line.contains("tip:") {
        line += match std::env::args_os().nth(1) {
            Some(command) if command == "checkpoint" => {
                "; checkpoint takes a running process: -p PID"
            }
            _ => "; a program to start comes after --",
        };
    }
    let line = line.trim_start();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}
