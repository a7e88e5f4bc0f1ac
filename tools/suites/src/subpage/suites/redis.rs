//! Redis' own tests, of the sources of the release that Debian has packaged. The tests start their
//! servers themselves, by scripts of ours in the place where Redis' build would have put its
//! programs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use super::{Allocator, Failures, complaint, judge, output};
use pagetrail_rig::redis;
use pagetrail_steps::repo::{Repo, program};
use pagetrail_steps::steps::{NotHere, Outcome};

/// Of all of its files, what fits into the test of everything, and does not hang on how busy the
/// machine is.
pub(super) const SHORT: &[&str] = &["unit/type/string", "unit/type/hash", "unit/type/set"];

/// What the tests start.
const PROGRAMS: [&str; 5] = [
    "redis-server",
    "redis-cli",
    "redis-benchmark",
    "redis-check-aof",
    "redis-check-rdb",
];

/// Tests of jemalloc's own figures, which say nothing when another allocator has the memory.
const OF_JEMALLOC: &str = "/^Active defrag";

/// Which allocator the scripts are to take.
const PRELOAD: &str = "PAGETRAIL_SUITE_PRELOAD";

/// Runs some files of the tests, or all.
pub(super) fn test(
    repo: &Repo,
    allocator: Allocator<'_>,
    only: Option<&[&str]>,
) -> Result<Outcome> {
    if program("tclsh").is_none() {
        return Err(NotHere::error("apt-get install tcl"));
    }
    let suite = Suite::prepare(repo)?;
    let mut files: Vec<String> = match only {
        Some(files) => files.iter().map(|&file| file.to_owned()).collect(),
        None => suite.all_files()?,
    };
    let mut came_to_an_end = false;
    let outcome = judge(allocator, |allocator| {
        let failures = suite.run(allocator, &files)?;
        came_to_an_end |= files.iter().any(|file| !failures.tests.contains(file));
        // Again is only what failed.
        files.retain(|file| failures.tests.iter().any(|test| is_in(test, file)));
        Ok(failures)
    })?;
    if outcome == Outcome::Passed && !came_to_an_end {
        return Err(NotHere::error(
            "no file of the tests comes to its end, on libc's allocator either; another run of them may have their ports",
        ));
    }
    Ok(outcome)
}

/// Whether a test, by the name that [`Failures`] has, is in a file.
fn is_in(test: &str, file: &str) -> bool {
    test == file || test.ends_with(&format!(" in tests/{file}.tcl"))
}

/// The tests, ready to run.
struct Suite {
    dir: PathBuf,
}

impl Suite {
    /// A copy of the sources, since the tests write beside themselves, with our scripts.
    fn prepare(repo: &Repo) -> Result<Self> {
        let dir = repo.target.join("subpage/redis");
        fs::create_dir_all(&dir)?;
        let from = redis::fetch_sources()?.join(".");
        let mut copy = Command::new("cp");
        let status = copy.args(["--recursive", "--update"]).arg(from).arg(&dir);
        ensure!(status.status()?.success(), "the sources cannot be copied");
        for name in PROGRAMS {
            let Some(path) = program(name) else {
                return Err(NotHere::error("apt-get install redis-server redis-tools"));
            };
            let script = dir.join("src").join(name);
            fs::write(&script, wrapper(&path))?;
            fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
        }
        Ok(Self { dir })
    }

    fn command(&self) -> Command {
        let mut command = Command::new("tclsh");
        command
            .arg("tests/test_helper.tcl")
            .current_dir(&self.dir)
            // Colours would be between us and the words.
            .env("TERM", "dumb");
        command
    }

    fn all_files(&self) -> Result<Vec<String>> {
        let (output, text) = output(self.command().arg("--list-tests"))?;
        ensure!(output.status.success(), "the tests cannot be listed");
        let files = text.lines().map(str::trim).filter(|line| !line.is_empty());
        Ok(files.map(str::to_owned).collect())
    }

    /// All files in one run; those that it does not come to, because a test before them ended it,
    /// one by one.
    fn run(&self, allocator: Allocator<'_>, files: &[String]) -> Result<Failures> {
        let mut failures = Failures::default();
        if files.is_empty() {
            // To the tests that would mean all of them.
            return Ok(failures);
        }
        let done = self.run_once(allocator, files, &mut failures)?;
        for file in files.iter().filter(|file| !done.contains(file)) {
            let done = self.run_once(allocator, std::slice::from_ref(file), &mut failures)?;
            if done.is_empty() {
                failures.tests.insert(file.clone());
            }
        }
        Ok(failures)
    }

    /// The files that came to their end.
    fn run_once(
        &self,
        allocator: Allocator<'_>,
        files: &[String],
        failures: &mut Failures,
    ) -> Result<Vec<String>> {
        let mut command = self.command();
        command
            .args(["--clients", "2", "--dump-logs", "--skiptest", OF_JEMALLOC])
            .args(files.iter().flat_map(|file| ["--single", file]))
            .env(PRELOAD, allocator.preload())
            .env("PAGETRAIL_SUBPAGES", allocator.parts());
        let (_, text) = output(&mut command)?;
        for line in text.lines() {
            if let Some(test) = line.strip_prefix("[err]: ") {
                failures.tests.insert(test.to_owned());
            }
            if line.starts_with("[exception]: ") {
                println!("{line}");
            }
        }
        // A server's last words are in its log.
        let crash = text.lines().find(|line| line.contains("crashed by signal"));
        let crash = complaint(&text).or(crash.map(str::to_owned));
        failures.crash = failures.crash.take().or(crash);
        Ok(text.lines().filter_map(done).map(str::to_owned).collect())
    }
}

/// `[3/60 done]: unit/type/string (12 seconds)`
fn done(line: &str) -> Option<&str> {
    let (_, rest) = line.strip_prefix('[')?.split_once(" done]: ")?;
    Some(rest.split_once(" (")?.0)
}

/// A script that becomes a program, on the allocator that the environment names.
fn wrapper(program: &Path) -> String {
    format!(
        "#!/bin/sh\nexport LD_PRELOAD=\"${PRELOAD}\"\nexec {} \"$@\"\n",
        program.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_tests_say() {
        assert_eq!(
            done("[3/60 done]: unit/type/hash (12 seconds)"),
            Some("unit/type/hash")
        );
        assert_eq!(done("[ok]: HSET done (1 ms)"), None);
        assert!(is_in("HSET in tests/unit/type/hash.tcl", "unit/type/hash"));
        assert!(!is_in("HSET in tests/unit/type/hash.tcl", "unit/hash"));
        assert!(is_in("unit/expire", "unit/expire"));
    }
}
