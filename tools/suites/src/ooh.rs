//! `cargo xtask ooh`: the log of `research/ooh` in a guest: the rules of its device, and the
//! library's suites with the techniques that read it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use pagetrail_rig::guest::{End, Guest, Job, Machine, print_bytes};
use pagetrail_rig::kernel::Series;
use pagetrail_rig::ooh::{self, Ooh};
use pagetrail_rig::{Rig, place};
use pagetrail_steps::repo::Repo;
use pagetrail_steps::steps::{NotHere, Outcome};
use pagetrail_steps::tally::Tally;

/// The kernel for which the module is compiled.
const SERIES: &str = "6.12";

/// Far more than it takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(1800);

const TESTS: [&str; 2] = ["conformance", "stress"];

/// A word that selects the cases of the techniques: `spml` is part of `spml-search`.
const WORDS: [&str; 2] = ["epml", "spml"];

/// Runs the rules and the suites, each in a guest of its own. `rows`: where the suites' rows go.
pub fn run(repo: &Repo, rows: Option<&Path>, tally: &mut Tally) -> Result<Outcome> {
    let tests = build(repo)?;
    match run_in_guests(repo, &tests, rows, tally) {
        Err(error) if error.is::<NotHere>() => Ok(Outcome::NotHere(error.to_string())),
        outcome => outcome.map(Outcome::of),
    }
}

fn run_in_guests(
    repo: &Repo,
    tests: &[PathBuf],
    rows: Option<&Path>,
    tally: &mut Tally,
) -> Result<bool> {
    let rig = Rig::open(repo)?;
    let series = Series::named(SERIES)?;
    let kernel = rig.kernel(series)?;
    let machine = Machine {
        ooh: Some(Ooh::build(repo, &rig, series, &kernel)?),
        timeout: TIMEOUT,
        ..Machine::default()
    };
    let rules = repo.target.join("ooh/rules");
    let rules = ooh::compile(repo, "rules.c", &["-static"], &rules)?;
    let job = |command: Vec<String>| Job {
        dir: repo.root.join("crates/pagetrail"),
        command,
        env: rig.environment(series),
    };
    println!("-- the rules of /dev/ooh");
    let end = rig.run(
        &kernel,
        &machine,
        &job(vec![text(&rules)]),
        &mut print_bytes,
    )?;
    let mut fine = end == End::Exited(0);
    for (test, word) in tests.iter().flat_map(|test| WORDS.map(|word| (test, word))) {
        println!("-- {} {word} in the {}", text(test), place(series));
        let mut own = Tally::default();
        let job = job(vec![text(test), word.to_owned()]);
        let end = rig.run(&kernel, &machine, &job, &mut |bytes| {
            own.feed(bytes);
            print_bytes(bytes)
        })?;
        let passed = end == End::Exited(0) && own.has_result;
        if !own.has_result {
            own.lose(&format!("-- {} {word}: {end:?} and no result", text(test)));
        }
        tally.add(own, passed);
        fine &= passed;
        if let Some(rows) = rows {
            collect_rows(&Guest::out(rig.dir()).join("rows"), rows, word)?;
        }
    }
    Ok(fine)
}

/// Adds what a guest's tests left to the host's rows, as far as it is of the techniques of `word`:
/// the others are absent in this guest by selection alone.
fn collect_rows(from: &Path, to: &Path, word: &str) -> Result<()> {
    let mut lines = String::new();
    for entry in fs::read_dir(from)? {
        lines += &fs::read_to_string(entry?.path())?;
    }
    let file = to.join(format!("ooh-{word}"));
    let before = fs::read_to_string(&file).unwrap_or_default();
    Ok(fs::write(file, before + &lines)?)
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Lets cargo build the tests.
fn build(repo: &Repo) -> Result<Vec<PathBuf>> {
    let mut build = repo.cargo(&["test", "--no-run", "--message-format=json"]);
    build.args(["--package", "pagetrail"]);
    build.args(TESTS.iter().flat_map(|test| ["--test", test]));
    let output = build.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "the tests do not build");
    let messages = String::from_utf8(output.stdout)?;
    let messages: Vec<Value> = messages
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    let program = |test: &&str| {
        let mut of_test = messages.iter().filter(|message| {
            message["target"]["name"] == **test && message["executable"].is_string()
        });
        let found = of_test.find_map(|message| message["executable"].as_str());
        found
            .map(PathBuf::from)
            .with_context(|| format!("cargo has not built {test}"))
    };
    TESTS.iter().map(|test| program(test)).collect()
}
