//! The library's suites in guests: the tests that must hold on kernels other than the host's.
//!
//! The host builds them. On each kernel, those that need one kind of machine run in one guest, one
//! after the other, since booting takes longer than many of them. The rows that they leave join
//! the host's.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use pagetrail_rig::guest::{End, Guest, Job, Machine};
use pagetrail_rig::kernel::{Kernel, SERIES, Series};
use pagetrail_rig::{ROWS, Rig, guest, place, programs};
use pagetrail_steps::products::{Product, Profile};
use pagetrail_steps::repo::Repo;
use pagetrail_steps::steps::{NotHere, Outcome};
use pagetrail_steps::table;
use pagetrail_steps::tally::Tally;

/// By series, what the names of cases contain that are left out there.
type LeftOut = &'static [(&'static str, &'static [&'static str])];

/// An integration test that runs in guests.
#[derive(Debug)]
struct Wanted {
    package: &'static str,
    name: &'static str,
    /// The only series that it runs on.
    only: Option<&'static str>,
    /// Whether the guest has two memory nodes.
    two_nodes: bool,
    /// Whether the guest can have guests.
    nested: bool,
    /// Modules that the guest loads for it.
    modules: &'static [&'static str],
    /// Cases that it leaves out.
    left_out: LeftOut,
}

impl Wanted {
    const fn new(package: &'static str, name: &'static str) -> Self {
        Self {
            package,
            name,
            only: None,
            two_nodes: false,
            nested: false,
            modules: &[],
            left_out: &[],
        }
    }

    const fn only(self, series: &'static str) -> Self {
        Self {
            only: Some(series),
            ..self
        }
    }

    const fn on_two_nodes(self) -> Self {
        Self {
            two_nodes: true,
            ..self
        }
    }

    const fn with_guests(self) -> Self {
        Self {
            nested: true,
            ..self
        }
    }

    const fn with_modules(self, modules: &'static [&'static str]) -> Self {
        Self { modules, ..self }
    }

    const fn leaving_out(self, left_out: LeftOut) -> Self {
        Self { left_out, ..self }
    }
}

const SUITES: &[Wanted] = &[
    // Synchronous userfaultfd is asked of kernels before and after 6.12. `none` asks no more of a
    // kernel than its mappings, and `compare` no more than contents and entries of page tables,
    // which an old kernel and the host's are asked for as well. How a program starts tracked is
    // asked of the host's kernel by each technique that it has, and of each other one by those
    // that the host's does not have. `adaptive` has its own pages by the calls of `pagemap-scan`.
    Wanted::new("pagetrail", "conformance").leaving_out(&[
        (
            "6.1",
            &[
                "none, ",
                "compare, started program, ",
                "userfaultfd, started program, ",
            ],
        ),
        (
            "6.12",
            &[
                "none, ",
                "compare, ",
                ", started program, ",
                "userfaultfd, ",
                "adaptive, own ranges, ",
                "adaptive, own process, ",
            ],
        ),
        (
            "7.x",
            &[
                "none, ",
                "compare, ",
                "adaptive, own ranges, ",
                "adaptive, own process, ",
                "adaptive, started program, ",
                "pagemap-scan, started program, ",
                "userfaultfd, started program, ",
            ],
        ),
    ]),
    Wanted::new("pagetrail", "stress").leaving_out(&[
        ("6.1", &["none, "]),
        ("6.12", &["none, ", "compare, "]),
        ("7.x", &["none, ", "compare, "]),
    ]),
    Wanted::new("pagetrail", "unarmed").only("7.x"),
    Wanted::new("pagetrail-cli", "access"),
    Wanted::new("pagetrail-preload", "random").only("6.12"),
    Wanted::new("pagetrail-preload", "collectors")
        .only("7.x")
        .with_guests(),
    Wanted::new("pagetrail-checkpoint", "guest")
        .only("7.x")
        .with_guests(),
    Wanted::new("pagetrail-tier", "nodes")
        .only("7.x")
        .on_two_nodes(),
    Wanted::new("pagetrail-tier", "swap_and_huge")
        .only("7.x")
        .on_two_nodes()
        .with_modules(&["zram"]),
    Wanted::new("pagetrail-cli", "tier")
        .only("7.x")
        .on_two_nodes(),
    Wanted::new("pagetrail-cli", "tier_vms")
        .only("7.x")
        .on_two_nodes()
        .with_guests(),
    Wanted::new("pagetrail-vmm", "vmm")
        .only("7.x")
        .with_guests(),
    Wanted::new("pagetrail-vm", "clock")
        .only("7.x")
        .with_guests(),
    Wanted::new("pagetrail-vm", "follow")
        .only("7.x")
        .with_guests(),
    Wanted::new("pagetrail-vm", "own").only("7.x").with_guests(),
    Wanted::new("pagetrail-vm", "standing")
        .only("7.x")
        .with_guests(),
    Wanted::new("pagetrail-vm", "source")
        .only("7.x")
        .with_guests(),
    Wanted::new("pagetrail-cli", "vm").only("7.x").with_guests(),
    Wanted::new("pagetrail-cli", "vm_access")
        .only("7.x")
        .with_guests(),
    Wanted::new("pagetrail-cli", "vm_consumers")
        .only("7.x")
        .with_guests(),
    Wanted::new("pagetrail-cli", "vm_threads")
        .only("7.x")
        .with_guests(),
    Wanted::new("pagetrail-cli", "vm_states")
        .only("7.x")
        .with_guests(),
    Wanted::new("pagetrail-cli", "vm_programs")
        .only("7.x")
        .with_guests(),
];

