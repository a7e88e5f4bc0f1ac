//! `cargo xtask test`: everything that must be fine, on any machine, in one command.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::leftovers::Before;
use crate::{book, capi, notices, ship, tidy};
use pagetrail_steps::lane::{Lane, Report};
use pagetrail_steps::products::{Product, Profile};
use pagetrail_steps::repo::{Repo, program};
use pagetrail_steps::steps::{Outcome, Steps};
use pagetrail_steps::table::Table;
use pagetrail_steps::tally::{Tally, run_tests};
use pagetrail_steps::{packages, victims};
use pagetrail_suites::guests::{self, Kernels};
use pagetrail_suites::{
    arm64, checkpointer, collector, exact, intel, model, ooh, posix, subpage, tier_agent,
};

/// Runs every step, prints the table and the sum; true if nothing failed.
///
/// Guests and emulators of other processors have work for one processor for most of their time:
/// they are two lanes beside the other steps, of about the same length. The lanes begin when all
/// that guests run is built, so that no file of theirs changes below them.
pub(crate) fn run(repo: &Repo) -> Result<bool> {
    let began = Instant::now();
    let rows = rows(repo);
    if rows.exists() {
        fs::remove_dir_all(&rows)?;
    }
    fs::create_dir_all(&rows)?;
    let before = Before::look(repo);
    let mut tally = Tally::default();
    let mut steps = Steps::default();
    steps.run("system packages", packages::ensure_installed);
    steps.run("formatting", || formatting(repo));
    steps.run("tidy", || tidy::run(repo).map(Outcome::of));
    steps.run("victims", || build_victims(repo));
    steps.run("test programs", || build_tests(repo));
    let lanes = LANES.map(|(name, _)| start(repo, name));
    steps.run("clippy", || clippy(repo));
    steps.run("third-party notices", || {
        notices::write(repo, &repo.target.join("share")).map(|_| Outcome::Passed)
    });
    steps.run("book", || book::build(repo));
    steps.run("tests", || tests(repo, &rows, &mut tally));
    steps.run("documentation", || documentation(repo));
    steps.run("attaching inside a PID namespace", || {
        in_pid_namespace(repo, &mut tally)
    });
    ship::add(repo, &mut steps);
    steps.run("object stores", || object_stores(repo, &mut tally));
    steps.run("programs on libgc", || collector::test(repo));
    steps.run("Python's tests on the sub-page allocator", || {
        subpage::suites::short_of_python(repo)
    });
    steps.run("Redis' tests on the sub-page allocator", || {
        subpage::suites::short_of_redis(repo)
    });
    steps.run("the Open POSIX Test Suite while tracked", || {
        posix::test(repo)
    });
    steps.run("CRIU", || checkpointer::test(repo));
    steps.run("C library", || capi::check(repo));
    for (lane, (_, run)) in lanes.into_iter().zip(LANES) {
        match lane {
            Some(lane) => lane.join(&mut steps, &mut tally),
            None => run(repo, &mut steps, &mut tally),
        }
    }
    steps.run("model against real machines", || {
        model::compare(repo, &mut tally)
    });
    steps.run("no process goes on", || before.check(repo));
    let mut early = 0;
    steps.run("techniques", || techniques(&rows, &mut early));
    for line in &tally.failures {
        println!("{line}");
    }
    let fine = steps.finish();
    println!("{:>8.1} s  in all", began.elapsed().as_secs_f64());
    println!("{}", tally.sum(early));
    Ok(fine)
}

/// The task that runs a lane's steps, for [`run`] alone.
pub(crate) const LANE: &str = "lane";
/// Runs the steps of a lane.
type RunLane = fn(&Repo, &mut Steps, &mut Tally);
/// The lanes: their names, and their steps.
const LANES: [(&str, RunLane); 2] = [
    ("newest kernel", on_newest_kernel),
    ("other machines", on_other_machines),
];

/// Starts a lane; `None` where its steps must come after the others.
fn start(repo: &Repo, name: &'static str) -> Option<Lane> {
    Lane::start(repo, name, &[LANE.as_ref(), name.as_ref()]).unwrap_or_else(|error| {
        println!("{name}: later than the other steps: {error:#}\n");
        None
    })
}

