//! The names of this crate on processors other than x86-64, where there is no guest.
//!
//! The recorder's end of the link is the real one: it needs nothing of the processor.

#[allow(dead_code, reason = "nobody is at the guest's end of the link")]
pub(crate) mod rounds;

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::fd::RawFd;

use crate::Settings;
use crate::error::{Error, Result};

/// How dirty pages would be logged.
pub(crate) enum Log {
    Off,
}

pub(crate) fn best_log() -> Result<Log> {
    Err(Error::Processor)
}

pub(crate) fn become_one(
    _command: &[OsString],
    _settings: &Settings,
    _log: Log,
    _link: Option<RawFd>,
) -> Result<Infallible> {
    Err(Error::Processor)
}

/// Returns at once: there is no guest that could have executed a program.
pub fn resume() {}

/// Says for each question that there is no guest on this processor.
pub mod check {
    use crate::error::{Error, Result};
    pub use crate::report::Report;

    /// Queries KVM and the processor, without running a guest.
    pub fn report() -> Result<Report> {
        Err(Error::Processor)
    }

    /// Runs a guest that dirties a fixed set of pages.
    pub fn try_guest() -> Result<&'static str> {
        Err(Error::Processor)
    }

    /// Merges and separates the two aliases of a guest's page.
    pub fn try_units() -> Result<()> {
        Err(Error::Processor)
    }

    /// Times the first writes of a guest to pages that are logged.
    pub fn price_of_write() -> Result<std::time::Duration> {
        Err(Error::Processor)
    }

    /// Runs a guest that reads and writes fixed sets of pages.
    pub fn try_accesses() -> Result<()> {
        Err(Error::Processor)
    }
}
