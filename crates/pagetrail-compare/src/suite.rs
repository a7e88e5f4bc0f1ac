//! [`Suite`]: tests by subsystem, after those of the Xen study (its figures 3 to 5, tables 2 to 8).

use std::fmt;
use std::str::FromStr;

use crate::work::{self, Work};

/// The name of a suite that is one program, as users give it.
pub const PROGRAM: &str = "program";

/// A subsystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// Integer and floating-point arithmetic (Nbench, Scimark, Bashmark).
    Processor,
    /// Calls of functions and of the kernel.
    Calls,
    /// Page faults, mappings, processes.
    Memory,
    /// Pipes, sockets, shared memory.
    Ipc,
    /// Files: sequential, random, synchronous (Dbench).
    Disk,
    /// The loopback device (NetIO).
    Net,
    /// What programs use libraries for (Aim9).
    Library,
    /// A database, a compiler, a web server.
    Apps,
}

/// What of the suites is measured: a suite, or one test of it (`memory/motion`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The suite.
    pub suite: Suite,
    /// The one test, if it is one.
    pub test: Option<&'static str>,
}

/// Why a word names no suite; one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no suite; there are {names}", names = Suite::ALL.map(Suite::name).join(", "))]
pub struct UnknownSuite(String);

/// Why a word names no part of the suites; one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownPart {
    /// There is no such suite.
    #[error(transparent)]
    Suite(#[from] UnknownSuite),
    /// The suite has no such test.
    #[error("the suite {suite} has no test '{test}'; there are {names}", names = suite.tests().collect::<Vec<_>>().join(", "))]
    Test {
        /// The suite.
        suite: Suite,
        /// What names no test of it.
        test: String,
    },
}

impl Part {
    /// The names of the tests that belong to it.
    pub fn tests(self) -> impl Iterator<Item = &'static str> {
        let tests = self.suite.tests();
        tests.filter(move |test| self.test.is_none_or(|one| one == *test))
    }
}

impl From<Suite> for Part {
    fn from(suite: Suite) -> Self {
        Self { suite, test: None }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.test {
            None => write!(f, "{}", self.suite),
            Some(test) => write!(f, "{}/{test}", self.suite),
        }
    }
}

impl FromStr for Part {
    type Err = UnknownPart;

    fn from_str(text: &str) -> Result<Self, UnknownPart> {
        let Some((suite, test)) = text.split_once('/') else {
            return Ok(text.parse::<Suite>()?.into());
        };
        let suite: Suite = suite.parse()?;
        match suite.tests().find(|name| *name == test) {
            Some(test) => Ok(Self {
                suite,
                test: Some(test),
            }),
            None => Err(UnknownPart::Test {
                suite,
                test: test.into(),
            }),
        }
    }
}

impl Suite {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Processor,
        Self::Calls,
        Self::Memory,
        Self::Ipc,
        Self::Disk,
        Self::Net,
        Self::Library,
        Self::Apps,
    ];

    /// The word of the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Processor => "processor",
            Self::Calls => "calls",
            Self::Memory => "memory",
            Self::Ipc => "ipc",
            Self::Disk => "disk",
            Self::Net => "net",
            Self::Library => "library",
            Self::Apps => "apps",
        }
    }

    /// The names of its tests.
    pub fn tests(self) -> impl Iterator<Item = &'static str> {
        self.works().iter().map(|work| work.name)
    }

    pub(crate) const fn works(self) -> &'static [Work] {
        match self {
            Self::Processor => work::processor::ALL,
            Self::Calls => work::calls::ALL,
            Self::Memory => work::memory::ALL,
            Self::Ipc => work::ipc::ALL,
            Self::Disk => work::disk::ALL,
            Self::Net => work::net::ALL,
            Self::Library => work::library::ALL,
            Self::Apps => work::apps::ALL,
        }
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Suite {
    type Err = UnknownSuite;

    fn from_str(text: &str) -> Result<Self, UnknownSuite> {
        let mut all = Self::ALL.into_iter();
        all.find(|suite| suite.name() == text)
            .ok_or_else(|| UnknownSuite(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_understood() {
        for suite in Suite::ALL {
            assert_eq!(suite.name().parse(), Ok(suite));
            let mut names: Vec<_> = suite.tests().collect();
            names.sort_unstable();
            let count = names.len();
            names.dedup();
            assert!(count >= 3 && names.len() == count, "{suite}: {names:?}");
        }
        let error = "memroy".parse::<Suite>().expect_err("it is none");
        assert!(
            error
                .to_string()
                .starts_with("'memroy' is no suite; there are processor, calls")
        );
    }

    #[test]
    fn a_part_is_a_suite_or_one_of_its_tests() {
        let part: Part = "memory/motion".parse().expect("it is one");
        assert_eq!(part.tests().collect::<Vec<_>>(), ["motion"]);
        assert_eq!(part.to_string(), "memory/motion");
        let part: Part = "memory".parse().expect("it is one");
        assert_eq!(part, Suite::Memory.into());
        assert_eq!(part.tests().count(), Suite::Memory.tests().count());
        for (text, line) in [
            ("memroy/motion", "'memroy' is no suite; there are"),
            (
                "memory/",
                "the suite memory has no test ''; there are faults",
            ),
            ("memory/none", "the suite memory has no test 'none'; there"),
        ] {
            let error = text.parse::<Part>().expect_err("it is none").to_string();
            assert!(error.starts_with(line), "{error}");
        }
    }
}
