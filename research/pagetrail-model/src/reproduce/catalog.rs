//! What is reproduced of which paper, by the numbers that the papers give their tables and figures.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use super::{
    Table, flexible, flexible_guests, hmmv, hmmv_huge, ooh, ooh_formulas, ooh_influence, ooh_logs,
    ooh_machines, ooh_programs, xen, xen_counts, xen_native,
};
use crate::RunError;

/// A paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Paper {
    /// Bitchebe, Tchana: Out of Hypervisor (SC'22).
    Ooh,
    /// Lu et al.: Flexible page-level memory access monitoring (VEE'17).
    Flexible,
    /// Sha et al.: HMM-V.
    Hmmv,
    /// Kloster et al.: hardware virtual machines against native runs on Xen (2007).
    Xen,
}

impl Paper {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Ooh, Self::Flexible, Self::Hmmv, Self::Xen];

    /// Its name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ooh => "ooh",
            Self::Flexible => "flexible",
            Self::Hmmv => "hmmv",
            Self::Xen => "xen",
        }
    }

    /// Who wrote it, and what it is about.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Ooh => "Bitchebe, Tchana: Out of Hypervisor (SC'22)",
            Self::Flexible => "Lu et al.: Flexible page-level memory access monitoring (VEE'17)",
            Self::Hmmv => "Sha et al.: HMM-V, heterogeneous memory management for virtual machines",
            Self::Xen => "Kloster et al.: hardware virtual machines and native in Xen (2007)",
        }
    }

    /// What is reproduced of it, in its order.
    pub const fn entries(self) -> &'static [Entry] {
        match self {
            Self::Ooh => OOH,
            Self::Flexible => FLEXIBLE,
            Self::Hmmv => HMMV,
            Self::Xen => XEN,
        }
    }
}

impl FromStr for Paper {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        let paper = Self::ALL.into_iter().find(|paper| paper.name() == name);
        paper.ok_or(())
    }
}

/// A number of a paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// Of a table, in Arabic figures.
    Table(u8),
    /// Of a figure.
    Figure(u8),
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(number) => write!(f, "table {number}"),
            Self::Figure(number) => write!(f, "figure {number}"),
        }
    }
}

/// What one function reproduces.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The tables and figures that it answers.
    pub numbers: &'static [Number],
    /// Whether the model runs for it, which takes seconds.
    pub runs: bool,
    make: fn() -> Result<Table, RunError>,
}

impl Entry {
    /// Reproduces it, which takes some seconds.
    pub fn make(&self) -> Result<Table, RunError> {
        (self.make)()
    }
}

const fn entry(numbers: &'static [Number], make: fn() -> Result<Table, RunError>) -> Entry {
    Entry {
        numbers,
        runs: true,
        make,
    }
}

/// An entry whose values are given, or looked up in recordings.
const fn lookup(numbers: &'static [Number], make: fn() -> Result<Table, RunError>) -> Entry {
    Entry {
        runs: false,
        ..entry(numbers, make)
    }
}

/// The micro-benchmark is the same for all who want a part of it.
fn micro() -> Result<&'static ooh::Micro, RunError> {
    static MICRO: OnceLock<Result<ooh::Micro, RunError>> = OnceLock::new();
    MICRO
        .get_or_init(ooh::Micro::run)
        .as_ref()
        .map_err(RunError::clone)
}

use Number::{Figure, Table as T};

