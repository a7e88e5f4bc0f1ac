//! Python's own tests, run by an interpreter that has them.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::{Allocator, Failures, complaint, judge, output};
use crate::python;
use pagetrail_steps::steps::Outcome;

/// The tests that fit into the test of everything.
pub(super) const SHORT: &[&str] = &["test_dict", "test_json", "test_fork1"];

/// Each test file in a process of its own; what fails is compared with libc's allocator.
pub(super) fn test(allocator: Allocator<'_>, tests: &[&str]) -> Result<Outcome> {
    let python = python::find()?;
    let mut fine = true;
    for test in tests {
        let outcome = judge(allocator, |allocator| run(&python, allocator, test))?;
        println!("{test}: {outcome:?}");
        fine &= outcome == Outcome::Passed;
    }
    Ok(Outcome::of(fine))
}

fn run(python: &Path, allocator: Allocator<'_>, test: &str) -> Result<Failures> {
    let mut command = Command::new(python);
    command
        // Only so are all tests named that failed.
        .args(["-m", "test", "-v", "--timeout", "1200", test])
        .env("PYTHONMALLOC", "malloc")
        .env("LD_PRELOAD", allocator.preload())
        .env("PAGETRAIL_SUBPAGES", allocator.parts());
    let (output, text) = output(&mut command)?;
    let mut failures = Failures {
        tests: failed(&text).map(str::to_owned).collect(),
        crash: complaint(&text),
    };
    if let Some(signal) = output.status.signal() {
        failures.crash = Some(format!("{test}: signal {signal}"));
    }
    if !output.status.success() && failures.is_empty() {
        // It names no test of its own.
        failures.tests.insert(test.to_owned());
    }
    Ok(failures)
}

/// `FAIL: test_name (test.test_file.Class.test_name)`, as unittest has it.
fn failed(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let line = line.trim_start();
        line.strip_prefix("FAIL: ")
            .or_else(|| line.strip_prefix("ERROR: "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_failed_tests() {
        let text = "0:00:00 load avg: 1 [1/1] test_x\n\
                    ======\nFAIL: test_a (test.test_x.T.test_a)\n------\n\
                    ======\nERROR: test_b (test.test_x.T.test_b)\n------\n\
                    FAILED (failures=1, errors=1)\n";
        let failed: Vec<_> = failed(text).collect();
        assert_eq!(
            failed,
            [
                "test_a (test.test_x.T.test_a)",
                "test_b (test.test_x.T.test_b)"
            ]
        );
    }
}
