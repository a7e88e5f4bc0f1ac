//! `cargo xtask model`: the model of `research/pagetrail-model` against machines that this one is
//! not.
//!
//! The programs of its `tests/real` run in guests: under KVM on an emulated Intel processor with
//! page-modification logging, under KVM with AMD's nested paging, on a kernel with soft-dirty, and
//! under an emulator that logs every store. What they print goes to `target/real`, and the model's
//! own tests compare.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use pagetrail_rig::guest::{End, Job, Machine};
use pagetrail_rig::kernel::Series;
use pagetrail_rig::{Rig, bochs};
use pagetrail_steps::repo::{Repo, program};
use pagetrail_steps::steps::{NotHere, Outcome};
use pagetrail_steps::tally::{Tally, run_tests};

/// Far more than it takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(600);

/// The tests that compare.
const TESTS: &[&str] = &["real_machines", "real_kernel", "real_stores"];

/// Where a program runs.
enum Place {
    /// On an emulated Intel processor.
    Bochs,
    /// In a guest of this series, with virtualization inside or not.
    Guest { nested: bool },
    /// In a guest whose emulator has this plugin, which leaves a file of its own.
    Watched {
        plugin: &'static str,
        file: &'static str,
    },
}

/// The series of all guests: it has soft-dirty, and the dirty ring.
const SERIES: &str = "6.12";

/// What runs where, and the file that it leaves.
const RUNS: &[(&str, Place, &str)] = &[
    ("kvm.c", Place::Bochs, "pml-bochs.txt"),
    ("kvm.c", Place::Guest { nested: true }, "nested-qemu.txt"),
    (
        "faults.c",
        Place::Guest { nested: false },
        "faults-6.12.txt",
    ),
    (
        "stores.c",
        Place::Watched {
            plugin: "stores_plugin.c",
            file: "stores-plugin.txt",
        },
        "stores-6.12.txt",
    ),
];

/// Machines that run apart from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The emulated Intel processor.
    Bochs,
    /// Guests.
    Guests,
}

impl Part {
    fn has(self, place: &Place) -> bool {
        (self == Self::Bochs) == matches!(place, Place::Bochs)
    }

    /// Where its programs lie, below [`out`].
    fn directory(self) -> &'static str {
        match self {
            Self::Bochs => "bochs",
            Self::Guests => "guests",
        }
    }
}

/// Where files are left for the tests that compare.
pub(crate) fn out(repo: &Repo) -> PathBuf {
    repo.target.join("real")
}

/// Runs what is possible here of a part.
pub fn run(repo: &Repo, part: Part) -> Result<Outcome> {
    if program("gcc").is_none() {
        return Ok(Outcome::NotHere("no gcc".to_owned()));
    }
    let out = out(repo);
    let programs = out.join(part.directory());
    fs::create_dir_all(&programs)?;
    let runs = || RUNS.iter().filter(|(_, place, _)| part.has(place));
    // What cannot be run here must not be compared.
    for (_, _, file) in runs() {
        match fs::remove_file(out.join(file)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    let mut absent = Vec::new();
    for (source, place, file) in runs() {
        let built = build(repo, source, "-static", &programs)?;
        println!("-- {source} for {file}");
        let printed = match place {
            Place::Bochs => in_bochs(repo, &built),
            Place::Guest { nested } => {
                let machine = Machine {
                    nested: *nested,
                    ..Machine::default()
                };
                in_guest(repo, &built, machine)
            }
            Place::Watched { plugin, file } => {
                let plugin = build(repo, plugin, "-shared", &programs)?;
                let machine = Machine {
                    plugin: Some((plugin, out.join(file))),
                    ..Machine::default()
                };
                in_guest(repo, &built, machine)
            }
        };
        match printed {
            Ok(printed) => fs::write(out.join(file), printed)?,
            Err(error) if error.is::<NotHere>() => absent.push(error.to_string()),
            Err(error) => return Err(error).with_context(|| file.to_string()),
        }
    }
    absent.dedup();
    Ok(match absent.is_empty() {
        true => Outcome::Passed,
        false => Outcome::NotHere(absent.join("; ")),
    })
}

/// Runs the tests that compare the model with what the parts have left.
pub fn compare(repo: &Repo, tally: &mut Tally) -> Result<Outcome> {
    let mut tests = repo.cargo(&["test", "--workspace", "--no-fail-fast"]);
    for test in TESTS {
        tests.args(["--test", test]);
    }
    run_tests(tests.env("PAGETRAIL_REAL", out(repo)), tally).map(Outcome::of)
}

/// Compiles a program that runs where there is no library, or a plugin.
pub(crate) fn build(repo: &Repo, source: &str, form: &str, out: &Path) -> Result<PathBuf> {
    let built = out.join(source.trim_end_matches(".c"));
    let status = Command::new("gcc")
        .args(["-O2", "-Wall", "-Werror", "-pthread", "-fPIC", form, "-o"])
        .arg(&built)
        .arg(
            repo.root
                .join("research/pagetrail-model/tests/real")
                .join(source),
        )
        .status()
        .context("cannot run gcc")?;
    ensure!(status.success(), "{source}: gcc failed");
    Ok(built)
}

fn in_bochs(repo: &Repo, built: &Path) -> Result<Vec<u8>> {
    let settings = bochs::Settings::nested(TIMEOUT);
    let ran = bochs::run_program(repo, settings, &[built.display().to_string()])?;
    let printed = String::from_utf8_lossy(&ran.printed);
    ensure!(
        ran.status == Some(0),
        "it ended with {:?}: {printed}",
        ran.status
    );
    Ok(ran.printed)
}

fn in_guest(repo: &Repo, built: &Path, machine: Machine) -> Result<Vec<u8>> {
    let rig = Rig::open(repo)?;
    let series = Series::named(SERIES)?;
    let kernel = rig.kernel(series)?;
    let machine = Machine {
        timeout: TIMEOUT,
        ..machine
    };
    let job = Job {
        dir: repo.root.clone(),
        command: vec![built.display().to_string()],
        env: rig.environment(series),
    };
    let mut printed = Vec::new();
    let end = rig.run(&kernel, &machine, &job, &mut |bytes| {
        printed.extend_from_slice(bytes);
        Ok(())
    })?;
    ensure!(end == End::Exited(0), "it ended with {end:?}");
    Ok(printed)
}
