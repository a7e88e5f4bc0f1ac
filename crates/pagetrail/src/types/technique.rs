//! [`Technique`]: the names of the techniques, and [`Status`]: whether one can be used.

use std::fmt;
use std::str::FromStr;

/// A way to detect writes or accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Technique {
    /// Asynchronous write protection by `userfaultfd(2)`, collected by `PAGEMAP_SCAN(2const)`: the
    /// kernel itself resolves each first write. Linux 6.7. The cheapest technique for almost every
    /// use.
    ///
    /// As with every technique that uses `userfaultfd(2)`, one call that Linux 6.17 introduced
    /// fails with `EFAULT` in a target: `mremap(2)` with `MREMAP_FIXED` of several mappings at once
    /// (`vma_multi_allowed` in mm/mremap.c). If the first of them was created since the last round,
    /// it has been moved by then. `Compare` and `SoftDirty` do not affect that call.
    PagemapScan,
    /// [`Self::PagemapScan`] with prediction: pages that are dirty in most rounds are left
    /// unprotected and predicted dirty, which saves faults at the price of some false positives
    /// ([`FalsePositiveCost`](crate::FalsePositiveCost)). Linux 6.7.
    Adaptive,
    /// Synchronous write protection by `userfaultfd(2)`: a thread of the tracker resolves each
    /// fault and may release a whole block at once. Linux 5.7.
    ///
    /// The target waits for that thread, and does not run while the tracker is stopped. What the
    /// kernel writes on behalf of a thread that exits (the owner of its robust mutexes, the word of
    /// `CLONE_CHILD_CLEARTID`) is lost if the page is protected, and threads that wait for it wait
    /// for ever. So [`Choice::Auto`](crate::Choice::Auto) never chooses it for other processes.
    Userfaultfd,
    /// The kernel's soft-dirty bits, cleared by `proc_pid_clear_refs(5)`, read from
    /// `proc_pid_pagemap(5)`.
    SoftDirty,
    /// `mprotect(2)` and a `SIGSEGV` handler, own process only.
    Mprotect,
    /// A comparison with a copy of the memory: no cost for the tracked program between rounds,
    /// exact to the byte, and blind to writes that do not change anything.
    Compare,
    /// Protection from reads and writes by `userfaultfd(2)`, resolved by the kernel itself: reports
    /// pages that were *accessed*, read or written ([`AccessKind::Accesses`](crate::AccessKind)).
    /// Linux 7.3.
    AccessScan,
    /// A log of written virtual addresses that an extended processor keeps (*extended page
    /// modification logging*), read from `/dev/ooh`: no faults, and rounds that cost what they
    /// hold. No processor has it yet, so [`Choice::Auto`](crate::Choice::Auto) never chooses it; in
    /// QEMU a plugin plays it.
    Epml,
    /// The hypervisor's log of written page frames (*shared page modification logging*), read from
    /// `/dev/ooh`, whose driver finds where the process has the frames mapped.
    Spml,
    /// [`Self::Spml`], but the tracker searches the process's page tables for the frames, as in the
    /// paper *Out of Hypervisor*. Needs `CAP_SYS_ADMIN`.
    SpmlSearch,
    /// Detects nothing and reports all populated pages in every round: the baseline, and still a
    /// superset.
    None,
}

impl Technique {
    /// All techniques, the preferred first.
    pub const ALL: [Self; 11] = [
        Self::PagemapScan,
        Self::Adaptive,
        Self::Userfaultfd,
        Self::SoftDirty,
        Self::Mprotect,
        Self::Compare,
        Self::AccessScan,
        Self::Epml,
        Self::Spml,
        Self::SpmlSearch,
        Self::None,
    ];

    /// The number of the technique in [`Self::ALL`].
    pub(crate) const fn index(self) -> usize {
        // The variants are declared in the order of `ALL`, as is asserted below.
        self as usize
    }

    /// The name used in commands, files and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PagemapScan => "pagemap-scan",
            Self::Adaptive => "adaptive",
            Self::Userfaultfd => "userfaultfd",
            Self::SoftDirty => "soft-dirty",
            Self::Mprotect => "mprotect",
            Self::Compare => "compare",
            Self::AccessScan => "access-scan",
            Self::Epml => "epml",
            Self::Spml => "spml",
            Self::SpmlSearch => "spml-search",
            Self::None => "none",
        }
    }
}

const _: () = {
    let mut index = 0;
    while index < Technique::ALL.len() {
        assert!(Technique::ALL[index].index() == index);
        index += 1;
    }
};

impl fmt::Display for Technique {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no technique's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown technique '{0}'; known are: pagemap-scan, adaptive, userfaultfd, soft-dirty, mprotect, compare, access-scan, epml, spml, spml-search, none"
)]
pub struct UnknownTechnique(String);

impl FromStr for Technique {
    type Err = UnknownTechnique;

    fn from_str(name: &str) -> Result<Self, UnknownTechnique> {
        Self::ALL
            .into_iter()
            .find(|t| t.name() == name)
            .ok_or_else(|| UnknownTechnique(name.into()))
    }
}

/// Whether a technique can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// The technique detected a write, and after re-arming the next one.
    Works,
    /// The kernel accepts the calls of the technique, but it missed a write or an error occurred;
    /// the reason.
    Fails(String),
    /// The kernel does not offer the technique, does not permit it, or it is switched off; the
    /// reason.
    Absent(String),
}

impl Status {
    /// Why the technique cannot be used; `None` if it works.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Works => None,
            Self::Fails(reason) | Self::Absent(reason) => Some(reason),
        }
    }

    /// `works`, `fails` or `absent`.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Works => "works",
            Self::Fails(_) => "fails",
            Self::Absent(_) => "absent",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason() {
            None => f.write_str(self.word()),
            Some(reason) => write!(f, "{}: {reason}", self.word()),
        }
    }
}
