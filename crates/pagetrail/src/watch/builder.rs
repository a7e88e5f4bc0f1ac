//! [`WatchBuilder`]: what to watch and how, and the start.

use super::choice::{self, Choice, TrackMode};
use super::config::Config;
use super::image;
use super::latent::Unwritable;
use super::life::{EXEC_PATIENCE, EXEC_PAUSE, end_of, lives};
use super::space::{Policy, Space};
use super::{UntrackedRegion, Watch};
use crate::attach::launch::{Hold, Image, Launched};
use crate::attach::target_check::explain;
use crate::error::{Error, Result};
use crate::heap::heaps::Heaps;
use crate::page_set::page_size;
use crate::proc::maps::{self, Maps};
use crate::proc::status::Status;
use crate::target::{Kind, Target};
use crate::technique::Technique;
use crate::technique::adaptive::{FalsePositiveCost, Precision};
use crate::technique::pagemap_scan::HugePages;
use crate::{PageRange, PageSet};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Describes a watch to be started; made by [`Watch::builder`].
#[derive(Debug)]
#[must_use]
pub struct WatchBuilder {
    target: Target,
    choice: Choice,
    track: Option<TrackMode>,
    hold: Hold,
    config: Config,
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
                at_safepoint: false,
                policy: Policy::Compare,
                unwritable: Unwritable::WhenOwned,
                report_again: false,
                false_positive_cost: None,
                precision: Precision::AsNoticed,
            },
        }
    }
}

impl WatchBuilder {
    /// Whose memory; all of the own process unless said otherwise.
    pub fn target(mut self, target: Target) -> Self {
        self.target = target;
        self
    }

    /// Which technique; [`Choice::Auto`] unless said otherwise.
    pub fn technique(mut self, choice: impl Into<Choice>) -> Self {
        self.choice = choice.into();
        self
    }

    /// Whether writes are to be access_kind, all accesses, or each in turns; writes unless said otherwise, or unless the
    /// technique chosen notices something else.
    pub fn track(mut self, track: TrackMode) -> Self {
        self.track = Some(track);
        self
    }

    /// What it costs that a page is reported in vain. Who says so has [`Choice::Auto`] take the technique `adaptive`, which
    /// weighs that against faults; asked for by name it assumes [`FalsePositiveCost::Hashed`].
    pub fn false_positive_cost(mut self, cost: FalsePositiveCost) -> Self {
        self.config.false_positive_cost = Some(cost);
        self
    }

