//! [`WatchBuilder`]: what to track and how, and the start.

mod overhead;

use super::Watch;
use super::attached::Attached;
use super::choice;
use super::config::Config;
use super::image;
use super::latent::Unwritable;
use super::life::{EXEC_PAUSE, EXEC_TIMEOUT, has_memory, lives};
use crate::attach::launch::{Hold, Launched};
use crate::attach::target_check::explain;
use crate::error::{Error, Result};
use crate::page_set::page_size;
use crate::proc::maps::{self, Maps};
use crate::proc::pidfd;
use crate::target::{Kind, Target};
use crate::technique::adaptive::{FalsePositiveCost, Precision};
use crate::technique::pagemap_scan::HugePages;
use crate::tree::Tree;
use crate::types::{
    AtExit, Children, Choice, CollectAt, ReportPages, Technique, TrackMode, UntrackedPolicy,
    UntrackedRegion,
};
use crate::{PageRange, PageSet};
use std::io;
use std::time::{Duration, Instant};

/// Describes a watch and starts it; made by [`Watch::builder`].
#[derive(Debug)]
#[must_use]
pub struct WatchBuilder {
    target: Target,
    choice: Choice,
    track: Option<TrackMode>,
    hold: Hold,
    config: Config,
    membership: Membership,
    children: Children,
}

/// What a watch that belongs to a [`Tree`](crate::Tree) does differently.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Membership {
    /// The process came to be while the tree was followed: its first round reports all its pages,
    /// except those that it shares with its parent still.
    pub(crate) is_new: bool,
    pub(crate) parent: Option<u32>,
    /// Its children are followed, so that they need not be counted.
    pub(crate) has_followed_children: bool,
}

impl Default for WatchBuilder {
    fn default() -> Self {
        Self {
            target: Target::own(),
            choice: Choice::Auto,
            track: None,
            hold: Hold::AtItsStart,
            config: Config {
                track: TrackMode::Writes,
                huge_pages: HugePages::Split,
                block_pages: 1,
                collect_at: CollectAt::AnyTime,
                untracked: UntrackedPolicy::Compare,
                unwritable: Unwritable::WhenOwned,
                report_pages: ReportPages::Once,
                false_positive_cost: None,
                precision: Precision::AsDetected,
                merge_subpages: false,
                max_overhead: None,
                intervals: overhead::INTERVALS,
            },
            membership: Membership::default(),
            children: Children::Follow,
        }
    }
}

impl Watch {
    /// Returns a builder with default settings, by which a watch is described and started.
    pub fn builder() -> WatchBuilder {
        WatchBuilder::default()
    }
}

impl WatchBuilder {
    /// Sets the memory that is tracked; all memory of the own process by default.
    pub fn target(mut self, target: Target) -> Self {
        self.target = target;
        self
    }

    /// Sets the technique; [`Choice::Auto`] by default.
    pub fn technique(mut self, choice: impl Into<Choice>) -> Self {
        self.choice = choice.into();
        self
    }

    /// Sets whether writes, all accesses, or alternately each are tracked. The default is writes,
    /// unless the chosen technique detects only accesses.
    ///
    /// ```no_run
    /// # fn main() -> pagetrail::Result<()> {
    /// use pagetrail::{AccessKind, Target, TrackMode, Watch};
    /// # let pid = 1234;
    /// let watch = Watch::builder().target(Target::process(pid)?).track(TrackMode::Accesses);
    /// let mut watch = watch.start()?;
    /// let round = watch.collect()?; // pages read or written since the last round
    /// assert_eq!(round.access_kind(), AccessKind::Accesses);
    /// round.commit();
    /// # Ok(())
    /// # }
    /// ```
    pub fn track(mut self, track: TrackMode) -> Self {
        self.track = Some(track);
        self
    }

    /// Sets the cost of a false positive. Setting it lets [`Choice::Auto`] choose `adaptive`, which
    /// trades that cost against the cost of a fault. `adaptive` chosen by name assumes
    /// [`FalsePositiveCost::Hashed`] by default.
    pub fn false_positive_cost(mut self, cost: FalsePositiveCost) -> Self {
        self.config.false_positive_cost = Some(cost);
        self
    }

