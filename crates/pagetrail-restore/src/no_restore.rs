//! [`restore`] on processors for which there is no stub.

use crate::error::{Error, Result};
use crate::options::RestoreOptions;
use crate::restored::Restored;
use pagetrail_checkpoint::Image;
use std::convert::Infallible;
use std::time::Duration;

const REASON: &str = "processes are restored without CRIU on x86-64 only";

/// What a process was given after it had been started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Pages, those of children that it has forked meanwhile included.
    pub pages: u64,
    /// How often a thread waited for one.
    pub faults: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// Whether the store has now in which order pages were needed.
    pub kept_touches: bool,
}

/// Gives a process that was restored lazily its pages: there is none.
#[derive(Debug)]
#[must_use]
pub struct Pager(Infallible);

impl Pager {
    /// How many pages are lacked.
    pub fn lacking_pages(&self) -> u64 {
        match self.0 {}
    }

    /// Gives out pages until none is lacked.
    ///
    /// # Errors
    ///
    /// Never: there is no pager.
    pub fn finish(self) -> Result<Given> {
        match self.0 {}
    }
}

/// Refuses every image.
///
/// # Errors
///
/// Always.
pub fn restore_lazily(_image: Image, _options: &RestoreOptions) -> Result<(Restored, Pager)> {
    Err(Error::Refused(REASON.into()))
}

/// Refuses.
///
/// # Errors
///
/// Always.
pub fn check_lazily() -> Result<()> {
    Err(Error::NotLazily(REASON.into()))
}

/// Refuses every image.
///
/// # Errors
///
/// Always.
pub fn restore(_image: &mut Image, _options: &RestoreOptions) -> Result<Restored> {
    Err(Error::Refused(REASON.into()))
}

/// Refuses every image.
///
/// # Errors
///
/// Always.
pub fn restore_copies(
    _image: &mut Image,
    _options: &RestoreOptions,
    _count: u32,
) -> Result<Vec<Restored>> {
    Err(Error::Refused(REASON.into()))
}
