//! Recordings of benchmarks, and [`Pick`]: one figure of one of them.
//!
//! How a figure came about belongs to its recording ([`Origin`]), not to the row that shows it: a
//! row can show what a simulator computed, or an emulated guest took, as nothing better.

/// How the figures of a recording came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// On a real kernel on a real processor.
    Measured,
    /// On a real kernel in a guest on an emulated processor: counts are exact, of times only their
    /// order means something.
    Emulated,
    /// By a simulator, from prices that a paper prints.
    Simulated,
}

impl Origin {
    /// One word for a column.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Emulated => "emulated",
            Self::Simulated => "simulated",
        }
    }
}

/// A file of `bench/results/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Recording {
    /// Techniques on Listing 1.
    Bench,
    /// Techniques on Listing 1, on a kernel with soft-dirty bits.
    BenchGuest,
    /// Costs of table IV of the OoH paper that need no technique.
    Metrics,
    /// Boehm's collector.
    Collector,
    /// Boehm's collector, on a kernel with soft-dirty bits.
    CollectorGuest,
    /// Memory of the programs in the OoH paper's configurations.
    ProgramsMemory,
    /// CRIU, on a kernel with soft-dirty bits.
    Checkpointer,
    /// CRIU on tkrzw's engines.
    CheckpointerEngines,
    /// Programs on sub-page heaps.
    SubpagePrograms,
    /// Checkpoints of programs on sub-page heaps.
    SubpageCheckpoints,
    /// Tokyo Cabinet with as many records as in the paper of Lu et al.
    SubpageScale,
    /// Sub-pages that merge, of programs that are guests.
    Units,
    /// Policies of tiers.
    Tier,
    /// Policies of tiers on what real programs touched.
    TierPrograms,
    /// Faults of a program that is moved between tiers.
    TierFaults,
    /// Programs as guests of KVM.
    Vm,
    /// Every technique of the OoH paper in one guest with a log.
    OohGuest,
    /// Suites by subsystem, in a guest with a Linux kernel of its own.
    Suites,
    /// Page faults of such a guest, with shadow page tables and with nested ones.
    KvmPaging,
}

impl Recording {
    /// All of them.
    pub const ALL: [Self; 19] = [
        Self::Bench,
        Self::BenchGuest,
        Self::Metrics,
        Self::Collector,
        Self::CollectorGuest,
        Self::ProgramsMemory,
        Self::Checkpointer,
        Self::CheckpointerEngines,
        Self::SubpagePrograms,
        Self::SubpageCheckpoints,
        Self::SubpageScale,
        Self::Units,
        Self::Tier,
        Self::TierPrograms,
        Self::TierFaults,
        Self::Vm,
        Self::OohGuest,
        Self::Suites,
        Self::KvmPaging,
    ];

    /// Its file's name.
    pub const fn file(self) -> &'static str {
        match self {
            Self::Bench => "bench.json",
            Self::BenchGuest => "guest-6.12.json",
            Self::Metrics => "metrics.json",
            Self::Collector => "collector.json",
            Self::CollectorGuest => "collector_guest.json",
            Self::ProgramsMemory => "programs_memory.json",
            Self::Checkpointer => "checkpointer_guest.json",
            Self::CheckpointerEngines => "checkpointer_engines.json",
            Self::SubpagePrograms => "subpage_programs.json",
            Self::SubpageCheckpoints => "subpage_checkpoints.json",
            Self::SubpageScale => "subpage_scale.json",
            Self::Units => "units.json",
            Self::Tier => "tier.json",
            Self::TierPrograms => "tier_programs.json",
            Self::TierFaults => "tier_guest_faults.json",
            Self::Vm => "vm.json",
            Self::OohGuest => "ooh_guest.json",
            Self::Suites => "compare_guest.json",
            Self::KvmPaging => "kvm_paging.json",
        }
    }

    /// What makes it anew, from the source.
    pub const fn command(self) -> &'static str {
        match self {
            Self::Bench => "cargo xtask bench bench",
            Self::BenchGuest => "cargo xtask bench guests",
            Self::Metrics => "cargo xtask bench metrics",
            Self::Collector => "cargo xtask bench collector here",
            Self::CollectorGuest => "cargo xtask bench collector guest",
            Self::ProgramsMemory => "cargo xtask bench collector memory",
            Self::Checkpointer => "cargo xtask bench checkpointer",
            Self::CheckpointerEngines => "cargo xtask bench checkpointer engines",
            Self::SubpagePrograms => "cargo xtask bench subpage programs",
            Self::SubpageCheckpoints => "cargo xtask bench subpage checkpoints",
            Self::SubpageScale => "cargo xtask bench subpage scale",
            Self::Units => "cargo xtask bench units",
            Self::Tier => "cargo xtask bench tier",
            Self::TierPrograms => "cargo xtask bench tier-programs",
            Self::TierFaults => "cargo xtask bench tier-guest",
            Self::Vm => "cargo xtask bench vm",
            Self::OohGuest => "cargo xtask bench ooh",
            Self::Suites => "cargo xtask kvm suites",
            Self::KvmPaging => "cargo xtask kvm paging",
        }
    }

    /// How its figures came about.
    pub const fn origin(self) -> Origin {
        match self {
            Self::Bench
            | Self::Metrics
            | Self::Collector
            | Self::ProgramsMemory
            | Self::CheckpointerEngines
            | Self::SubpagePrograms
            | Self::SubpageCheckpoints
            | Self::SubpageScale => Origin::Measured,
            Self::BenchGuest
            | Self::CollectorGuest
            | Self::Checkpointer
            | Self::TierFaults
            | Self::Vm
            | Self::Units
            | Self::OohGuest
            | Self::Suites
            | Self::KvmPaging => Origin::Emulated,
            Self::Tier | Self::TierPrograms => Origin::Simulated,
        }
    }

    /// Whether making it takes a virtual machine with another kernel.
    pub const fn needs_guest(self) -> bool {
        matches!(self.origin(), Origin::Emulated) || matches!(self, Self::TierPrograms)
    }
}

/// A figure of a recording, or of one over another.
#[derive(Clone, Debug, PartialEq)]
pub struct Pick {
    /// The recording.
    pub recording: Recording,
    /// Where the figure is: names of fields, and `[key=value;..]` for the element of a list
    /// that has these values. Lists within a list count as one.
    pub path: String,
    /// A figure that it is divided by.
    pub over: Option<String>,
    /// What the quotient is multiplied by, for the row's unit.
    pub scale: f64,
    /// What is added after that: -100 makes an overhead of a share in per cent.
    pub offset: f64,
}

impl Pick {
    pub(super) fn new(recording: Recording, path: impl Into<String>) -> Self {
        Self {
            recording,
            path: path.into(),
            over: None,
            scale: 1.0,
            offset: 0.0,
        }
    }

    pub(super) fn over(self, path: impl Into<String>) -> Self {
        Self {
            over: Some(path.into()),
            ..self
        }
    }

    pub(super) fn times(self, scale: f64) -> Self {
        Self { scale, ..self }
    }

    pub(super) fn plus(self, offset: f64) -> Self {
        Self { offset, ..self }
    }
}