/// Of each suite. Emulation is some 20 times slower than the host.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// A test program that cargo has built.
#[derive(Debug, PartialEq, Eq)]
struct Suite {
    name: String,
    only: Option<&'static str>,
    two_nodes: bool,
    nested: bool,
    modules: &'static [&'static str],
    left_out: LeftOut,
    program: PathBuf,
    /// Its package's directory, where cargo would run it.
    dir: PathBuf,
}

impl Suite {
    /// Whether it needs what another one needs.
    fn shares_with(&self, other: &Self) -> bool {
        let needs = |suite: &Self| (suite.two_nodes, suite.nested, suite.modules);
        needs(self) == needs(other)
    }

    fn machine(&self) -> Machine {
        Machine {
            timeout: TIMEOUT,
            numa: self.two_nodes,
            nested: self.nested,
            modules: self.modules.iter().map(|&name| name.into()).collect(),
            ..Machine::default()
        }
    }

    /// The test's arguments in the guest of a series.
    fn arguments(&self, series: &str) -> Vec<String> {
        let here = self.left_out.iter().filter(|(of, _)| *of == series);
        let parts = here.flat_map(|(_, parts)| *parts);
        let skip = |part: &&str| ["--skip".to_owned(), (*part).to_owned()];
        parts.flat_map(skip).collect()
    }
}

/// Kernels whose guests run one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernels {
    /// The newest, on which most suites run.
    Newest,
    /// All others.
    Older,
}

impl Kernels {
    fn series(self) -> &'static [Series] {
        let newest = SERIES.len() - 1;
        match self {
            Self::Newest => &SERIES[newest..],
            Self::Older => &SERIES[..newest],
        }
    }
}

/// Runs every suite on these kernels. Where there is no guest, the table says so.
pub fn run(repo: &Repo, kernels: Kernels, rows: &Path, tally: &mut Tally) -> Result<Outcome> {
    let suites = build(repo)?;
    if suites.is_empty() {
        return Ok(Outcome::NotHere(format!("cargo built none of {SUITES:?}")));
    }
    // Before the rig: that keeps the cache to itself.
    let programs = programs::build(repo)?;
    let mut fine = true;
    let mut absent = Vec::new();
    let mut rig = None;
    for series in kernels.series() {
        match run_on(repo, &mut rig, series, &suites, &programs, rows, tally) {
            Ok(passed) => fine &= passed,
            Err(error) if error.is::<NotHere>() => {
                let reason = error.to_string();
                let row = table::unvisited(&place(series), &reason);
                fs::write(rows.join(format!("guest-{}", series.name)), row)?;
                absent.push(reason);
            }
            Err(error) => {
                println!("{error:#}");
                tally.add(Tally::default(), false);
                fine = false;
            }
        }
    }
    absent.dedup();
    Ok(match absent.is_empty() || !fine {
        true => Outcome::of(fine),
        false => Outcome::NotHere(absent.join("; ")),
    })
}

