//! What the tests of suites do: fixed work that checks its own result and measures itself.
//!
//! A test runs in a process of its own: the command is started again with the argument
//! `compare --as-work SUITE/TEST`, and has to call [`serve`] then. It prints what the work took,
//! in nanoseconds, and what came out; [`Report`] reads it. So the start of the process, or of a
//! virtual machine around it, is not part of the time.

use std::fmt;
use std::hint::black_box;
use std::io::{self, Write};
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::suite::Suite;

pub(crate) mod apps;
pub(crate) mod calls;
pub(crate) mod disk;
mod http;
pub(crate) mod ipc;
pub(crate) mod library;
pub(crate) mod memory;
pub(crate) mod net;
pub(crate) mod processor;
mod programs;

/// A test.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) name: &'static str,
    /// A program without which it cannot run.
    pub(crate) needs: Option<&'static str>,
    /// Does the work; gives what it took.
    pub(crate) run: fn() -> Result<Done>,
}

impl Work {
    const fn new(name: &'static str, run: fn() -> Result<Done>) -> Self {
        Self {
            name,
            needs: None,
            run,
        }
    }
}

/// Work that was done, and found right.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    took: Duration,
    /// What came out, which is equal in every run.
    result: u64,
}

/// Does some work and measures it; preparations come before, checks after.
fn timed(work: impl FnOnce() -> Result<u64>) -> Result<Done> {
    let began = Instant::now();
    let result = black_box(work()?);
    Ok(Done {
        took: began.elapsed(),
        result,
    })
}

impl Done {
    /// Checks the result.
    fn is(self, expected: u64) -> Result<Self> {
        match self.result == expected {
            true => Ok(self),
            false => bail!("the result is {} instead of {expected}", self.result),
        }
    }
}

/// What a test prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// What the work took, in nanoseconds.
    pub time_ns: u64,
    /// What came out.
    pub result: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.time_ns, self.result)
    }
}

impl FromStr for Report {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut numbers = text.split_whitespace().map(str::parse);
        match (numbers.next(), numbers.next(), numbers.next()) {
            (Some(Ok(time_ns)), Some(Ok(result)), None) => Ok(Self { time_ns, result }),
            _ => bail!("a test says '{}'", text.trim_end()),
        }
    }
}

/// Is the test of this name, `SUITE/TEST`; its files are in a directory of the caller, who may end
/// this process at any time, or in the one for temporary files.
///
/// # Errors
///
/// There is none of this name, or its result is wrong.
pub fn serve(name: &str, place: Option<&Path>) -> Result<()> {
    place.into_iter().for_each(disk::put_files_in);
    let done = (find(name)?.run)()?;
    let report = Report {
        time_ns: u64::try_from(done.took.as_nanos()).unwrap_or(u64::MAX),
        result: done.result,
    };
    writeln!(io::stdout(), "{report}").context("cannot write to standard output")
}

/// Why a test cannot run here, if it cannot.
pub fn absence(suite: Suite, test: &str) -> Option<String> {
    let work = suite.works().iter().find(|work| work.name == test)?;
    let program = work.needs?;
    let is_here = programs::find(program).is_some();
    (!is_here).then(|| format!("the program {program} is not installed"))
}

fn find(name: &str) -> Result<&'static Work> {
    let (suite, test) = name.split_once('/').unwrap_or((name, ""));
    let suite: Suite = suite.parse()?;
    let mut works = suite.works().iter();
    works
        .find(|work| work.name == test)
        .with_context(|| format!("the suite {suite} has no test '{test}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read_as_they_are_written() {
        let report = Report {
            time_ns: 1_234_567,
            result: 42,
        };
        assert_eq!(format!("{report}\n").parse::<Report>().unwrap(), report);
        for wrong in ["", "1", "1 2 3", "a 2", "1 -2"] {
            assert!(wrong.parse::<Report>().is_err(), "{wrong}");
        }
        assert!(
            find("memory/none")
                .unwrap_err()
                .to_string()
                .contains("has no test 'none'")
        );
        assert!(find("none").unwrap_err().to_string().contains("no suite"));
    }

    #[test]
    fn a_wrong_result_is_an_error() {
        let done = timed(|| Ok(3)).unwrap();
        assert!(done.is(3).is_ok());
        let error = done.is(4).unwrap_err().to_string();
        assert_eq!(error, "the result is 3 instead of 4");
    }

    /// Works that fork are run by the command's own tests: a process with threads is not forked.
    #[test]
    fn works_that_need_no_process_of_their_own_find_their_results_right() {
        let suites = [Suite::Processor, Suite::Calls, Suite::Library, Suite::Net];
        for suite in suites {
            for work in suite.works() {
                (work.run)().unwrap_or_else(|error| panic!("{suite}/{}: {error:#}", work.name));
            }
        }
    }
}
