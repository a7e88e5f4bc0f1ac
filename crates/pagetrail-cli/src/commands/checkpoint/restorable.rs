//! Checkpoints to start a process from: whether CRIU takes them or we do.

use std::process::ExitCode;

use anyhow::{Result, bail};
use pagetrail::{Choice, Target};
use pagetrail_checkpoint::{Error, check_restartable};

use super::args::{ModeArg, Restorer, TakeArgs};
use super::{plain, take, tree};
use crate::commands::criu;
use crate::exit;

/// Takes checkpoints by who is asked to.
pub(super) fn take(args: &TakeArgs) -> Result<ExitCode> {
    if args.follow {
        bail!(
            "a checkpoint is of one guest, and programs that it executes run natively: start the program without \
             --vm, and save the tree (--tree -p PID)"
        );
    }
    match args.restorable {
        None if args.tree || args.cgroup.is_some() => return tree::take(args),
        None => return take::run(args, false),
        Some(Restorer::Criu) => {}
        Some(by) => match (can_be_own(args), by) {
            (Ok(()), _) => return take::run(args, true),
            (Err(error), Restorer::Own) => return Err(error),
            (Err(error), _) => exit::message(&format!("{error:#}; CRIU takes it")),
        },
    }
    refuse_for_criu(args)?;
    criu::take::run(args)
}

/// Checks that the process could be started anew without CRIU, before anything is written.
fn can_be_own(args: &TakeArgs) -> Result<()> {
    let Some(pid) = args.pid else {
        bail!("--restorable takes a running process: -p PID");
    };
    if !args.criu_arg.is_empty() {
        bail!("--criu-arg is for --restorable=criu");
    }
    Target::process(pid)?;
    match check_restartable(pid) {
        // At another instant it could, and that is tried where it is taken.
        Err(Error::NotNow(_)) => Ok(()),
        outcome => outcome.map_err(plain),
    }
}

/// Refuses what means nothing where CRIU takes the checkpoint.
fn refuse_for_criu(args: &TakeArgs) -> Result<()> {
    let given = [
        ("--vm", args.vm),
        ("--mode", args.mode != ModeArg::Precopy),
        ("--max-pause", args.max_pause.is_some()),
        ("--max-overhead", args.max_overhead.is_some()),
        ("--technique", args.technique.0 != Choice::Auto),
        ("--trust-subpages", args.trust_subpages),
        ("--report-again", args.report_again),
        ("--trust-shared", args.trust_shared),
        ("--metrics-file", args.metrics_file.is_some()),
        ("--metrics-listen", args.metrics_listen.is_some()),
    ];
    match given.iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((flag, _)) => bail!("{flag} cannot be used where CRIU takes the checkpoint"),
    }
}