fn run_on(
    repo: &Repo,
    rig: &mut Option<Rig>,
    series: &'static Series,
    suites: &[Suite],
    programs: &(String, String),
    rows: &Path,
    tally: &mut Tally,
) -> Result<bool> {
    let rig = match rig {
        Some(rig) => rig,
        None => rig.insert(Rig::open(repo)?),
    };
    let place = Place {
        kernel: rig.kernel(series)?,
        rig,
        series,
        programs,
        rows,
    };
    let mut fine = true;
    let here = suites
        .iter()
        .filter(|suite| suite.only.is_none_or(|only| only == series.name));
    for suites in by_machine(here.collect()) {
        fine &= place.run(&suites, tally)?;
    }
    Ok(fine)
}

/// Suites in groups that need one kind of machine each, in their order.
fn by_machine(mut left: Vec<&Suite>) -> Vec<Vec<&Suite>> {
    let mut groups = Vec::new();
    while let [first, ..] = left[..] {
        let (these, others) = left.iter().partition(|suite| suite.shares_with(first));
        groups.push(these);
        left = others;
    }
    groups
}

/// Where suites run, and where their rows go.
struct Place<'a> {
    rig: &'a Rig,
    series: &'static Series,
    kernel: Kernel,
    programs: &'a (String, String),
    rows: &'a Path,
}

impl Place<'_> {
    /// Runs suites that need one kind of machine, and counts; true if all passed.
    fn run(&self, suites: &[&Suite], tally: &mut Tally) -> Result<bool> {
        let machine = suites[0].machine();
        let jobs: Vec<Job> = suites.iter().map(|suite| self.job(suite)).collect();
        let mut counted: Vec<Tally> = suites.iter().map(|_| Tally::default()).collect();
        let mut heading = None;
        let mut show = |number: usize, bytes: &[u8]| {
            if heading.replace(number) != Some(number) {
                println!("-- {}", self.title(suites[number]));
            }
            counted[number].feed(bytes);
            guest::print_bytes(bytes)
        };
        let ends = self.rig.run_all(&self.kernel, &machine, &jobs, &mut show)?;
        let mut fine = true;
        for ((suite, end), own) in suites.iter().zip(ends).zip(counted) {
            fine &= self.judge(suite, end, own, tally);
            let name = format!("guest-{}-{}", self.series.name, suite.name);
            collect_rows(&self.rows_in_guest(suite), self.rows, &name)?;
        }
        Ok(fine)
    }

    fn title(&self, suite: &Suite) -> String {
        format!("{} in the {}", suite.name, place(self.series))
    }

    fn job(&self, suite: &Suite) -> Job {
        let mut env = self.rig.environment(self.series);
        env.retain(|(name, _)| name != ROWS);
        let rows = self.rows_in_guest(suite).display().to_string();
        env.push((ROWS.to_owned(), rows));
        env.push(self.programs.clone());
        env.push(self.kernel.variable());
        Job {
            dir: suite.dir.clone(),
            command: [suite.program.display().to_string()]
                .into_iter()
                .chain(suite.arguments(self.series.name))
                .collect(),
            env,
        }
    }

    fn rows_in_guest(&self, suite: &Suite) -> PathBuf {
        Guest::out(self.rig.dir()).join("rows").join(&suite.name)
    }

    /// Adds what a suite came to; true if it passed.
    fn judge(&self, suite: &Suite, end: Result<End>, mut own: Tally, tally: &mut Tally) -> bool {
        // A harness whose last words are missing was not heard to its end, whatever status came
        // with it.
        if !own.has_result {
            let how = match &end {
                Ok(End::TimedOut) => format!("was stopped after {} s", TIMEOUT.as_secs()),
                Ok(End::Exited(status)) => format!("ended with status {status}"),
                Err(error) => format!("did not end: {error:#}"),
            };
            let why = format!("-- {} {how}, without a result", self.title(suite));
            println!("{why}");
            own.lose(&why);
        }
        let passed = matches!(end, Ok(End::Exited(0))) && own.has_result;
        tally.add(own, passed);
        passed
    }
}

/// Appends what a guest's tests left to one file among the host's.
fn collect_rows(from: &Path, to: &Path, name: &str) -> Result<()> {
    let mut lines = String::new();
    for entry in fs::read_dir(from)? {
        lines += &fs::read_to_string(entry?.path())?;
    }
    Ok(fs::write(to.join(name), lines)?)
}

