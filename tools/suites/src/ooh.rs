//! `cargo xtask ooh`: the log of `research/ooh` in a guest: the rules of its device, and the
//! library's suites with the techniques that read it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use pagetrail_rig::guest::{End, Guest, Job, Machine, print_bytes};
use pagetrail_rig::kernel::{Kernel, Series};
use pagetrail_rig::ooh::{self, Ooh};
use pagetrail_rig::{Rig, place};
use pagetrail_steps::repo::Repo;
use pagetrail_steps::steps::{NotHere, Outcome};
use pagetrail_steps::tally::Tally;

/// The kernel for which the module is compiled.
const SERIES: &str = "6.12";

/// Far more than it takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// How much of it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Conformance on another process: three minutes.
    Short,
    /// Conformance on every kind of target, and stress.
    Whole,
}

impl Extent {
    /// The tests, and the words that select their cases.
    fn tests(self) -> &'static [(&'static str, &'static [&'static str])] {
        match self {
            Self::Short => &[
                ("conformance", &["epml", "another process"]),
                ("conformance", &["spml", "another process"]),
                ("conformance", &["spml-search", "another process"]),
            ],
            Self::Whole => &[
                ("conformance", &["epml"]),
                ("conformance", &["spml"]),
                ("conformance", &["spml-search"]),
                ("stress", &["epml"]),
                ("stress", &["spml"]),
                ("stress", &["spml-search"]),
            ],
        }
    }
}

/// Runs the device's rules and the suites, each in a guest of its own. `rows`: where the suites'
/// rows go.
pub fn run(repo: &Repo, extent: Extent, rows: Option<&Path>, tally: &mut Tally) -> Result<Outcome> {
    let tests = build(repo, extent)?;
    match run_in_guests(repo, &tests, rows, tally) {
        Err(error) if error.is::<NotHere>() => Ok(Outcome::NotHere(error.to_string())),
        outcome => outcome.map(Outcome::of),
    }
}

/// A test program with its arguments.
type Test = (PathBuf, &'static [&'static str]);

fn run_in_guests(
    repo: &Repo,
    tests: &[Test],
    rows: Option<&Path>,
    tally: &mut Tally,
) -> Result<bool> {
    let guests = Guests::open(repo)?;
    let rules = repo.target.join("ooh/rules");
    let rules = ooh::compile(repo, "rules.c", &["-static"], &rules)?;
    println!("-- the rules of /dev/ooh");
    let end = guests.run(vec![text(&rules)], &mut print_bytes)?;
    let mut fine = end == End::Exited(0);
    for (number, (program, words)) in tests.iter().enumerate() {
        let mut command = vec![text(program)];
        command.extend(words.iter().map(|&word| word.to_owned()));
        let what = command.join(" ");
        println!("-- {what} in the {}", guests.place);
        let mut own = Tally::default();
        let end = guests.run(command, &mut |bytes| {
            own.feed(bytes);
            print_bytes(bytes)
        })?;
        let passed = end == End::Exited(0) && own.has_result;
        if !own.has_result {
            own.lose(&format!("-- {what}: {end:?} and no result"));
        }
        tally.add(own, passed);
        fine &= passed;
        if let Some(rows) = rows {
            let from = Guest::out(guests.rig.dir()).join("rows");
            collect_rows(&from, &rows.join(format!("ooh-{number}")))?;
        }
    }
    Ok(fine)
}

/// Runs one command in such a guest.
pub fn command(repo: &Repo, command: &[String]) -> Result<bool> {
    let guests = Guests::open(repo)?;
    Ok(guests.run(command.to_vec(), &mut print_bytes)? == End::Exited(0))
}

/// Guests with the log and its module.
struct Guests {
    rig: Rig,
    kernel: Kernel,
    machine: Machine,
    env: Vec<(String, String)>,
    place: String,
    dir: PathBuf,
}

impl Guests {
    fn open(repo: &Repo) -> Result<Self> {
        let rig = Rig::open(repo)?;
        let series = Series::named(SERIES)?;
        let kernel = rig.kernel(series)?;
        let machine = Machine {
            ooh: Some(Ooh::build(repo, &rig, series, &kernel)?),
            timeout: TIMEOUT,
            ..Machine::default()
        };
        // Other guests of this series have no log.
        let place = format!("{} with a log", place(series));
        let mut env = rig.environment(series);
        env.retain(|(name, _)| name != "PAGETRAIL_WHERE");
        env.push(("PAGETRAIL_WHERE".to_owned(), place.clone()));
        Ok(Self {
            rig,
            kernel,
            machine,
            env,
            place,
            dir: repo.root.join("crates/pagetrail"),
        })
    }

    fn run(
        &self,
        command: Vec<String>,
        stdout: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<End> {
        let job = Job {
            dir: self.dir.clone(),
            command,
            env: self.env.clone(),
        };
        self.rig.run(&self.kernel, &self.machine, &job, stdout)
    }
}

/// Appends what a guest's tests left to one file among the host's.
fn collect_rows(from: &Path, to: &Path) -> Result<()> {
    let mut lines = String::new();
    for entry in fs::read_dir(from)? {
        lines += &fs::read_to_string(entry?.path())?;
    }
    Ok(fs::write(to, lines)?)
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Lets cargo build the tests.
fn build(repo: &Repo, extent: Extent) -> Result<Vec<Test>> {
    let mut build = repo.cargo(&["test", "--workspace", "--no-run", "--message-format=json"]);
    for (test, _) in extent.tests() {
        build.args(["--test", test]);
    }
    let output = build.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "the tests do not build");
    let messages = String::from_utf8(output.stdout)?;
    let messages: Vec<Value> = messages
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    let program = |test: &str| {
        let mut of_test = messages
            .iter()
            .filter(|message| message["target"]["name"] == test);
        let found = of_test.find_map(|message| message["executable"].as_str());
        found
            .map(PathBuf::from)
            .with_context(|| format!("cargo has not built {test}"))
    };
    let tests = extent.tests().iter();
    tests
        .map(|(test, words)| Ok((program(test)?, *words)))
        .collect()
}