    /// Whether the technique `adaptive` reports pages that it predicts dirty and that have not changed. Others do not
    /// predict, so with them this has no effect.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.config.precision = precision;
        self
    }

    /// What `pagemap-scan`, `adaptive` and `access-scan` do about transparent huge pages; [`HugePages::Split`] unless said
    /// otherwise.
    pub fn huge_pages(mut self, huge_pages: HugePages) -> Self {
        self.config.huge_pages = huge_pages;
        self
    }

    /// How many pages one fault of the technique `userfaultfd` releases: 1 to 512, rounded up to a power of two.
    ///
    /// More make sequential writers faster and the write set coarser; 1 unless said otherwise.
    pub fn block_pages(mut self, pages: u32) -> Self {
        self.config.block_pages = pages;
        self
    }

    /// Promises that no other thread of this process writes to the target while [`Watch::collect`] runs.
    ///
    /// `soft-dirty` needs it on the own process once there are other threads: the kernel offers no way to
    /// fetch and clear the marks in one step. A garbage collector that stops the world has it anyway.
    pub fn at_safepoint(mut self, stopped: bool) -> Self {
        self.config.at_safepoint = stopped;
        self
    }

    /// Whether regions that the technique cannot watch (other trackers' memory, for some techniques files) are
    /// watched by `compare` instead, which is the default, or only reported by [`Watch::untracked`].
    pub fn compare_untracked(mut self, compare: bool) -> Self {
        self.config.policy = if compare {
            Policy::Compare
        } else {
            Policy::Report
        };
        self
    }

    /// What is done about mappings that may not be written at the moment. [`Unwritable::WhenOwned`] unless said otherwise, by which no
    /// write to them is missed.
    ///
    /// The techniques `mprotect` and `access-scan` leave them out.
    pub fn unwritable(mut self, unwritable: Unwritable) -> Self {
        self.config.unwritable = unwritable;
        self
    }

    /// Reports each page once more in the round after the one in which it was found.
    ///
    /// For memory that is written through pinned pages: `process_vm_writev(2)`, `O_DIRECT` and `io_uring` reads, DMA. Pinning
    /// is what a technique notices; a round that comes before the data re-arms the page, and the data leave no mark. With this such a
    /// write is not missed as long as nobody holds a page for longer than from one collect to the one after the next.
    pub fn report_again(mut self, again: bool) -> Self {
        self.config.report_again = again;
        self
    }

    /// Whether a program that the watch starts ([`Target::command`]) is held at its end, so that what it wrote after the
    /// last round can be collected ([`State::Exiting`](super::State::Exiting)); not unless asked for, since it is traced by
    /// `ptrace(2)` for as long as it lives then. It can tell: programs with LeakSanitizer fail at their end,
    /// `PTRACE_TRACEME` and other tracers (gdb, strace) are refused, programs that are set-user-ID get no privileges that the
    /// tracker lacks, each signal takes a stop (some 30 us), and the program waits while the tracker is stopped.
    /// With `soft-dirty` there is no such hold.
    pub fn last_round(mut self, wanted: bool) -> Self {
        self.hold = match wanted {
            true => Hold::UntilItsEnd,
            false => Hold::AtItsStart,
        };
        self
    }

    /// Starts watching; writes from here on are noticed. Of a process that executes another program meanwhile, that one is watched.
    ///
    /// # Errors
    ///
    /// The technique does not work here or not for this target, the target is refused or not permitted, or a
    /// range is not mapped writable.
    pub fn start(self) -> Result<Watch> {
        let Kind::Process(pid) = self.target.0 else {
            return self.attach()?.start();
        };
        let end = end_of(pid);
        // On a busy machine one that is replaced every few milliseconds is rarely met for long enough.
        let deadline = Instant::now() + 10 * EXEC_PATIENCE;
        loop {
            let again = Self {
                target: Target(Kind::Process(pid)),
                config: self.config.clone(),
                ..self
            };
            match again.attach().and_then(Attached::start) {
                // It executes another program, and what we have got belongs to the one before.
                Err(Error::Gone { .. })
                    if lives(pid, end.as_ref()) && Instant::now() < deadline =>
                {
                    std::thread::sleep(EXEC_PAUSE);
                }
                outcome => return outcome,
            }
        }
    }

    /// Gets from the target what watching it needs, and notices nothing yet.
    ///
    /// For a process that will not let itself be attached later, because somebody else is about to trace it. A program
    /// to be started waits before its first instruction.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub fn attach(self) -> Result<Attached> {
        let Self {
            target,
            choice,
            track,
            hold,
            mut config,
        } = self;
        let own = target.is_own();
        let pick = |target: &_, barred| {
            choice::pick(
                choice,
                track,
                config.false_positive_cost.is_some(),
                target,
                barred,
            )
        };
        let mut picked = pick(&target, None)?;
        let mut fetched = None;
        if let Kind::Process(pid) = target.0 {
            fetched = Some(match image::attach(picked.technique, pid) {
                // What this target does not allow another technique may do without.
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
        tracing::debug!(%technique, reason = picked.reason, "picked");
        // Of `mprotect` the ranges must keep their access rights, and `access-scan` would make memory that is inaccessible fault twice.
        if matches!(technique, Technique::Mprotect | Technique::AccessScan) {
            config.unwritable = Unwritable::LeaveOut;
        }

        let mut launched = None;
        let mut within = None;
        let (pid, image) = match target.0 {
            Kind::OwnRanges(ranges) => {
                check_ranges(&ranges, config.track)?;
                within = Some(ranges);
                (None, image::own(technique)?)
            }
            Kind::Own => (None, image::own(technique)?),
            Kind::Process(pid) => {
                let image = fetched.unwrap_or_else(|| image::attach(technique, pid));
                (Some(pid), image.map_err(|e| permission_or(e, Some(pid)))?)
            }
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
        })
    }
}

/// A target that is attached to and not watched yet; made by [`WatchBuilder::attach`].
#[must_use]
pub struct Attached {
    picked: choice::Picked,
    config: Config,
    own: bool,
    pid: Option<u32>,
    within: Option<PageSet>,
    image: Image,
    launched: Option<Launched>,
}

impl std::fmt::Debug for Attached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attached")
            .field("pid", &self.pid)
            .field("technique", &self.picked.technique)
            .finish_non_exhaustive()
    }
}

impl Attached {
    /// Starts watching; writes from here on are noticed.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`] when the target has ended, or its memory has been replaced by `execve(2)`.
    pub fn start(self) -> Result<Watch> {
        let Self {
            picked,
            config,
            own,
            pid,
            within,
            image,
            mut launched,
        } = self;
        let technique = picked.technique;
        let space = config
            .tracker(technique, image.fd, pid)
            .and_then(|tracker| Space::open(pid, within, tracker, &config));
        let mut space = space.map_err(|error| permission_or(error, pid))?;
        let mut heaps = Heaps::new(pid.unwrap_or_else(std::process::id));
        // Before the first write is noticed.
        if let Ok(Some(regions)) = Maps::open(pid).and_then(|mut maps| maps.changed()) {
            heaps.begin(&regions);
        }
        let stopped = space.arm().map_err(|error| permission_or(error, pid))?;
        if let Some(launched) = &mut launched {
            launched.go();
        }
        let end = pid.filter(|_| launched.is_none()).and_then(end_of);
        Ok(Watch {
            technique,
            reason: picked.reason,
            pid: pid.unwrap_or_else(std::process::id),
            own,
            space,
            heaps,
            launched,
            end,
            pending: Default::default(),
            unarmed: Default::default(),
            children: BTreeSet::new(),
            started: Instant::now(),
            round_began: Duration::ZERO,
            index: 0,
            attach_stopped: image.stopped + stopped,
            config,
        })
    }
}

/// Opening another process's maps is where a technique that does not attach finds out that it may not.
fn permission_or(error: Error, pid: Option<u32>) -> Error {
    if let Some(pid) = pid
        && !Status::of(pid).is_ok_and(|status| status.has_memory)
    {
        // Whatever failed first, that is why.
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

/// Given ranges must be whole pages, mapped, and writable (or readable where that is to be noticed).
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
            .field("index", &self.index)
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