/// Lets cargo build all tests, and picks ours.
fn build(repo: &Repo) -> Result<Vec<Suite>> {
    // Which a test would build itself, were it not in a guest.
    Product::AllocatorLibrary.build(repo, Profile::Dev)?;
    // Of the workspace, whose dependencies are compiled already: see `Product::build`.
    let mut build = repo.cargo(&["test", "--workspace", "--no-run", "--message-format=json"]);
    for Wanted { name, .. } in SUITES {
        build.args(["--test", name]);
    }
    let output = build.stderr(std::process::Stdio::inherit()).output()?;
    ensure!(output.status.success(), "the tests do not build");
    let messages = String::from_utf8(output.stdout)?;
    let mut suites = Vec::new();
    for message in messages.lines() {
        suites.extend(suite(&serde_json::from_str(message)?)?);
    }
    suites.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(suites)
}

/// The suite that one of cargo's messages tells of.
fn suite(message: &Value) -> Result<Option<Suite>> {
    let target = &message["target"];
    let is_test = target["kind"] == serde_json::json!(["test"]);
    let name = target["name"].as_str().unwrap_or_default();
    let manifest = message["manifest_path"].as_str().map(Path::new);
    let dir = manifest.and_then(Path::parent);
    // Each package lies in a folder of its name.
    let is_of = |package: &str| dir.is_some_and(|dir| dir.ends_with(package));
    let mut suites = SUITES.iter();
    let wanted = suites.find(|wanted| wanted.name == name && is_of(wanted.package));
    let Some(wanted) = wanted.filter(|_| is_test) else {
        return Ok(None);
    };
    let Some(program) = message["executable"].as_str() else {
        return Ok(None);
    };
    Ok(Some(Suite {
        name: name.to_owned(),
        only: wanted.only,
        two_nodes: wanted.two_nodes,
        nested: wanted.nested,
        modules: wanted.modules,
        left_out: wanted.left_out,
        program: program.into(),
        dir: dir.context("a test without a manifest")?.to_owned(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_share_a_guest_that_all_of_them_can_use() {
        let suite = |wanted: &Wanted| Suite {
            name: wanted.name.to_owned(),
            only: wanted.only,
            two_nodes: wanted.two_nodes,
            nested: wanted.nested,
            modules: wanted.modules,
            left_out: wanted.left_out,
            program: PathBuf::new(),
            dir: PathBuf::new(),
        };
        let suites: Vec<Suite> = SUITES.iter().map(suite).collect();
        let groups = by_machine(suites.iter().collect());
        assert_eq!(groups.iter().flatten().count(), SUITES.len());
        // Plain, with guests, with two nodes, with two nodes and swap, with two nodes and guests.
        assert_eq!(groups.len(), 5);
        for group in groups {
            let needs = |suite: &Suite| (suite.two_nodes, suite.nested, suite.modules);
            assert!(group.iter().all(|suite| needs(suite) == needs(group[0])));
        }
    }

    #[test]
    fn picks_the_suites_among_cargos_messages() {
        let message = |kind: &str, name: &str| {
            serde_json::json!({
                "reason": "compiler-artifact",
                "manifest_path": "/p/pagetrail/Cargo.toml",
                "target": {"kind": [kind], "name": name},
                "executable": "/t/deps/conformance-1",
            })
        };
        let found = suite(&message("test", "conformance")).unwrap();
        let expected = Suite {
            name: "conformance".to_owned(),
            only: None,
            two_nodes: false,
            nested: false,
            modules: &[],
            left_out: SUITES[0].left_out,
            program: "/t/deps/conformance-1".into(),
            dir: "/p/pagetrail".into(),
        };
        assert_eq!(found.as_ref(), Some(&expected));
        let leaves_out = Suite {
            left_out: &[("6.1", &["mprotect, "]), ("6.12", &["none, ", "own, "])],
            ..expected
        };
        let arguments = |series| leaves_out.arguments(series).join(" ");
        assert_eq!(arguments("6.12"), "--skip none,  --skip own, ");
        assert_eq!(arguments("7.x"), "");
        for other in [message("test", "cli"), message("lib", "conformance")] {
            assert_eq!(suite(&other).unwrap(), None);
        }
        assert_eq!(
            suite(&serde_json::json!({"reason": "build-finished"})).unwrap(),
            None
        );
    }
}
