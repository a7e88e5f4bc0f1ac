//! `pagetrail top`: the live view of a process, or of a program that it starts, with its children.
//!
//! One thread collects ([`collector::Collector`]), another draws and reads keys ([`Live`]), so that
//! no key waits for a collect; what they share is an [`Exchange`].

pub(crate) mod args;
mod collector;

use std::fs::File;
use std::io::{self, IsTerminal};
use std::process::{ExitCode, Stdio};
use std::thread;

use anyhow::{Context, Result, bail};
use pagetrail_report::words;
use pagetrail_top::{Exchange, Live, Screen};
use pagetrail_vm::UnitStrategy;

use self::args::TopArgs;
use self::collector::Collector;
use crate::events;
use crate::exit;
use crate::recording::stacks::Sampling;
use crate::session::signals::{Addressee, Signals};
use crate::session::start::{self, Named};
use crate::session::subject::Subject;

/// Runs the subcommand.
pub(crate) fn run(args: &TopArgs) -> Result<ExitCode> {
    if !io::stdout().is_terminal() {
        bail!("top needs a terminal as standard output; without one use `pagetrail record`");
    }
    let named = Named::from(&args.target);
    let wanted = start::Wanted {
        target: named,
        technique: &args.technique,
        budget: args.budget.budget(args.interval, "--interval")?,
        guest: &args.guest,
        track: None,
        last_round: false,
        subpages: None,
        units: UnitStrategy::Static,
    };
    let mut subject = start::start_tree(&wanted, !args.no_children, |command| {
        let (stdout, stderr) = program_output(args)?;
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        Ok(())
    })?;
    let exchange = Exchange::new().context("cannot wake the view")?;
    let sampling = args.stacks.map(|how| Sampling::new(how.into(), None));
    let mut collector = Collector::new(&exchange, named, args.interval.shortest, sampling);
    let first = collector.add_present(&subject);
    let (name, pid) = first.map_or_else(Default::default, |header| {
        (words::command(&header.command), header.pid)
    });
    let ended = show(&exchange, &mut collector, &mut subject)?;
    if !ended && matches!(named, Named::Program(_)) {
        exit::message(&format!("{name} runs on as process {pid}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows the target until the user quits; returns whether the target has ended.
///
/// This thread collects: it is the one that started the target, and attached to it.
fn show(exchange: &Exchange, collector: &mut Collector<'_>, subject: &mut Subject) -> Result<bool> {
    let mut signals = Signals::take(Addressee::Us).context("cannot handle signals")?;
    // Until the terminal is as it was.
    let _muted = events::mute_on_terminal();
    let screen = Screen::take().context("cannot take the terminal")?;
    let (collected, shown) = thread::scope(|scope| {
        let view =
            scope.spawn(|| Live::default().run(exchange, screen, || signals.stop_requested()));
        let collecting = exchange.collecting();
        let collected = collector.follow(subject);
        drop(collecting);
        (collected, view.join())
    });
    // A panic has been reported there, on a terminal that is as it was.
    shown.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    collected
}

/// Where the program's output goes while the live view uses the screen.
fn program_output(args: &TopArgs) -> Result<(Stdio, Stdio)> {
    let Some(path) = &args.output else {
        return Ok((Stdio::null(), Stdio::null()));
    };
    let cannot = || format!("cannot write {}", path.display());
    let file = File::create(path).with_context(cannot)?;
    Ok((file.try_clone().with_context(cannot)?.into(), file.into()))
}
