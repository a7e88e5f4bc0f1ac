//! `cargo xtask ooh`: the log of `research/ooh` in a guest: the rules of its device, and the
//! library's suites with the techniques that read it.

pub mod bench;
pub mod pml;
pub(crate) mod recorded;
pub mod refusals;
pub(crate) mod spent;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use pagetrail_rig::guest::{End, Guest, Job, Machine, print_bytes};
use pagetrail_rig::kernel::{Kernel, Series};
use pagetrail_rig::ooh::{self, Ooh};
use pagetrail_rig::{Rig, place, programs};
use pagetrail_steps::repo::Repo;
use pagetrail_steps::steps::{NotHere, Outcome};
use pagetrail_steps::tally::Tally;

use crate::checkpointer;

/// The kernels for which the module is compiled. Commands run on the first.
const SERIES: [&str; 2] = ["6.12", "7.x"];

/// Of what the hostile guest does; each change of the module or the log may well get another.
const SEED: &str = "22";

/// Far more than it takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// How much of it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Conformance on another process, and on the other kernel the device's rules and one case:
    /// two minutes.
    Short,
    /// Conformance on every kind of target, and stress, on every kernel.
    Whole,
}

impl Extent {
    /// What a kernel runs besides the rules.
    fn tests(self, series: &str) -> &'static [Wanted] {
        match self {
            // Whose a frame is differs from kernel to kernel, and this case lives by it.
            Self::Short if series != SERIES[0] => &[Wanted(
                "pagetrail",
                "conformance",
                &["another process", "patched by a debugger"],
            )],
            Self::Short => &[
                Wanted("pagetrail", "conformance", &["epml", "another process"]),
                Wanted("pagetrail", "conformance", &["spml", "another process"]),
                Wanted(
                    "pagetrail",
                    "conformance",
                    &["spml-search", "another process"],
                ),
            ],
            Self::Whole => &[
                Wanted("pagetrail", "conformance", &["epml"]),
                Wanted("pagetrail", "conformance", &["spml"]),
                Wanted("pagetrail", "conformance", &["spml-search"]),
                Wanted("pagetrail", "stress", &["epml"]),
                Wanted("pagetrail", "stress", &["spml"]),
                Wanted("pagetrail", "stress", &["spml-search"]),
                Wanted("pagetrail-preload", "logs", &[]),
            ],
        }
    }
}

/// A package's test, and the words that select its cases.
struct Wanted(&'static str, &'static str, &'static [&'static str]);

/// The parts of all that runs: the library's suites with the device's rules, a monitor that shares
/// its log, and CRIU.
const PARTS: [&str; 3] = ["suites", "monitors", "criu"];

/// Which kernels and parts are wanted: all of those of which none is named.
#[derive(Clone, Copy, Debug, Default)]
pub struct Only<'a>(&'a [String]);

impl<'a> Only<'a> {
    /// `None` if a word is neither.
    pub fn parse(words: &'a [String]) -> Option<Self> {
        let is_known = |word: &String| SERIES.into_iter().chain(PARTS).any(|known| known == word);
        words.iter().all(is_known).then_some(Self(words))
    }

    fn wants(self, word: &str, of: &[&str]) -> bool {
        let mut named = self.0.iter().filter(|named| of.contains(&named.as_str()));
        let any = named.clone().next().is_some();
        !any || named.any(|named| named == word)
    }
}

/// Runs the suites and the device's rules on each kernel. `rows`: where the suites' rows go.
pub fn run(
    repo: &Repo,
    extent: Extent,
    only: Only<'_>,
    rows: Option<&Path>,
    tally: &mut Tally,
) -> Result<Outcome> {
    let on_libgc = match extent {
        Extent::Short => None,
        Extent::Whole => Some(programs::build(repo)?),
    };
    let wants = |part: &str| only.wants(part, &PARTS);
    let mut fine = true;
    let mut absent = Vec::new();
    for series in SERIES {
        if !only.wants(series, &SERIES) {
            continue;
        }
        let tests = build(repo, extent.tests(series))?;
        let mut guests = match Guests::open(repo, series) {
            Err(error) if error.is::<NotHere>() => {
                absent.push(error.to_string());
                continue;
            }
            guests => guests?,
        };
        guests.env.extend(on_libgc.clone());
        if wants("suites") {
            fine &= run_in_guests(repo, &mut guests, &tests, extent, rows, tally)?;
        }
        if extent == Extent::Whole && wants("monitors") {
            fine &= monitors(repo, &mut guests, tally)?;
        }
        if extent == Extent::Whole && wants("criu") {
            match criu(repo, &mut guests) {
                Err(error) if error.is::<NotHere>() => absent.push(error.to_string()),
                outcome => fine &= outcome?,
            }
        }
    }
    Ok(match absent.is_empty() || !fine {
        true => Outcome::of(fine),
        false => Outcome::NotHere(absent.join("; ")),
    })
}

