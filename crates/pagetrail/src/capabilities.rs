//! [`Capabilities`]: which techniques work on this machine, found by trying them.
//!
//! A technique is available when it detected a write, was re-armed, and detected another: some
//! kernels accept every call and never report anything.

use crate::error::Error;
use crate::page_set::{PageRange, PageSet, page_size};
use crate::region::Region;
use crate::sys::child::soft_dirty_round_trip;
use crate::sys::scratch::Scratch;
use crate::sys::uffd::{Faults, Uffd};
use crate::technique::access_scan::AccessScan;
use crate::technique::adaptive::{Adaptive, FalsePositiveCost, Precision};
use crate::technique::pagemap_scan::{HugePages, PagemapScan};
use crate::technique::{ArmError, Armed, Tracker, compare, mprotect, none, ooh, userfaultfd};
use crate::types::{AccessKind, Status, Technique};
use rustix::io::Errno;
use std::sync::OnceLock;

/// The environment variable that switches techniques off: their names, separated by commas.
///
/// It serves tests of the fallbacks, and machines on which a technique misbehaves.
pub const DISABLE_VARIABLE: &str = "PAGETRAIL_DISABLE";

/// The techniques that this machine offers to this process.
///
/// ```
/// use pagetrail::Capabilities;
/// for (technique, status) in Capabilities::probe().iter() {
///     println!("{technique}: {status}");
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// Indexed by [`Technique::index`].
    statuses: [Status; Technique::ALL.len()],
}

impl Capabilities {
    /// Tries every technique once on a few pages of this process; later calls return the same
    /// answer.
    pub fn probe() -> &'static Self {
        static PROBED: OnceLock<Capabilities> = OnceLock::new();
        PROBED.get_or_init(|| Self {
            statuses: Technique::ALL.map(|technique| Self::probe_one(technique).clone()),
        })
    }

    /// Tries only this technique, once; later calls return the same answer.
    ///
    /// Some trials affect the process: `mprotect` installs a signal handler, `userfaultfd` starts a
    /// thread, `soft-dirty` forks a child. Libraries that are loaded into a foreign process should
    /// probe only the technique that they need.
    pub fn probe_one(technique: Technique) -> &'static Status {
        static PROBED: [OnceLock<Status>; Technique::ALL.len()] =
            [const { OnceLock::new() }; Technique::ALL.len()];
        PROBED[technique.index()].get_or_init(|| {
            let disabled = std::env::var(DISABLE_VARIABLE).unwrap_or_default();
            let mut disabled = disabled.split(',').map(str::trim);
            let status = if disabled.any(|name| name == technique.name()) {
                Status::Absent(format!("switched off by {DISABLE_VARIABLE}"))
            } else {
                round_trip(technique)
            };
            tracing::debug!(%technique, %status, "probed");
            status
        })
    }

    /// The names in [`DISABLE_VARIABLE`] that belong to no technique and therefore switch nothing
    /// off.
    ///
    /// An interactive program should print them: with a misspelt name its user measures the wrong
    /// technique.
    pub fn unknown_disabled() -> Vec<String> {
        let value = std::env::var_os(DISABLE_VARIABLE).unwrap_or_default();
        unknown_in(&value.to_string_lossy())
    }

    /// All techniques in order of preference, each with whether it can be used.
    pub fn iter(&self) -> impl Iterator<Item = (Technique, &Status)> {
        Technique::ALL.into_iter().zip(&self.statuses)
    }

    /// Whether `technique` can be used, and if not, why.
    pub fn status(&self, technique: Technique) -> &Status {
        &self.statuses[technique.index()]
    }

    /// Whether `technique` works.
    pub fn works(&self, technique: Technique) -> bool {
        *self.status(technique) == Status::Works
    }
}

fn unknown_in(disabled: &str) -> Vec<String> {
    let names = disabled.split(',').map(str::trim);
    let unknown = names.filter(|name| !name.is_empty() && name.parse::<Technique>().is_err());
    unknown.map(str::to_owned).collect()
}

