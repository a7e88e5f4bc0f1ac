//! Counts what Rust's test harnesses say in their output, and keeps what they say of failures.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Enough to see which tests of a suite had ended.
const LAST_LINES: usize = 20;

/// The sum of the `test result:` lines seen.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// Tests that were not run, or that do not apply here.
    pub ignored: u64,
    /// Whether a harness came to its end, and said so.
    pub has_result: bool,
    /// What the harnesses said of the tests that failed, to be said again at the end of a long run.
    pub failures: Vec<String>,
    /// Within such words.
    #[serde(skip)]
    failing: bool,
    /// The last complete lines, for a harness that does not come to its end.
    #[serde(skip)]
    last: VecDeque<String>,
    /// The line that is not complete yet.
    #[serde(skip)]
    line: Vec<u8>,
}

impl Tally {
    /// Takes the next bytes of an output.
    pub fn feed(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if byte == b'\n' {
                let line = std::mem::take(&mut self.line);
                self.take(&String::from_utf8_lossy(&line));
            } else {
                self.line.push(byte);
            }
        }
    }

    /// A harness lists what failed between `failures:` and its result, or dies on the way.
    fn take(&mut self, line: &str) {
        if line.starts_with("running ") || line.starts_with("test result: ") {
            self.failing = false;
        }
        self.failing |= line == "failures:";
        if self.failing {
            self.failures.push(line.to_owned());
        }
        if self.last.len() == LAST_LINES {
            self.last.pop_front();
        }
        self.last.push_back(line.to_owned());
        self.count(line);
    }

    /// Counts a line like `test result: ok. 3 passed; 0 failed; 0 ignored; ...`; no other line.
    fn count(&mut self, line: &str) {
        let Some(result) = line.strip_prefix("test result: ") else {
            return;
        };
        self.has_result = true;
        let words: Vec<&str> = result.split([' ', ';']).collect();
        for pair in words.windows(2) {
            let Ok(count) = pair[0].parse::<u64>() else {
                continue;
            };
            match pair[1] {
                "passed" => self.passed += count,
                "failed" => self.failed += count,
                "ignored" => self.ignored += count,
                _ => {}
            }
        }
    }

    /// The sum in a line, where `early` of the tests that passed ended early, and say so in rows.
    pub fn sum(&self, early: u64) -> String {
        format!(
            "{} passed, {} failed, {} skipped",
            self.passed.saturating_sub(early),
            self.failed,
            self.ignored + early
        )
    }

    /// Notes why there will be no result, to be said again at the end, below what came last.
    pub fn lose(&mut self, why: &str) {
        self.failures.extend(self.last.drain(..));
        self.failures.push(why.to_owned());
    }

    /// Adds a sum of runs that have ended, each of them added already.
    pub fn join(&mut self, sum: Self) {
        self.passed += sum.passed;
        self.ignored += sum.ignored;
        self.failed += sum.failed;
        self.failures.extend(sum.failures);
    }

    /// Adds a run that has ended. One that failed without a word (killed, not even built) is one
    /// failure.
    pub fn add(&mut self, run: Self, fine: bool) {
        self.passed += run.passed;
        self.ignored += run.ignored;
        self.failed += if fine { run.failed } else { run.failed.max(1) };
        self.failures.extend(run.failures);
    }
}

/// Runs tests, shows what they print, and counts; true if they succeeded.
pub fn run_tests(command: &mut Command, tally: &mut Tally) -> Result<bool> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut stdout = child.stdout.take().context("no standard output")?;
    let mut own = Tally::default();
    let mut buffer = [0; 65536];
    loop {
        let length = stdout.read(&mut buffer)?;
        if length == 0 {
            break;
        }
        io::stdout().write_all(&buffer[..length])?;
        own.feed(&buffer[..length]);
    }
    let fine = child.wait()?.success();
    tally.add(own, fine);
    Ok(fine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_the_result_lines_only() {
        let mut tally = Tally::default();
        let output = "\
running 3 tests
test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
7 passed; 7 failed
test result: FAILED. 10 passed; 2 failed; 0 ignored; 0 measured; 5 filtered out
";
        // In pieces, as a pipe delivers it.
        for piece in output.as_bytes().chunks(7) {
            tally.feed(piece);
        }
        assert_eq!((tally.passed, tally.failed), (13, 2));
        assert_eq!(tally.sum(3), "10 passed, 2 failed, 4 skipped");
        assert!(tally.has_result);
    }

    #[test]
    fn keeps_what_is_said_of_failures() {
        let mut tally = Tally::default();
        tally.feed(
            b"running 2 tests
test good ... ok
test bad ... FAILED

failures:

---- bad stdout ----
assertion failed: 1 > 2

failures:
    bad

",
        );
        assert!(!tally.has_result);
        tally.feed(
            b"test result: FAILED. 1 passed; 1 failed; 0 ignored
\nrunning 1 test
test good ... ok
",
        );
        let kept = tally.failures.join("|");
        let said = "failures:||---- bad stdout ----|assertion failed: 1 > 2||failures:|    bad|";
        assert_eq!(kept, said);
    }

    #[test]
    fn a_lost_run_shows_its_last_lines() {
        let mut tally = Tally::default();
        for line in 0..30 {
            tally.feed(format!("test {line} ... ok\n").as_bytes());
        }
        tally.lose("it hung");
        assert_eq!(tally.failures.len(), LAST_LINES + 1);
        assert_eq!(tally.failures[0], "test 10 ... ok");
        assert_eq!(tally.failures[LAST_LINES], "it hung");
    }

    #[test]
    fn a_run_that_dies_without_a_word_is_a_failure() {
        let mut sum = Tally::default();
        sum.add(Tally::default(), false);
        sum.add(Tally::default(), true);
        assert_eq!((sum.passed, sum.failed), (0, 1));
    }
}
