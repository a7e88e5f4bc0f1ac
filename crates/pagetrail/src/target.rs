//! [`Target`]: whose memory is watched.

use crate::attach::target_check;
use crate::error::Result;
use crate::page_set::{PageRange, PageSet};
use std::process::Command;

/// Whose memory is watched.
#[derive(Debug)]
pub struct Target(pub(crate) Kind);

#[derive(Debug)]
pub(crate) enum Kind {
    OwnRanges(PageSet),
    Own,
    Process(u32),
    Command(Box<Command>),
}

impl Target {
    /// All writable mappings of this process, those that appear later included.
    ///
    /// The memory in which the watch itself keeps its books is part of them and shows up in the rounds.
    pub fn own() -> Self {
        Self(Kind::Own)
    }

    /// Ranges of this process's memory: whole pages, mapped and writable when the watch starts.
    pub fn ranges(ranges: impl IntoIterator<Item = PageRange>) -> Self {
        Self(Kind::OwnRanges(ranges.into_iter().collect()))
    }

    /// All writable mappings of a running process, those that appear later included.
    ///
    /// # Errors
    ///
    /// Names what makes it impossible: there is no such process, it is a kernel thread, this process itself,
    /// a 32-bit program, or traced by another. Lacking permission shows when the watch starts.
    pub fn process(pid: u32) -> Result<Self> {
        target_check::check(pid)?;
        Ok(Self(Kind::Process(pid)))
    }

    /// A program to be started, watched from before its first instruction.
    ///
    /// Its standard streams are those of `command`. It is held by `ptrace(2)` until the watch is armed, and not traced any
    /// more after that, so what it writes after the last collect is missed; [`WatchBuilder::last_round`] holds it at its
    /// end, too. A program that it becomes by `execve(2)` is watched from the next collect on, which has all its pages;
    /// programs that it starts as children are not watched. One that is set-user-ID is refused
    /// ([`Error::Privileged`](crate::Error::Privileged)) if the tracker lacks `CAP_SYS_PTRACE`.
    ///
    /// [`WatchBuilder::last_round`]: crate::WatchBuilder::last_round
    pub fn command(command: Command) -> Self {
        Self(Kind::Command(Box::new(command)))
    }

    /// What kind of target this is, in words, for messages.
    pub(crate) fn words(&self) -> &'static str {
        match self.0 {
            Kind::OwnRanges(_) => "ranges of the own process",
            Kind::Own => "all of the own process",
            Kind::Process(_) => "another process",
            Kind::Command(_) => "a program to be started",
        }
    }

    /// Whether the memory is this process's own.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.0, Kind::OwnRanges(_) | Kind::Own)
    }
}

/// A range of this process's memory that a value occupies, widened to whole pages.
///
/// ```
/// let buffer = vec![0u8; 100_000];
/// let range = pagetrail::pages_of(&buffer).unwrap();
/// assert!(range.bytes() >= 100_000);
/// ```
pub fn pages_of<T>(slice: &[T]) -> Option<PageRange> {
    let start = slice.as_ptr() as u64;
    let range = PageRange::new(start, start + size_of_val(slice) as u64)?;
    Some(range.align_outwards(crate::page_set::page_size()))
}