    /// Sets whether the technique `adaptive` reports predicted pages whose contents have not
    /// changed. Other techniques do not predict, so it has no effect on them.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.config.precision = precision;
        self
    }

    /// Sets whether a sub-page heap (`pagetrail-alloc`) hands objects out in whole pages where
    /// distinguishing sub-pages costs a fault for each and shows nothing: in slabs that are used
    /// anew from round to round, as those of a nursery are. It is decided from what rounds cost, by
    /// size of objects, and taken back where such slabs turn out to stay. The advice is written to
    /// the heap's own memory. Off by default.
    pub fn merge_subpages(mut self, merge: bool) -> Self {
        self.config.merge_subpages = merge;
        self
    }

    /// Sets how `pagemap-scan`, `adaptive` and `access-scan` treat transparent huge pages;
    /// [`HugePages::Split`] by default.
    pub fn huge_pages(mut self, huge_pages: HugePages) -> Self {
        self.config.huge_pages = huge_pages;
        self
    }

    /// Sets how many pages one fault of the technique `userfaultfd` releases: 1 to 512, rounded up
    /// to a power of two.
    ///
    /// A larger block makes sequential writers faster and the dirty set coarser; the default is 1.
    pub fn block_pages(mut self, pages: u32) -> Self {
        self.config.block_pages = pages;
        self
    }

    /// Sets when the collects of a watch on the own process run; [`CollectAt::AnyTime`] by default.
    pub fn collect_at(mut self, when: CollectAt) -> Self {
        self.config.collect_at = when;
        self
    }

    /// Sets what happens to regions that the technique cannot track; [`UntrackedPolicy::Compare`]
    /// by default.
    pub fn untracked(mut self, policy: UntrackedPolicy) -> Self {
        self.config.untracked = policy;
        self
    }

    /// Sets how mappings without write permission are tracked. The default,
    /// [`Unwritable::WhenOwned`], misses no write to them.
    ///
    /// The techniques `mprotect` and `access-scan` leave such mappings out.
    pub fn unwritable(mut self, unwritable: Unwritable) -> Self {
        self.config.unwritable = unwritable;
        self
    }

    /// Sets how often a page is reported after it was written; [`ReportPages::Once`] by default.
    pub fn report_pages(mut self, pages: ReportPages) -> Self {
        self.config.report_pages = pages;
        self
    }

    /// Sets what happens at the end of a program that the watch starts ([`Target::command`]);
    /// [`AtExit::Run`] by default.
    pub fn at_exit(mut self, at_exit: AtExit) -> Self {
        self.hold = match at_exit {
            AtExit::Run => Hold::AtItsStart,
            AtExit::Hold => Hold::UntilItsEnd,
        };
        self
    }

    /// Sets what [`Self::start_tree`] does about child processes; [`Children::Follow`] by default.
    pub fn children(mut self, children: Children) -> Self {
        self.children = children;
        self
    }

    /// Starts tracking a tree of processes: the target and, unless [`Self::children`] says
    /// otherwise, all processes that descend from it. All are tracked with the settings of this
    /// builder.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::start`] for the target; [`Error::WrongTree`] if it is memory of the
    /// own process. A descendant that cannot be tracked is no error: see [`Change::Refused`].
    ///
    /// [`Change::Refused`]: crate::Change::Refused
    pub fn start_tree(mut self) -> Result<Tree> {
        let target = std::mem::replace(&mut self.target, Target::own());
        let follow = self.children == Children::Follow;
        Tree::start(self, target, follow)
    }

    /// A builder with the same settings for one process of a tree.
    pub(crate) fn for_member(&self, target: Target, membership: Membership) -> Self {
        Self {
            target,
            config: self.config.clone(),
            membership,
            ..*self
        }
    }

    /// Starts tracking; later writes are detected. If the target process executes another program
    /// meanwhile, the new program is tracked.
    ///
    /// # Errors
    ///
    /// The technique does not work here or not for this target, the target is refused or not
    /// permitted, or a range is not mapped writable.
    pub fn start(self) -> Result<Watch> {
        let (pid, pidfd) = match self.target.0 {
            Kind::Process { pid, pidfd } => (pid, pidfd),
            kind => {
                let target = Target(kind);
                return Self { target, ..self }.attach()?.start();
            }
        };
        // On a busy machine, a process that executes every few milliseconds is rarely attached in
        // time.
        let deadline = Instant::now() + 10 * EXEC_TIMEOUT;
        loop {
            let again = Self {
                target: Target(Kind::Process {
                    pid,
                    pidfd: pidfd.as_ref().and_then(|pidfd| pidfd.try_clone().ok()),
                }),
                config: self.config.clone(),
                ..self
            };
            let before = Maps::open(Some(pid));
            match again.attach().and_then(Attached::start) {
                // The process executed another program, and what was obtained belongs to the
                // previous one, or to neither.
                Err(error) if lives(pidfd.as_ref()) && has_executed(&error, before) => {
                    if Instant::now() >= deadline {
                        let reason = "it executes one program after the other; try again";
                        return Err(Error::Attach {
                            pid,
                            reason: reason.into(),
                        });
                    }
                    std::thread::sleep(EXEC_PAUSE);
                }
                outcome => return outcome,
            }
        }
    }

    /// Obtains what tracking needs from the target, without tracking anything yet.
    ///
    /// Use this for a process that cannot be attached to later because another tracer will attach
    /// to it. A program to be started waits before its first instruction.
    ///
    /// # Errors
    ///
    /// The errors of [`start`](Self::start).
    pub fn attach(self) -> Result<Attached> {
        let Self {
            target,
            choice,
            track,
            hold,
            mut config,
            membership,
            children: _,
        } = self;
        if let Kind::Tree(_) | Kind::Cgroup(_) = target.0 {
            return Err(needs_start_tree());
        }
        config.check_allowance()?;
        let own = target.is_own();
        let pick =
            |target: &_, barred| choice::pick(choice, track, config.predicts(), target, barred);
        let mut picked = pick(&target, None)?;
        let mut fetched = None;
        if let Kind::Process { pid, ref pidfd } = target.0 {
            if pidfd.as_ref().is_some_and(pidfd::has_ended) {
                return Err(Error::Gone { pid });
            }
            fetched = Some(match image::attach(picked.technique, pid) {
                // Another technique may not need what this target does not allow.
                Err(error @ (Error::Seccomp { .. } | Error::Attach { .. }))
                    if choice == Choice::Auto =>
                {
                    let reason = error.to_string();
                    picked = pick(&target, Some((image::INJECTING, &reason)))?;
                    image::attach(picked.technique, pid)
                }
                outcome => outcome,
            });
        }
        let technique = picked.technique;
        config.track = picked.track;
        tracing::info!(%technique, reason = picked.reason, "picked");
        // `mprotect` requires that the ranges keep their access rights, and `access-scan` would
        // make inaccessible memory fault twice.
        if matches!(technique, Technique::Mprotect | Technique::AccessScan) {
            config.unwritable = Unwritable::LeaveOut;
        }

        let mut launched = None;
        let mut within = None;
        let mut process = None;
        let (pid, image) = match target.0 {
            Kind::OwnRanges(ranges) => {
                check_ranges(&ranges, config.track)?;
                within = Some(ranges);
                (None, image::own(technique)?)
            }
            Kind::Own => (None, image::own(technique)?),
            Kind::Process { pid, pidfd } => {
                let image = fetched.unwrap_or_else(|| image::attach(technique, pid));
                let image = image.map_err(|e| permission_or(e, Some(pid)))?;
                process = pidfd;
                (Some(pid), image)
            }
            Kind::Tree(_) | Kind::Cgroup(_) => return Err(needs_start_tree()),
            Kind::Command(command) => {
                let mut started = Launched::start(*command, image::need(technique), hold)?;
                let image = started
                    .take_image(Duration::ZERO)
                    .unwrap_or(Err(Error::Gone { pid: started.pid }));
                (Some(launched.insert(started).pid), image?)
            }
        };
        Ok(Attached {
            picked,
            config,
            own,
            pid,
            within,
            image,
            launched,
            pidfd: process,
            membership,
        })
    }
}

