//! The ways to notice writes, as algorithms that run on the machine.
//!
//! A technique is armed when it starts, collects rounds, and is disarmed at the end. All of them
//! promise the same: a write that completes before a collect is in that round; over-reporting is
//! allowed. The suite in `tests/conformance/` holds each of them to it.

mod lu;
mod ooh;
mod oracle;
mod shadow;
mod soft_dirty;
mod userfaultfd;

use std::fmt;
use std::str::FromStr;

use crate::Error;
use crate::guest::ooh::Design;
use crate::host::{Host, ProcessId, VcpuId};
use crate::machine::Gva;
use crate::write_set::WriteSet;

/// Who tracks whom.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The process whose memory is watched.
    pub tracked: ProcessId,
    /// The process that watches. It may be the same.
    pub tracker: ProcessId,
    /// Where the tracker's system calls run.
    pub tracker_vcpu: VcpuId,
}

/// A technique at work on one process.
pub trait Technique {
    /// Its name, as [`TechniqueKind`] spells it.
    fn kind(&self) -> TechniqueKind;

    /// Where the program must go to touch `gva`. Only a technique with an allocator of its own
    /// moves it.
    fn place(&self, gva: Gva) -> Gva {
        gva
    }

    /// Called after each write of the tracked process.
    #[inline]
    fn observe_write(&mut self, _gva: Gva) {}

    /// The writes since the last collect (or since the start); the next round begins.
    fn collect(&mut self, host: &mut Host) -> Result<WriteSet, Error>;

    /// Ends tracking.
    fn disarm(&mut self, host: &mut Host) -> Result<(), Error>;
}

/// The techniques, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum TechniqueKind {
    /// Knows every write and costs nothing.
    Oracle,
    /// `clear_refs` and `pagemap`; the OoH paper's "/proc".
    SoftDirty,
    /// Missing and write-protect faults resolved by the tracker; its "ufd".
    Userfaultfd,
    /// PML emulated for processes by the hypervisor.
    Spml,
    /// PML extended to log for processes. No processor has it.
    Epml,
    /// Parts of pages, by aliases in the EPT, merged and split by history.
    Lu {
        /// Parts of a page: 1, 2, 4, ... 64.
        parts: u32,
        /// Whether parts that are written together are merged.
        dynamic: bool,
    },
    /// Write faults on shadow page tables.
    Shadow,
}

impl TechniqueKind {
    /// One of each, Lu et al. with 4 parts.
    pub const ALL: [Self; 7] = [
        Self::Oracle,
        Self::SoftDirty,
        Self::Userfaultfd,
        Self::Spml,
        Self::Epml,
        Self::Lu {
            parts: 4,
            dynamic: true,
        },
        Self::Shadow,
    ];

    /// Starts this technique on a target.
    pub fn start(self, host: &mut Host, target: Target) -> Result<Box<dyn Technique>, Error> {
        self.start_with(host, target, Options::default())
    }

    /// Makes the technique with the given sizes.
    pub fn start_with(
        self,
        host: &mut Host,
        target: Target,
        options: Options,
    ) -> Result<Box<dyn Technique>, Error> {
        if target.tracked.vm() != target.tracker.vm() {
            return Err(Error::NoSuch("process on this virtual machine"));
        }
        Ok(match self {
            Self::Oracle => Box::new(oracle::Oracle::new()),
            Self::SoftDirty => Box::new(soft_dirty::SoftDirty::start(host, target)?),
            Self::Userfaultfd => Box::new(userfaultfd::Userfaultfd::start(host, target)?),
            Self::Spml => Box::new(ooh::OohTracker::start(host, target, Design::Spml, options)?),
            Self::Epml => Box::new(ooh::OohTracker::start(host, target, Design::Epml, options)?),
            Self::Lu { parts, dynamic } => Box::new(lu::Lu::start(host, target, parts, dynamic)?),
            Self::Shadow => Box::new(shadow::ShadowTracker::start(host, target)?),
        })
    }
}

/// Choices that a technique leaves to its user.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Pages of entries in a ring buffer (SPML, EPML).
    pub ring_pages: u64,
    /// Whether the tracker remembers the virtual address that it found for a guest-physical one
    /// (SPML), as the OoH paper's collector does: later rounds search for new addresses only. It
    /// needs a program that neither unmaps nor moves memory.
    pub remembers_addresses: bool,
}

impl Default for Options {
    /// A ring buffer of 1024 pages of 512 entries (a GiB twice over), and no memory of addresses.
    fn default() -> Self {
        Self {
            ring_pages: 1024,
            remembers_addresses: false,
        }
    }
}

impl fmt::Display for TechniqueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Oracle => f.write_str("oracle"),
            Self::SoftDirty => f.write_str("soft-dirty"),
            Self::Userfaultfd => f.write_str("userfaultfd"),
            Self::Spml => f.write_str("spml"),
            Self::Epml => f.write_str("epml"),
            Self::Lu { parts, dynamic } => {
                write!(
                    f,
                    "lu-{}-{parts}",
                    if *dynamic { "dynamic" } else { "static" }
                )
            }
            Self::Shadow => f.write_str("shadow"),
        }
    }
}

/// Why a name is not that of a technique.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownTechnique(String);

impl fmt::Display for UnknownTechnique {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "unknown technique {:?}: expected oracle, soft-dirty, userfaultfd, spml, epml, shadow, \
             lu-static-N or lu-dynamic-N with N = 1, 2, 4, ... 64",
            self.0
        )
    }
}

impl std::error::Error for UnknownTechnique {}

impl FromStr for TechniqueKind {
    type Err = UnknownTechnique;

    fn from_str(name: &str) -> Result<Self, UnknownTechnique> {
        let lu = |parts: &str, dynamic: bool| {
            let parts = parts
                .parse()
                .ok()
                .filter(|parts| lu::is_valid_parts(*parts))?;
            Some(Self::Lu { parts, dynamic })
        };
        let kind = match name {
            "oracle" => Some(Self::Oracle),
            "soft-dirty" => Some(Self::SoftDirty),
            "userfaultfd" => Some(Self::Userfaultfd),
            "spml" => Some(Self::Spml),
            "epml" => Some(Self::Epml),
            "shadow" => Some(Self::Shadow),
            _ => match (
                name.strip_prefix("lu-static-"),
                name.strip_prefix("lu-dynamic-"),
            ) {
                (Some(parts), _) => lu(parts, false),
                (_, Some(parts)) => lu(parts, true),
                _ => None,
            },
        };
        kind.ok_or_else(|| UnknownTechnique(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for kind in TechniqueKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        for name in [
            "",
            "pml",
            "lu-static-",
            "lu-static-3",
            "lu-dynamic-128",
            "lu-dynamic--2",
            "SPML",
        ] {
            assert!(name.parse::<TechniqueKind>().is_err(), "{name}");
        }
    }
}
