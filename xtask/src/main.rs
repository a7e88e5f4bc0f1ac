//! The repository's tasks: `cargo xtask TASK`.
//!
//! This file only dispatches. Exit codes: 0 fine, 1 something failed, 2 usage or operation error,
//! 3 not possible on this machine.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a task talks to the person who started it"
)]

mod capi;
mod generate;
mod long;
mod packages;
mod repo;
mod steps;
mod table;
mod tally;
mod test;
mod tidy;
mod victims;
mod vm;

use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};

use crate::repo::Repo;
use crate::steps::NotHere;

const USAGE: &str = "\
usage: cargo xtask TASK

  test             what CI runs: packages, formatting, clippy, tidy, victims, all tests,
                   and a table of which technique works where
  tidy             the cheap checks of the house over all files
  victims          compile tests/victims/*.c to target/victims/
  vm ..            run a command in a guest with another kernel (vm --help)
  bochs ..         run a static program on an emulated Intel processor with page modification
                   logging (bochs --help)
  soak             the long form of the tests, an hour or so
  bench [NAME]     measure anew what bench/results/ keeps, or one file of it; for an idle machine
  generate [DIR]   pagetrail.h anew; man pages and shell completions, from the command's own
                   definitions and from pagetrail.h, to DIR (default: target/share)
  capi             test the C library as a user of C has it: symbols, compilers, sanitizers, valgrind
  install --prefix DIR
                   the C library: header, shared and static library, pkg-config file, man page
";

fn main() -> ExitCode {
    let args = std::env::args_os().skip(1).map(|arg| {
        arg.into_string()
            .map_err(|arg| anyhow!("{} is not UTF-8", arg.display()))
    });
    match args.collect::<Result<Vec<_>>>().and_then(|args| run(&args)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(if error.is::<NotHere>() { 3 } else { 2 })
        }
    }
}

fn run(args: &[String]) -> Result<ExitCode> {
    let (task, rest) = match args.split_first() {
        Some((task, rest)) => (task.as_str(), rest),
        None => ("help", args),
    };
    if let Some(surplus) = surplus(task, rest) {
        bail!("{task}: unexpected argument '{surplus}'\n{USAGE}");
    }
    let repo = Repo::find()?;
    let fine = match task {
        "test" => test::run(&repo)?,
        "tidy" => tidy::run(&repo)?,
        "vm" => return vm::run(&repo, rest),
        "bochs" => return vm::bochs::run(&repo, rest),
        "soak" => long::soak(&repo)?,
        "bench" => long::bench(&repo, rest.first().map(String::as_str)).map(|()| true)?,
        "capi" => capi::run(&repo)?,
        "install" => capi::install(&repo, rest).map(|()| true)?,
        "victims" => victims::build(&repo).map(|_| true)?,
        "generate" => generate::run(&repo, rest.first().map(String::as_str)).map(|()| true)?,
        "help" | "-h" | "--help" => {
            print!("{USAGE}");
            true
        }
        _ => bail!("no task '{task}'\n{USAGE}"),
    };
    Ok(ExitCode::from(u8::from(!fine)))
}

/// The first argument that `task` does not take.
fn surplus<'a>(task: &str, rest: &'a [String]) -> Option<&'a String> {
    match task {
        "generate" | "bench" => rest.get(1),
        "vm" | "bochs" | "install" => None,
        _ => rest.first(),
    }
}