/// Whether an error of attaching to a process that lives comes from an `execve` meanwhile: the
/// address space that it had `before` has ended.
fn has_executed(error: &Error, before: io::Result<Maps>) -> bool {
    let is_missing = |error: &io::Error| {
        let number = error.raw_os_error();
        matches!(number, Some(libc::ENOENT | libc::ESRCH))
    };
    if matches!(error, Error::Gone { .. } | Error::NoSuchProcess { .. }) {
        return true;
    }
    match before.and_then(|mut maps| maps.changed()) {
        Ok(regions) => regions.is_some_and(|regions| regions.is_empty()),
        Err(error) => is_missing(&error),
    }
}

/// The error for a target of several processes where one is needed.
fn needs_start_tree() -> Error {
    Error::WrongTree {
        reason: "several processes are tracked by WatchBuilder::start_tree".into(),
    }
}

/// Replaces an error by the one that names its cause: a missing permission, or a process that has
/// ended.
///
/// A technique that does not attach first needs permission when it opens the target's maps.
pub(super) fn permission_or(error: Error, pid: Option<u32>) -> Error {
    if let Some(pid) = pid
        && !has_memory(pid)
    {
        // If the process has ended, that is the cause, whichever step failed first.
        return Error::Gone { pid };
    }
    match (&error, pid) {
        (Error::Io { source, .. }, Some(pid)) => match rustix::io::Errno::from_io_error(source) {
            Some(errno @ (rustix::io::Errno::ACCESS | rustix::io::Errno::PERM)) => {
                explain(pid, "read the memory map", errno)
            }
            Some(rustix::io::Errno::NOENT | rustix::io::Errno::SRCH) => {
                Error::NoSuchProcess { pid }
            }
            _ => error,
        },
        _ => error,
    }
}