/// Runs the steps of a lane; the last argument is the file for what became of them.
pub(crate) fn lane(repo: &Repo, arguments: &[String]) -> Result<bool> {
    let [name, report] = arguments else {
        bail!("{LANE} takes a lane and a file");
    };
    let lane = LANES.iter().find(|(other, _)| other == name);
    let (_, run) = lane.with_context(|| format!("no lane '{name}'"))?;
    let Report {
        mut steps,
        mut tally,
    } = Report::default();
    run(repo, &mut steps, &mut tally);
    Report { steps, tally }.write(Path::new(report))?;
    Ok(true)
}

/// The step whose guests have the newest kernel: as long as all others with guests.
fn on_newest_kernel(repo: &Repo, steps: &mut Steps, tally: &mut Tally) {
    let rows = rows(repo);
    steps.run("suites in guests: newest kernel", || {
        guests::run(repo, Kernels::Newest, &rows, tally)
    });
}

/// The steps with guests that have older kernels or a log, with emulators of other processors, and
/// with guests that run little.
fn on_other_machines(repo: &Repo, steps: &mut Steps, tally: &mut Tally) {
    let rows = rows(repo);
    steps.run("suites in guests: older kernels", || {
        guests::run(repo, Kernels::Older, &rows, tally)
    });
    steps.run("logs of processor and hypervisor", || {
        ooh::run(
            repo,
            ooh::Extent::Short,
            ooh::Only::default(),
            Some(&rows),
            tally,
        )
    });
    steps.run("conformance on arm64", || arm64::run(repo, tally));
    steps.run("guests on an Intel processor", || intel::run(repo, &rows));
    steps.run("machines of the model: guests", || {
        model::run(repo, model::Part::Guests)
    });
    steps.run("a program as a guest, exactly: nested paging", || {
        exact::run(repo, exact::Machine::Guest, Some(&rows))
    });
    steps.run("an agent of tiering in a guest", || tier_agent::run(repo));
    steps.run("CRIU in a guest", || checkpointer::test_in_guest(repo));
    steps.run("C library in a guest", || capi::check_in_guest(repo));
}

/// Where tests leave rows for the table of techniques.
fn rows(repo: &Repo) -> PathBuf {
    repo.target.join("rows")
}

/// Runs what finds most mistakes soonest: no guests, no programs of others, one technique.
pub(crate) fn quick(repo: &Repo) -> Result<bool> {
    let mut tally = Tally::default();
    let mut steps = Steps::default();
    steps.run("formatting", || formatting(repo));
    steps.run("tidy", || tidy::run(repo).map(Outcome::of));
    steps.run("clippy", || clippy(repo));
    steps.run("victims", || build_victims(repo));
    steps.run("unit tests", || {
        let mut tests = repo.cargo(&["test", "--quiet", "--workspace", "--lib", "--bins"]);
        run_tests(&mut tests, &mut tally).map(Outcome::of)
    });
    steps.run("conformance of one technique", || {
        let technique = ["pagemap-scan", "soft-dirty", "mprotect"]
            .into_iter()
            .filter_map(|name| name.parse::<pagetrail::Technique>().ok())
            .find(|technique| pagetrail::Capabilities::probe().works(*technique));
        let Some(technique) = technique else {
            return Ok(Outcome::NotHere("no technique works here".to_owned()));
        };
        // Of the workspace, whose dependencies are compiled already.
        let test = ["test", "--quiet", "--workspace", "--test", "conformance"];
        let mut tests = repo.cargo(&test);
        tests.args(["--", technique.name()]);
        run_tests(&mut tests, &mut tally).map(Outcome::of)
    });
    let fine = steps.finish();
    println!("{}", tally.sum(0));
    Ok(fine)
}

/// The library's documentation, with broken links and the like denied.
fn documentation(repo: &Repo) -> Result<Outcome> {
    let mut doc = repo.cargo(&["doc", "--quiet", "--workspace", "--no-deps"]);
    succeeds(doc.env("RUSTDOCFLAGS", "--deny warnings"))
}

fn formatting(repo: &Repo) -> Result<Outcome> {
    if !has_component(repo, "fmt") {
        return Ok(Outcome::NotHere("rustup component add rustfmt".to_owned()));
    }
    succeeds(&mut repo.cargo(&["fmt", "--all", "--check"]))
}

