//! The command `pagetrail`: arguments in, exit code out; everything else is in the modules.

mod args;
mod color;
mod commands;
mod events;
mod exit;
mod outfile;
mod recording;
mod session;
mod version;

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches};

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    pagetrail_vm::resume();
    if let Some(code) = commands::compare::be_first_process() {
        return code;
    }
    let cli = match parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    color::choose(cli.color);
    // The process of `vm run` becomes the program, and standard error is the program's.
    if !matches!(cli.command, Command::Vm(_))
        && let Err(error) = events::report(cli.verbose)
    {
        return exit::report(&error);
    }
    let unknown = pagetrail::Capabilities::unknown_disabled();
    if !unknown.is_empty() {
        exit::message(&format!(
            "{} names {}, which is no technique; there are {}",
            pagetrail::DISABLE_VARIABLE,
            unknown.join(" and "),
            pagetrail::Technique::ALL
                .map(pagetrail::Technique::name)
                .join(", ")
        ));
        return ExitCode::from(exit::OPERATION);
    }
    let result = match &cli.command {
        Command::Check(args) => commands::check::run(args),
        Command::Record(args) => commands::record::run(args),
        Command::Report(args) => commands::report::run(args),
        Command::Top(args) => commands::top::run(args),
        Command::Checkpoints(command) => commands::checkpoint::run(command),
        Command::Restore(args) => commands::restore::run(args),
        Command::PageServer(args) => commands::page_server::run(args),
        Command::Bench(args) => commands::bench::run(args),
        Command::Compare(args) => commands::compare::run(args),
        #[cfg(feature = "model")]
        Command::Model(args) => commands::model::run(args),
        Command::Tier(args) => commands::tier::run(args),
        Command::Vm(args) => commands::vm::run(args),
        Command::Completions(args) => commands::generate::completions(args),
        Command::Generate(args) => commands::generate::run(args),
    };
    result.unwrap_or_else(|error| exit::report(&error))
}

fn parse() -> Result<Cli, clap::Error> {
    // Help is written while the arguments are read, so its colours are chosen before.
    let color = color::of_help(std::env::args_os().skip(1));
    let mut command = Cli::command().color(color);
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Help and versions as they are; what is wrong with the arguments in one line.
fn usage(error: &clap::Error) -> ExitCode {
    let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if is_help || !error.use_stderr() {
        // A reader that closed the pipe has read enough.
        let _ = error.print();
        return ExitCode::from(if is_help { exit::OPERATION } else { 0 });
    }
    exit::message(&in_one_line(error));
    ExitCode::from(exit::OPERATION)
}

/// What is to be done about a word that a subcommand does not take.
fn unexpected(error: &clap::Error) -> &'static str {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let command = Cli::command();
    let mut subcommand = &command;
    for word in &words {
        match subcommand.find_subcommand(word) {
            Some(next) => subcommand = next,
            None => break,
        }
    }
    let unknown = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(unknown)) => unknown.as_str(),
        _ => "",
    };
    if unknown.starts_with('-') {
        return "";
    }
    let place = words.iter().rposition(|word| word == unknown).unwrap_or(0);
    let is_pid = |word: &String| word.parse::<u32>().is_ok();
    let after_pid = place >= 2
        && is_pid(&words[place])
        && is_pid(&words[place - 1])
        && matches!(words[place - 2].as_str(), "-p" | "--pid");
    let starts = subcommand.get_positionals().any(|arg| arg.is_last_set());
    let follows = subcommand.get_arguments().any(|arg| arg.get_id() == "pid");
    match (after_pid, starts, follows) {
        (true, ..) => "; -p takes one process: name one of these",
        (_, true, _) => "; a program to start comes after --",
        (_, false, true) => "; it starts no program, it takes a running process: -p PID",
        (_, false, false) => "",
    }
}

fn in_one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let mut line = String::new();
    for part in text.lines().map(str::trim) {
        if part.starts_with("Usage:") || part.starts_with("For more information") {
            break;
        }
        // Nobody means an option that is misspelt for a word.
        if part.starts_with("tip: to pass") {
            continue;
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
        line += unexpected(error);
    }
    let line = line.trim_start();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}
