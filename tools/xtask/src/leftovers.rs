//! Processes that tests have started, and that have not ended with them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use pagetrail_steps::repo::Repo;
use pagetrail_steps::steps::Outcome;

/// How long a process may take to end after its test.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The folders of the target directory with programs that tests run, and are.
const FOLDERS: [&str; 3] = ["tmp", "victims", "debug/deps"];

/// The processes that were there before.
pub(crate) struct Before(BTreeSet<u32>);

impl Before {
    /// Looks now.
    pub(crate) fn look(repo: &Repo) -> Self {
        Self(running(&repo.target).map(|(pid, _)| pid).collect())
    }

    /// Names what runs and did not before.
    pub(crate) fn check(&self, repo: &Repo) -> Result<Outcome> {
        let deadline = Instant::now() + TIMEOUT;
        let left = || running(&repo.target).filter(|(pid, _)| !self.0.contains(pid));
        while left().next().is_some() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(100));
        }
        let left: Vec<_> = left().collect();
        for (pid, program) in &left {
            println!("process {pid} goes on: {}", program.display());
        }
        Ok(Outcome::of(left.is_empty()))
    }
}

/// The processes that run a program of tests.
fn running(target: &Path) -> impl Iterator<Item = (u32, PathBuf)> + use<> {
    let folders = FOLDERS.map(|folder| target.join(folder));
    let processes = fs::read_dir("/proc").into_iter().flatten();
    processes.filter_map(move |process| {
        let process = process.ok()?;
        let pid = process.file_name().to_str()?.parse().ok()?;
        let program = fs::read_link(process.path().join("exe")).ok()?;
        let is_of_tests = folders.iter().any(|folder| program.starts_with(folder));
        is_of_tests.then_some((pid, program))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_runs_is_found() {
        let program = std::env::current_exe().unwrap();
        // target/debug/deps/test
        let target = program.ancestors().nth(3).unwrap();
        let own = (std::process::id(), program.clone());
        assert!(running(target).any(|process| process == own));
        assert!(!running(&target.join("elsewhere")).any(|process| process == own));
    }
}