/// A test program with its arguments.
type Test = (PathBuf, &'static [&'static str]);

/// CRIU's chain of dumps, by each technique that reads the log.
fn criu(repo: &Repo, guests: &mut Guests) -> Result<bool> {
    let (command, modules) = checkpointer::by_logs(repo)?;
    println!("-- CRIU in the {}", guests.place);
    guests.machine.modules = modules.iter().map(|&name| name.to_owned()).collect();
    Ok(guests.run(command, &mut print_bytes)? == End::Exited(0))
}

/// What the kernel's devices need that write to a guest's memory and log it.
const VHOST: [&str; 3] = ["af_packet", "vhost_net", "vhost_vsock"];

/// A monitor that shares its log with its guest, and devices of the kernel that log: both run in a
/// guest, which has guests.
fn monitors(repo: &Repo, guests: &mut Guests, tally: &mut Tally) -> Result<bool> {
    let words = &["linux_log", "vhost_devices"];
    let tests = build(repo, &[Wanted("pagetrail-vmm", "vmm", words)])?;
    let log = guests.machine.ooh.take();
    let env = guests.env.clone();
    guests.machine.nested = true;
    guests.machine.modules = VHOST.map(str::to_owned).to_vec();
    guests.env.push(programs::build(repo)?);
    guests.env.push(guests.kernel.variable());
    if let Some(log) = &log {
        let module = ("PAGETRAIL_GUEST_MODULE".to_owned(), text(&log.module));
        guests.env.push(module);
    }
    let steps: Vec<Step> = tests.iter().map(Step::of_test).collect();
    let fine = guests.run_steps(&steps, tally);
    guests.machine.nested = false;
    guests.machine.modules.clear();
    guests.machine.ooh = log;
    guests.env = env;
    fine
}

/// What runs in a guest with the log.
struct Step {
    what: String,
    command: Vec<String>,
    /// Whether it prints the result of tests.
    has_tests: bool,
}

impl Step {
    fn of_test((program, words): &Test) -> Self {
        let words = words.iter().map(|&word| word.to_owned());
        let command: Vec<String> = [text(program)].into_iter().chain(words).collect();
        Self {
            what: command.join(" "),
            command,
            has_tests: true,
        }
    }

    /// One of the device's own programs.
    fn of_device(repo: &Repo, what: &str, source: &str, words: &[&str]) -> Result<Self> {
        let program = repo.target.join("ooh").join(source);
        let program = ooh::compile(repo, &format!("{source}.c"), &["-static"], &program)?;
        let words = words.iter().map(|&word| word.to_owned());
        Ok(Self {
            what: what.to_owned(),
            command: [text(&program)].into_iter().chain(words).collect(),
            has_tests: false,
        })
    }
}

/// Runs the tests, the device's rules and what a hostile guest does in one guest; the rules also in
/// a second one, whose device has no interrupt, if `extent` wants that of this kernel.
fn run_in_guests(
    repo: &Repo,
    guests: &mut Guests,
    tests: &[Test],
    extent: Extent,
    rows: Option<&Path>,
    tally: &mut Tally,
) -> Result<bool> {
    let rules = |what| Step::of_device(repo, what, "rules", &[]);
    let mut steps: Vec<Step> = tests.iter().map(Step::of_test).collect();
    steps.push(rules("the rules of /dev/ooh")?);
    // The last: it leaves the device in any state.
    steps.push(Step::of_device(
        repo,
        "a hostile guest",
        "hostile",
        &[SEED],
    )?);
    let mut fine = guests.run_steps(&steps, tally)?;
    if let Some(rows) = rows {
        let from = Guest::out(guests.rig.dir()).join("rows");
        collect_rows(&from, &rows.join(format!("ooh-{}", guests.series)))?;
    }
    if extent == Extent::Whole {
        let refusals = refusals::step(repo, guests)?;
        let log = guests.machine.ooh.take();
        fine &= guests.run_steps(&[refusals], tally)?;
        guests.machine.ooh = log;
    }
    if extent == Extent::Whole || guests.series == SERIES[0] {
        guests.set_interrupts(false);
        fine &= guests.run_steps(&[rules("these rules without an interrupt")?], tally)?;
        guests.set_interrupts(true);
    }
    Ok(fine)
}

