//! `pagetrail report BEFORE AFTER`: two recordings side by side, and conditions on them.

use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use super::args::ReportArgs;
use super::{open, read, style};
use crate::exit;
use crate::outfile::Kind;
use pagetrail_report::comparison::{Comparison, Condition, Verdict};
use pagetrail_report::joined;

/// Compares the recording of `args` with `after`. The exit code says whether a condition failed.
pub(super) fn run(args: &ReportArgs, after: &Path) -> Result<ExitCode> {
    if let Some(flag) = args.of_one_recording() {
        bail!("{flag} is of one recording, and there are two; --json and --html compare them");
    }
    let page = open(&args.pictures.html, after, "html", Kind::Page)?;
    let compared = compare(&args.file, after)
        .and_then(|comparison| Ok((judge(&args.fail_if, &comparison)?, comparison)));
    let (verdicts, comparison) = match compared {
        Ok(compared) => compared,
        Err(error) => {
            page.into_iter().for_each(|page| page.discard());
            return Err(error);
        }
    };
    if let Some(page) = page {
        page.write(|out| comparison.write_html(&verdicts, out))?;
    }
    let mut out = BufWriter::new(io::stdout().lock());
    let written = match args.json {
        true => comparison.write_json(&verdicts, &mut out),
        false => comparison.write_text(&verdicts, style(), &mut out),
    };
    written
        .and_then(|()| out.flush())
        .context("cannot write to standard output")?;
    Ok(match verdicts.iter().any(|verdict| verdict.holds) {
        true => ExitCode::from(exit::NEGATIVE),
        false => ExitCode::SUCCESS,
    })
}

fn compare(before: &Path, after: &Path) -> Result<Comparison> {
    let [first, second] = [before, after].map(|path| {
        let mut trail = read(path)?;
        joined::name_from_the_start(&mut trail.mappings);
        Ok::<_, anyhow::Error>(trail)
    });
    Comparison::of(&first?, &second?).with_context(|| {
        format!(
            "cannot compare {} with {}",
            before.display(),
            after.display()
        )
    })
}

fn judge(conditions: &[Condition], comparison: &Comparison) -> Result<Vec<Verdict>> {
    let verdicts = conditions
        .iter()
        .map(|condition| condition.judge(comparison));
    verdicts
        .collect::<Result<_, _>>()
        .context("cannot decide --fail-if")
}
