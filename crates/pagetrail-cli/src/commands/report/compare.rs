//! `pagetrail report BEFORE AFTER`: two recordings side by side, and conditions on them.

use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use super::args::ReportArgs;
use super::{open, read_all, style};
use crate::exit;
use crate::outfile::Kind;
use pagetrail_report::comparison::{Comparison, Condition, TreeComparison, Verdict};
use pagetrail_report::{joined, words};

/// Compares the recording of `args` with `after`. The exit code says whether a condition failed.
pub(super) fn run(args: &ReportArgs, after: &Path) -> Result<ExitCode> {
    if let Some(flag) = args.of_one_recording() {
        bail!("{flag} is of one recording, and there are two; --json and --html compare them");
    }
    let page = open(&args.pictures.html, after, "html", Kind::Page)?;
    let compared = Compared::of(args, after)
        .and_then(|compared| Ok((compared.judge(&args.fail_if)?, compared)));
    let (verdicts, compared) = match compared {
        Ok(compared) => compared,
        Err(error) => {
            page.into_iter().for_each(|page| page.discard());
            return Err(error);
        }
    };
    if let Some(page) = page {
        page.write(|out| match &compared {
            Compared::One(one) => one.write_html(&verdicts, out),
            Compared::Tree(tree) => tree.write_html(&verdicts, out),
        })?;
    }
    let mut out = BufWriter::new(io::stdout().lock());
    let written = match (&compared, args.json) {
        (Compared::One(one), true) => one.write_json(&verdicts, &mut out),
        (Compared::One(one), false) => one.write_text(&verdicts, style(), &mut out),
        (Compared::Tree(tree), true) => tree.write_json(&verdicts, &mut out),
        (Compared::Tree(tree), false) => tree.write_text(&verdicts, style(), &mut out),
    };
    written
        .and_then(|()| out.flush())
        .context("cannot write to standard output")?;
    Ok(match verdicts.iter().any(|verdict| verdict.holds) {
        true => ExitCode::from(exit::NEGATIVE),
        false => ExitCode::SUCCESS,
    })
}

/// Two recordings side by side.
enum Compared {
    /// One process of each.
    One(Box<Comparison>),
    /// Several processes.
    Tree(TreeComparison),
}

impl Compared {
    fn of(args: &ReportArgs, after: &Path) -> Result<Self> {
        let before = &args.file;
        let [first, second] = [before, after].map(|path| {
            let mut tree = read_all(path)?;
            for process in &mut tree.processes {
                joined::name_from_the_start(&mut process.trail.mappings);
            }
            Ok::<_, anyhow::Error>(tree)
        });
        let (first, second) = (first?, second?);
        let failed = || {
            format!(
                "cannot compare {} with {}",
                before.display(),
                after.display()
            )
        };
        if let ([one], [other], None) = (&first.processes[..], &second.processes[..], &args.process)
        {
            let comparison = Comparison::of(&one.trail, &other.trail).with_context(failed)?;
            return Ok(Self::One(Box::new(comparison)));
        }
        let mut compared = TreeComparison::of(&first, &second).with_context(failed)?;
        let Some(wanted) = &args.process else {
            return Ok(Self::Tree(compared));
        };
        compared.retain(wanted);
        if compared.pairs.is_empty() {
            let wanted = words::printable(wanted);
            bail!("both recordings have no process {wanted} with the same command line");
        }
        // All of a single one is shown.
        match compared.pairs.len() {
            1 => {
                let pair = compared.pairs.pop().unwrap_or_else(|| unreachable!());
                Ok(Self::One(Box::new(pair.comparison)))
            }
            _ => Ok(Self::Tree(compared)),
        }
    }

    fn judge(&self, conditions: &[Condition]) -> Result<Vec<Verdict>> {
        let mut verdicts = Vec::new();
        for condition in conditions {
            match self {
                Self::One(one) => verdicts.push(condition.judge(one).context(UNDECIDED)?),
                Self::Tree(tree) => verdicts.extend(tree.judge(condition).context(UNDECIDED)?),
            }
        }
        Ok(verdicts)
    }
}

const UNDECIDED: &str = "cannot decide --fail-if";