const OOH: &[Entry] = &[
    entry(&[T(1)], || Ok(micro()?.table1())),
    entry(&[T(1)], || Ok(micro()?.untracked_time())),
    lookup(&[T(2)], ooh_programs::table2),
    entry(&[T(3)], || Ok(ooh_formulas::table3())),
    entry(&[T(3)], || ooh_formulas::agreement(64 << 20)),
    lookup(&[T(3)], ooh_formulas::on_machines),
    lookup(&[T(4)], ooh_machines::table4a),
    entry(&[T(4)], ooh_programs::table4),
    entry(&[T(5)], ooh_influence::table5),
    lookup(&[T(5)], ooh_logs::table5),
    entry(&[Figure(3)], || Ok(micro()?.figure3())),
    entry(&[Figure(4)], || Ok(micro()?.figure4())),
    lookup(&[T(1), Figure(4)], ooh_logs::listing1),
    entry(&[Figure(5), Figure(6)], ooh_programs::figures5_6),
    lookup(&[Figure(5), Figure(6)], ooh_machines::figures5_6),
    lookup(&[Figure(5), Figure(6)], ooh_logs::figures5_6),
    entry(
        &[Figure(7), Figure(8), Figure(9)],
        ooh_programs::figures7_to_9,
    ),
    lookup(&[Figure(7), Figure(8), Figure(9)], ooh_machines::engines7_9),
    lookup(&[Figure(7), Figure(8), Figure(9)], ooh_machines::figures7_9),
    lookup(&[Figure(7), Figure(8), Figure(9)], ooh_logs::figures7_to_9),
    lookup(&[Figure(7), Figure(8), Figure(9)], ooh_logs::engines),
    lookup(&[Figure(4), Figure(5), Figure(8)], ooh_logs::bytes),
    entry(&[Figure(10), Figure(11)], ooh::figures10_11),
    lookup(&[Figure(10), Figure(11)], ooh_logs::figures10_11),
];

const FLEXIBLE: &[Entry] = &[
    lookup(&[Figure(6)], flexible::figure6),
    lookup(&[Figure(7)], flexible::figure7),
    entry(&[Figure(8)], flexible::figure8),
    entry(
        &[Figure(9), Figure(10), Figure(11)],
        flexible::figures9_to_11,
    ),
    lookup(&[Figure(9)], flexible::figure9),
    lookup(&[Figure(10)], flexible::figure10),
    lookup(&[Figure(11)], flexible::figure11),
    lookup(&[Figure(8)], flexible_guests::figure8),
    lookup(&[Figure(9)], flexible_guests::figure9),
    lookup(&[Figure(10)], flexible_guests::figure10),
    lookup(&[Figure(11)], flexible_guests::figure11),
];

const HMMV: &[Entry] = &[
    lookup(&[T(1)], hmmv::table1),
    lookup(&[T(2)], hmmv::table2),
    lookup(&[T(3)], hmmv::table3),
    lookup(&[T(4)], hmmv::table4),
    lookup(&[T(5)], hmmv::table5),
    lookup(&[T(6)], hmmv_huge::table6),
    lookup(&[Figure(2)], hmmv::figure2),
    lookup(&[Figure(3)], hmmv::figure3),
    lookup(&[Figure(4)], hmmv::figure4),
    lookup(&[Figure(5)], hmmv::figure5),
    lookup(&[Figure(6)], hmmv::figure6),
    lookup(&[Figure(7)], hmmv_huge::figure7),
    lookup(&[Figure(8)], hmmv::figure8),
];

const XEN: &[Entry] = &[
    lookup(&[T(1)], xen_native::table1),
    lookup(&[T(2)], xen_native::table2),
    lookup(&[T(3)], xen_native::table3),
    lookup(&[T(4)], xen_native::table4),
    lookup(&[T(5)], xen_native::table5),
    lookup(&[T(6)], xen_native::table6),
    lookup(&[T(7)], xen_native::table7),
    lookup(&[T(8)], xen_native::table8),
    entry(&[Figure(3)], xen_native::figure3),
    lookup(&[Figure(4)], xen_native::figure4),
    lookup(&[Figure(5)], xen_native::figure5),
    lookup(&[T(9)], xen_counts::table9),
    entry(&[T(10), T(13)], xen::table13),
    entry(&[T(10)], xen::memory_motion_time),
    lookup(&[T(11)], xen_counts::table11),
    lookup(&[T(12)], xen_counts::table12),
    lookup(&[T(14)], xen_counts::table14),
    lookup(&[T(15)], xen_counts::table15),
    lookup(&[T(16)], xen_counts::table16),
];