/// Runs one command in such a guest:
/// `[--kernel SERIES] [--counted] [--polled] [--module NAME ..] -- COMMAND ..`; `--polled`: without
/// the interrupt of a full log.
pub fn command(repo: &Repo, args: &[String]) -> Result<bool> {
    let mut series = SERIES[0];
    let mut counted = false;
    let mut interrupts = true;
    let mut modules = Vec::new();
    let mut args = args.iter();
    loop {
        match args.next().map(String::as_str) {
            Some("--") => break,
            Some("--kernel") => series = args.next().context("--kernel needs a value")?,
            Some("--counted") => counted = true,
            Some("--polled") => interrupts = false,
            Some("--module") => modules.push(args.next().context("--module needs a name")?.clone()),
            _ => bail!(
                "ooh takes [--kernel SERIES] [--counted] [--polled] [--module NAME ..] -- COMMAND .."
            ),
        }
    }
    let command: Vec<String> = args.cloned().collect();
    ensure!(!command.is_empty(), "no command after --");
    let mut guests = Guests::open(repo, series)?;
    guests.machine.counted = counted;
    guests.set_interrupts(interrupts);
    guests.machine.modules = modules;
    Ok(guests.run(command, &mut print_bytes)? == End::Exited(0))
}

/// Guests with the log and its module.
struct Guests {
    rig: Rig,
    kernel: Kernel,
    machine: Machine,
    env: Vec<(String, String)>,
    place: String,
    series: String,
    dir: PathBuf,
}

impl Guests {
    fn open(repo: &Repo, series: &str) -> Result<Self> {
        let rig = Rig::open(repo)?;
        let series = Series::named(series)?;
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
            series: series.name.to_owned(),
            dir: repo.root.join("crates/pagetrail"),
        })
    }

    /// Whether the device says by an interrupt that a log is full.
    fn set_interrupts(&mut self, interrupts: bool) {
        if let Some(ooh) = &mut self.machine.ooh {
            ooh.interrupts = interrupts;
        }
    }

    fn job(&self, command: Vec<String>) -> Job {
        Job {
            dir: self.dir.clone(),
            command,
            env: self.env.clone(),
        }
    }

    fn run(
        &self,
        command: Vec<String>,
        stdout: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<End> {
        let job = self.job(command);
        self.rig.run(&self.kernel, &self.machine, &job, stdout)
    }

    /// Runs steps one after the other in one guest, and counts; true if all of them passed.
    fn run_steps(&self, steps: &[Step], tally: &mut Tally) -> Result<bool> {
        let jobs: Vec<Job> = steps
            .iter()
            .map(|step| self.job(step.command.clone()))
            .collect();
        let mut counted: Vec<Tally> = steps.iter().map(|_| Tally::default()).collect();
        let mut heading = None;
        let mut show = |number: usize, bytes: &[u8]| {
            if heading.replace(number) != Some(number) {
                println!("-- {} in the {}", steps[number].what, self.place);
            }
            counted[number].feed(bytes);
            print_bytes(bytes)
        };
        let ends = self
            .rig
            .run_all(&self.kernel, &self.machine, &jobs, &mut show)?;
        let mut fine = true;
        for ((step, end), mut own) in steps.iter().zip(ends).zip(counted) {
            let what = &step.what;
            let passed = matches!(end, Ok(End::Exited(0))) && (own.has_result || !step.has_tests);
            if !passed {
                println!("-- {what} in the {}: {end:?}", self.place);
            }
            if step.has_tests {
                if !own.has_result {
                    own.lose(&format!("-- {what}: {end:?} and no result"));
                }
                tally.add(own, passed);
            }
            fine &= passed;
        }
        Ok(fine)
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
fn build(repo: &Repo, wanted: &[Wanted]) -> Result<Vec<Test>> {
    let mut build = repo.cargo(&["test", "--workspace", "--no-run", "--message-format=json"]);
    for Wanted(_, test, _) in wanted {
        build.args(["--test", test]);
    }
    let output = build.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "the tests do not build");
    let messages = String::from_utf8(output.stdout)?;
    let messages: Vec<Value> = messages
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    let program = |package: &str, test: &str| {
        // Each package lies in a folder of its name.
        let is_of = |message: &&Value| {
            let manifest = message["manifest_path"].as_str().map(Path::new);
            let dir = manifest.and_then(Path::parent);
            message["target"]["name"] == test && dir.is_some_and(|dir| dir.ends_with(package))
        };
        let mut of_test = messages.iter().filter(is_of);
        let found = of_test.find_map(|message| message["executable"].as_str());
        found
            .map(PathBuf::from)
            .with_context(|| format!("cargo has not built {test}"))
    };
    let tests = wanted.iter();
    tests
        .map(|Wanted(package, test, words)| Ok((program(package, test)?, *words)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_and_parts_are_chosen_by_their_names() {
        let words =
            |line: &str| -> Vec<String> { line.split_whitespace().map(str::to_owned).collect() };
        let all = words("");
        let all = Only::parse(&all).unwrap();
        assert!(SERIES.iter().all(|series| all.wants(series, &SERIES)));
        let some = words("7.x monitors criu");
        let some = Only::parse(&some).unwrap();
        let found = SERIES.map(|series| some.wants(series, &SERIES));
        assert_eq!(found, [false, true]);
        assert_eq!(
            PARTS.map(|part| some.wants(part, &PARTS)),
            [false, true, true]
        );
        assert!(Only::parse(&words("7.x --counted")).is_none());
    }
}