/// Checks that the given ranges are whole pages, mapped, and writable (or readable, if accesses are
/// tracked).
fn check_ranges(ranges: &PageSet, track: TrackMode) -> Result<()> {
    let reads = track != TrackMode::Writes;
    let watchable: PageSet = maps::own()
        .map_err(Error::io("reading /proc/self/maps"))?
        .iter()
        .filter(|region| region.permissions.write || (reads && region.permissions.read))
        .map(|region| region.range)
        .collect();
    let refuse = |range: &PageRange, reason| {
        Err(Error::Range {
            start: range.start(),
            end: range.end(),
            reason,
        })
    };
    for range in ranges.ranges() {
        if (range.start() | range.end()) % page_size() != 0 {
            return refuse(
                range,
                "it is not made of whole pages; widen it to page boundaries",
            );
        }
        if !watchable.covers(*range) {
            let reason = match reads {
                true => "not all of it is mapped readable or writable",
                false => "not all of it is mapped writable",
            };
            return refuse(range, reason);
        }
    }
    Ok(())
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch")
            .field("pid", &self.pid)
            .field("technique", &self.technique)
            .field("index", &self.rounds.index())
            .field(
                "untracked",
                &self
                    .untracked()
                    .iter()
                    .map(UntrackedRegion::to_string)
                    .collect::<Vec<_>>(),
            )
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    #[test]
    fn a_reused_pid_is_not_tracked() {
        // A readable descriptor stands for the pidfd of a process that has ended, and the PID of
        // another process for one that was reused.
        let ended = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
        let mut other = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let target = Target(Kind::Process {
            pid: other.id(),
            pidfd: Some(ended),
        });
        let builder = Watch::builder().target(target);
        let error = builder.technique(Technique::None).start().unwrap_err();
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(matches!(error, Error::Gone { .. }), "{error}");
    }
}
