//! [`Error`]: what can be wrong with a machine, or with what is asked of it.

use std::fmt;

use crate::machine::Gva;

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
        }
    }
}

impl std::error::Error for Error {}
