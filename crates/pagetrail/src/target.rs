//! [`Target`]: the memory that is tracked.

use crate::attach::target_check;
use crate::error::{Error, Result};
use crate::page_set::{PageRange, PageSet};
use crate::proc::{cgroup, pidfd};
use crate::watch::life::{EXEC_PAUSE, EXEC_TIMEOUT, lives};
use rustix::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

/// Refuses a process that cannot be watched by any technique. One that executes a program just now
/// is waited for.
fn check(pid: u32, pidfd: Option<&OwnedFd>) -> Result<()> {
    let deadline = Instant::now() + EXEC_TIMEOUT;
    loop {
        match target_check::check(pid) {
            Err(Error::NoSuchProcess { .. }) if lives(pidfd) && Instant::now() < deadline => {
                std::thread::sleep(EXEC_PAUSE);
            }
            outcome => return outcome,
        }
    }
}

/// Describes the memory that is tracked.
#[derive(Debug)]
pub struct Target(pub(crate) Kind);

#[derive(Debug)]
pub(crate) enum Kind {
    OwnRanges(PageSet),
    Own,
    /// The pidfd, where it could be opened, shows whether the process has ended.
    Process {
        pid: u32,
        pidfd: Option<OwnedFd>,
    },
    Command(Box<Command>),
    /// Several processes, each with its pidfd.
    Tree(Vec<Root>),
    /// All processes of a control group: its directory.
    Cgroup(PathBuf),
}

/// A process with which a tree begins.
#[derive(Debug)]
pub(crate) struct Root {
    pub(crate) pid: u32,
    pub(crate) pidfd: Option<OwnedFd>,
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
    /// ```no_run
    /// # fn main() -> pagetrail::Result<()> {
    /// use pagetrail::{Target, Watch};
    /// # let pid = 1234;
    /// let mut watch = Watch::builder().target(Target::process(pid)?).start()?;
    /// let round = watch.collect()?;
    /// println!("{} dirty pages", round.dirty().page_count());
    /// round.commit();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The error names the obstacle: there is no such process, or it is a kernel thread, this
    /// process itself, a 32-bit program, or traced by another process. A missing permission is
    /// reported when the watch starts.
    pub fn process(pid: u32) -> Result<Self> {
        // Opened first, so that a PID that is reused later is recognized.
        let pidfd = pidfd::open(pid);
        check(pid, pidfd.as_ref())?;
        Ok(Self(Kind::Process { pid, pidfd }))
    }

    /// All writable mappings of the running process of a pidfd (`pidfd_open(2)`), including those
    /// that appear later.
    ///
    /// Unlike a PID, a pidfd cannot come to mean another process.
    ///
    /// ```no_run
    /// # fn main() -> pagetrail::Result<()> {
    /// # let pidfd: std::os::fd::OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    /// let target = pagetrail::Target::pidfd(pidfd)?;
    /// let mut watch = pagetrail::Watch::builder().target(target).start()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the descriptor is not a pidfd, or its process has ended; otherwise the
    /// errors of [`Self::process`].
    pub fn pidfd(pidfd: OwnedFd) -> Result<Self> {
        let pid = pidfd::pid_of(&pidfd).map_err(Error::io("reading the PID of a descriptor"))?;
        check(pid, Some(&pidfd))?;
        Ok(Self(Kind::Process {
            pid,
            pidfd: Some(pidfd),
        }))
    }

    /// A program to be started, tracked from before its first instruction.
    ///
    /// The program has the standard streams of `command`. `ptrace(2)` holds it until the watch is
    /// armed; after that it is not traced, so what it writes after the last collect is missed.
    /// [`WatchBuilder::at_exit`] holds it at its end, too. If the program replaces itself by
    /// `execve(2)`, the new program is tracked from the next collect on, which reports all its
    /// pages. Child processes are tracked by
    /// [`WatchBuilder::start_tree`](crate::WatchBuilder::start_tree) only. A set-user-ID
    /// program is refused ([`Error::Privileged`](crate::Error::Privileged)) if the tracker
    /// lacks `CAP_SYS_PTRACE`.
    ///
    /// ```no_run
    /// # fn main() -> pagetrail::Result<()> {
    /// use pagetrail::{AtExit, State, Target, Watch};
    /// use std::{process::Command, time::Duration};
    /// let target = Target::command(Command::new("make"));
    /// let mut watch = Watch::builder().target(target).at_exit(AtExit::Hold).start()?;
    /// while watch.wait(Duration::from_millis(100)) == State::Running {
    ///     watch.collect()?.commit();
    /// }
    /// watch.collect()?.commit(); // what it wrote last
    /// watch.release_exit();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`WatchBuilder::at_exit`]: crate::WatchBuilder::at_exit
    pub fn command(command: Command) -> Self {
        Self(Kind::Command(Box::new(command)))
    }

    /// Running processes and all that descend from them, for
    /// [`WatchBuilder::start_tree`](crate::WatchBuilder::start_tree). A single process or a command
    /// is a tree, too: [`Self::process`], [`Self::command`].
    ///
    /// ```no_run
    /// # fn main() -> pagetrail::Result<()> {
    /// use pagetrail::{Target, Watch};
    /// # let (pid, other) = (1234, 5678);
    /// let mut tree = Watch::builder().target(Target::tree([pid, other])?).start_tree()?;
    /// loop {
    ///     std::thread::sleep(std::time::Duration::from_millis(100));
    ///     tree.follow();
    ///     for member in tree.members_mut() {
    ///         let pid = member.pid();
    ///         let Ok(round) = member.watch_mut().collect() else {
    ///             continue; // it has ended
    ///         };
    ///         println!("process {pid}: {} dirty pages", round.dirty().page_count());
    ///         round.commit();
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Self::process`]; [`Error::WrongTree`] without any process.
    pub fn tree(pids: impl IntoIterator<Item = u32>) -> Result<Self> {
        let mut roots = Vec::<Root>::new();
        for pid in pids {
            if roots.iter().all(|root| root.pid != pid) {
                let pidfd = pidfd::open(pid);
                check(pid, pidfd.as_ref())?;
                roots.push(Root { pid, pidfd });
            }
        }
        match roots.is_empty() {
            true => Err(Error::WrongTree {
                reason: "it has no process".into(),
            }),
            false => Ok(Self(Kind::Tree(roots))),
        }
    }

    /// All processes of a control group (version 2) and of the groups below it, those that come
    /// later included, for [`WatchBuilder::start_tree`](crate::WatchBuilder::start_tree). `path` is
    /// the group's directory, for example `/sys/fs/cgroup/system.slice/nginx.service`.
    ///
    /// # Errors
    ///
    /// [`Error::WrongTree`] if `path` is not the directory of such a group.
    pub fn cgroup(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        cgroup::check(&path)?;
        Ok(Self(Kind::Cgroup(path)))
    }

    /// Describes the kind of target in words, for messages.
    pub(crate) fn describe(&self) -> &'static str {
        match self.0 {
            Kind::OwnRanges(_) => "ranges of the own process",
            Kind::Own => "all of the own process",
            Kind::Process { .. } => "another process",
            Kind::Command(_) => "a program to be started",
            Kind::Tree(_) => "several processes",
            Kind::Cgroup(_) => "a control group",
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
