//! [`Error`]: what can be wrong with a machine, or with what is asked of it.

use std::fmt;

use crate::machine::{Gpa, Gva};

/// Why something could not be done. The text is one line, fit to be shown to a user.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The host's memory is used up.
    OutOfMemory,
    /// A TLB whose sets are not a power of two.
    TlbGeometry {
        /// Entries asked for.
        entries: u32,
        /// Associativity asked for.
        ways: u32,
    },
    /// A program used an address that it did not map.
    BadAddress(Gva),
    /// A guest used a guest-physical address that it was not given.
    OutsideGuestMemory(Gpa),
    /// The guest's memory is used up.
    OutOfGuestMemory,
    /// A ring buffer of fewer than two pages.
    RingTooSmall,
    /// There is no such virtual machine, vCPU, processor or process.
    NoSuch(&'static str),
    /// An access did not complete: a fault of the model.
    Livelock(Gva),
    /// The vCPU runs no process.
    Idle,
    /// The process is tracked already, or is not tracked in this way.
    Tracking(&'static str),
    /// Only the tracker of a process may read what was logged about it.
    NotTheTracker,
    /// The virtual machine cannot do this.
    Unsupported(&'static str),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory => f.write_str("the memory of the modelled host is used up"),
            Self::TlbGeometry { entries, ways } => {
                write!(
                    f,
                    "no TLB has {entries} entries in {ways} ways: the sets must be a power of two"
                )
            }
            Self::BadAddress(gva) => {
                write!(f, "access to {:#x}, where nothing is mapped", gva.get())
            }
            Self::OutsideGuestMemory(gpa) => {
                write!(
                    f,
                    "guest-physical address {:#x} lies outside of the guest's memory",
                    gpa.get()
                )
            }
            Self::OutOfGuestMemory => f.write_str("the memory of the modelled guest is used up"),
            Self::RingTooSmall => f.write_str("a ring buffer needs at least two pages"),
            Self::NoSuch(what) => write!(f, "there is no such {what}"),
            Self::Livelock(gva) => write!(f, "the access to {:#x} never completes", gva.get()),
            Self::Idle => f.write_str("the vCPU runs no process"),
            Self::Tracking(why) => f.write_str(why),
            Self::NotTheTracker => f.write_str("only the tracker of a process may read its log"),
            Self::Unsupported(what) => write!(f, "not possible on this virtual machine: {what}"),
        }
    }
}

impl std::error::Error for Error {}