fn round_trip(technique: Technique) -> Status {
    match technique {
        Technique::PagemapScan => with_uffd(Faults::UserMode, "Linux 6.7", |fd| {
            PagemapScan::new(fd, None, HugePages::Split)
        }),
        Technique::Adaptive => with_uffd(Faults::UserMode, "Linux 6.7", |fd| {
            Adaptive::new(
                fd,
                None,
                HugePages::Split,
                FalsePositiveCost::default(),
                Precision::AsDetected,
            )
        }),
        Technique::Userfaultfd => with_uffd(Faults::UserAndKernel, "Linux 5.7", |fd| {
            userfaultfd::Userfaultfd::new(fd, None, 1)
        }),
        // It acts on the whole process, where another user of soft-dirty bits may be disturbed, so
        // a child tries it.
        Technique::SoftDirty => soft_dirty_round_trip(),
        Technique::Mprotect => see_two_touches(mprotect::Mprotect::new(AccessKind::Writes)),
        Technique::Compare => compare::Compare::new(None).map_or_else(failed, see_two_touches),
        Technique::AccessScan => with_uffd(Faults::UserMode, "Linux 7.3", |fd| {
            AccessScan::new(fd, None, HugePages::Split)
        }),
        Technique::Epml | Technique::Spml | Technique::SpmlSearch => logged_round_trip(technique),
        Technique::None => none::None::new(None).map_or_else(failed, see_two_touches),
    }
}

/// Tries a technique with a userfaultfd of this process. `since`: the first kernel that has what
/// `make` needs.
fn with_uffd<T: Tracker>(
    faults: Faults,
    since: &str,
    make: impl FnOnce(rustix::fd::OwnedFd) -> Result<T, Error>,
) -> Status {
    let refused = |error| match error {
        Error::Io { source, .. } if source.raw_os_error() == Some(libc::EINVAL) => {
            let uname = rustix::system::uname();
            let release = uname.release().to_string_lossy();
            Status::Absent(format!(
                "this kernel ({release}) does not offer it, which came with {since}"
            ))
        }
        error => failed(error),
    };
    match Uffd::create(faults) {
        Ok(fd) => make(fd).map_or_else(refused, see_two_touches),
        Err(Errno::NOSYS) => Status::Absent("this kernel is built without userfaultfd".into()),
        Err(Errno::PERM) if faults == Faults::UserAndKernel => Status::Absent(
            "userfaultfd(2) is not permitted: needs root, CAP_SYS_PTRACE or vm.unprivileged_userfaultfd=1".into(),
        ),
        Err(Errno::PERM) => {
            Status::Absent("userfaultfd(2) is not permitted here (a seccomp filter of the container?)".into())
        }
        Err(errno) => Status::Fails(format!("userfaultfd(2): {errno}")),
    }
}

/// Tries a technique that reads the log of `/dev/ooh`.
fn logged_round_trip(technique: Technique) -> Status {
    match ooh::device(technique) {
        Err(reason) => Status::Absent(reason),
        Ok(_) => ooh::Ooh::new(technique, None).map_or_else(failed, see_two_touches),
    }
}

fn failed(error: Error) -> Status {
    Status::Fails(error.to_string())
}

/// Arms two pages, writes the second one (or reads it, if accesses are tracked) twice, and expects
/// to see both.
fn see_two_touches(mut tracker: impl Tracker) -> Status {
    let page = page_size();
    let Ok(mut memory) = Scratch::new(2 * page) else {
        return Status::Fails("no memory for a probe".into());
    };
    memory.write(0, 1);
    memory.write(page, 1);
    let region = Region::scratch(memory.range());
    match tracker.arm(&region) {
        Ok(()) => {}
        Err(ArmError::Untrackable(reason)) => return Status::Absent(reason),
        Err(ArmError::Gone | ArmError::ReadOnly) => {
            return Status::Fails("the memory for a probe is gone".into());
        }
        Err(ArmError::Failed(error)) => return failed(error),
    }
    if let Err(error) = tracker.begin() {
        return failed(error);
    }
    let armed = [Armed {
        range: region.range,
        permissions: region.permissions,
    }];
    for value in [2, 3] {
        let what = match tracker.access_kind() {
            AccessKind::Accesses if value == 3 => {
                memory.read(page);
                "read"
            }
            _ => {
                memory.write(page, value);
                "write"
            }
        };
        let mut detected = PageSet::new();
        if let Err(error) = tracker.collect(&armed, &mut detected) {
            return failed(error);
        }
        let second = PageRange::new(memory.range().start() + page, memory.range().end());
        if !second.is_some_and(|range| detected.covers(range)) {
            return Status::Fails(format!(
                "the kernel accepts its calls, but a {what} was not seen"
            ));
        }
    }
    Status::Works
}
