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

/// Why a word names no suite; one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no suite; there are {names}", names = Suite::ALL.map(Suite::name).join(", "))]
pub struct UnknownSuite(String);

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
}
