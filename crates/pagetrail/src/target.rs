//! [`Target`]: the memory that is tracked.

use crate::attach::target_check;
use crate::error::Result;
use crate::page_set::{PageRange, PageSet};
use std::process::Command;

/// Describes the memory that is tracked.
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
    /// All writable mappings of this process, including those that appear later.
    ///
    /// This includes the memory in which the watch keeps its own metadata, which shows up in the
    /// rounds.
    pub fn own() -> Self {
        Self(Kind::Own)
    }

    /// Ranges of this process's memory: whole pages that are mapped and writable when the watch
    /// starts.
    pub fn ranges(ranges: impl IntoIterator<Item = PageRange>) -> Self {
        Self(Kind::OwnRanges(ranges.into_iter().collect()))
    }

    /// All writable mappings of a running process, including those that appear later.
    ///
    /// # Errors
    ///
    /// The error names the obstacle: there is no such process, or it is a kernel thread, this
    /// process itself, a 32-bit program, or traced by another process. A missing permission is
    /// reported when the watch starts.
    pub fn process(pid: u32) -> Result<Self> {
        target_check::check(pid)?;
        Ok(Self(Kind::Process(pid)))
    }

    /// A program to be started, tracked from before its first instruction.
    ///
    /// The program has the standard streams of `command`. `ptrace(2)` holds it until the watch is
    /// armed; after that it is not traced, so what it writes after the last collect is missed.
    /// [`WatchBuilder::at_exit`] holds it at its end, too. If the program replaces itself by
    /// `execve(2)`, the new program is tracked from the next collect on, which reports all its
    /// pages. Child processes are not tracked. A set-user-ID program is refused
    /// ([`Error::Privileged`](crate::Error::Privileged)) if the tracker lacks `CAP_SYS_PTRACE`.
    ///
    /// [`WatchBuilder::at_exit`]: crate::WatchBuilder::at_exit
    pub fn command(command: Command) -> Self {
        Self(Kind::Command(Box::new(command)))
    }

    /// Describes the kind of target in words, for messages.
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