fn clippy(repo: &Repo) -> Result<Outcome> {
    if !has_component(repo, "clippy") {
        return Ok(Outcome::NotHere("rustup component add clippy".to_owned()));
    }
    let mut clippy = repo.cargo(&["clippy", "--workspace", "--all-targets", "--quiet"]);
    succeeds(clippy.args(["--", "--deny", "warnings"]))
}

fn build_victims(repo: &Repo) -> Result<Outcome> {
    if program("gcc").is_none() {
        return Ok(Outcome::NotHere("no gcc".to_owned()));
    }
    victims::build(repo).map(|_| Outcome::Passed)
}

/// Compiles all tests, and the command and libraries that they run.
fn build_tests(repo: &Repo) -> Result<Outcome> {
    for product in [
        Product::Command,
        Product::AllocatorLibrary,
        Product::KeyValueStore,
    ] {
        product.build(repo, Profile::Dev)?;
    }
    let mut tests = repo.cargo(&["test", "--quiet", "--workspace", "--no-run"]);
    succeeds(tests.args(TARGETS))
}

/// All that has tests but documentation. Examples, which cargo would compile otherwise, have none;
/// clippy checks them, and the one that a test starts is a product.
const TARGETS: &[&str] = &["--lib", "--bins", "--tests"];

fn tests(repo: &Repo, rows: &Path, tally: &mut Tally) -> Result<Outcome> {
    let mut fine = true;
    for targets in [TARGETS, &["--doc"]] {
        let mut tests = repo.cargo(&["test", "--workspace", "--no-fail-fast"]);
        tests
            .args(targets)
            .env("PAGETRAIL_ROWS", rows)
            .env("PAGETRAIL_WHERE", "this machine");
        fine &= run_tests(&mut tests, tally)?;
    }
    Ok(Outcome::of(fine))
}

/// Runs the tests that use process IDs in a PID namespace that was entered from outside, as
/// `docker exec` does: parent and session are in another one there, and the kernel calls them 0.
/// Repetitions find races, which are the same as outside: there are fewer.
fn in_pid_namespace(repo: &Repo, tally: &mut Tally) -> Result<Outcome> {
    let unshare = || {
        let mut unshare = Command::new("unshare");
        unshare.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
        unshare
    };
    let probed = unshare().arg("true").stderr(Stdio::null()).status();
    if !probed.is_ok_and(|status| status.success()) {
        let reason = "unshare(1) makes no PID namespace (not root?)";
        return Ok(Outcome::NotHere(reason.to_owned()));
    }
    let mut fine = true;
    // Programs of tests, and what the names of their tests contain.
    for (programs, names) in [
        (&["agent", "attach", "hold"][..], &[][..]),
        (&["commands"], &["criu::", "let_go::"]),
    ] {
        let mut cargo = repo.cargo(&["test", "--quiet", "--workspace", "--no-fail-fast"]);
        for program in programs {
            cargo.args(["--test", program]);
        }
        let mut command = unshare();
        command.arg(cargo.get_program()).args(cargo.get_args());
        command.arg("--").args(names);
        command.env("PAGETRAIL_SHORT", "1").current_dir(&repo.root);
        fine &= run_tests(&mut command, tally)?;
    }
    Ok(Outcome::of(fine))
}

/// What is behind a feature that the other tests leave out, because of all that it brings.
fn object_stores(repo: &Repo, tally: &mut Tally) -> Result<Outcome> {
    let mut tests = repo.cargo(&["test", "--workspace", "--no-fail-fast"]);
    tests.args(["--test", "bucket", "--test", "late_writes"]);
    tests.args(["--features", "pagetrail-checkpoint/object-store"]);
    run_tests(&mut tests, tally).map(Outcome::of)
}

/// What tests found out, and `early`, how many ended before they tested anything.
fn techniques(rows: &Path, early: &mut u64) -> Result<Outcome> {
    let table = Table::read(rows)?;
    print!("{}{}", table.render(), table.render_skipped());
    *early = table.skipped();
    Ok(Outcome::of(!table.any_fails()))
}

fn has_component(repo: &Repo, name: &str) -> bool {
    let mut version = repo.cargo(&[name, "--version"]);
    let version = version.stdout(Stdio::null()).stderr(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}

fn succeeds(command: &mut Command) -> Result<Outcome> {
    Ok(Outcome::of(command.status()?.success()))
}
