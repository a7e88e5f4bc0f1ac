//! What runs on the model: a workload of a size, or a trace; and its run under a technique.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use pagetrail_model::technique::{Options, TechniqueKind};
use pagetrail_model::trace::Reader;
use pagetrail_model::workload::{Workload, WorkloadKind};
use pagetrail_model::{Report, RunConfig, VmConfig, run};

use pagetrail_report::words;

/// Page tables and what the machine knows of each page take memory here: about 1 GiB for so much.
const BYTES_MAX: u64 = 64 << 30;

/// What a program runs under, whatever the technique.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// Pages of the ring buffer between the kernel module and the tracker.
    pub ring_pages: u64,
    /// Another process gets the processor for a moment after so many accesses.
    pub switch_every: Option<u64>,
}

/// A program.
#[derive(Clone, Debug)]
pub enum Program {
    /// Generated.
    Generated(Workload),
    /// Recorded.
    Recorded(PathBuf),
}

impl Program {
    /// A generated program. Fails where it is larger than the model takes.
    pub fn generated(workload: Workload) -> Result<Self> {
        if workload.bytes > BYTES_MAX {
            let most = words::bytes(BYTES_MAX as f64);
            bail!("the model takes programs of {most} at most");
        }
        Ok(Self::Generated(workload))
    }

    /// The program of a trace, which is read once to its end. Fails where that is not whole.
    pub fn recorded(path: &Path) -> Result<Self> {
        let whole = open(path)?.finish();
        whole.with_context(|| path.display().to_string())?;
        Ok(Self::Recorded(path.to_owned()))
    }

    /// Runs it under `technique`. Fails where the model lacks what the technique needs (the cause
    /// is [`pagetrail_model::RunError`] then), and where a trace cannot be read.
    pub fn run(&self, conditions: Conditions, technique: TechniqueKind) -> Result<Report> {
        let mut config = RunConfig {
            options: Options {
                ring_pages: conditions.ring_pages,
                ..Options::default()
            },
            switch_every: conditions.switch_every,
            ..RunConfig::new(technique)
        };
        let report = match self {
            Self::Generated(workload) => {
                enlarge(&mut config, workload);
                run(&config, workload.ops())
            }
            Self::Recorded(path) => run(&config, open(path)?),
        };
        report.with_context(|| format!("{technique}, {}", self.words()))
    }

    /// One line about it, its size left out.
    pub fn kind(&self) -> String {
        match self {
            Self::Generated(workload) => {
                format!(
                    "{}, {} {}, seed {}",
                    workload.kind,
                    workload.rounds,
                    unit(workload),
                    workload.seed
                )
            }
            Self::Recorded(_) => self.words(),
        }
    }

    /// One line about it.
    pub fn words(&self) -> String {
        match self {
            Self::Generated(workload) => {
                let size = words::bytes(workload.bytes as f64);
                format!(
                    "{} of {size}, {} {}, seed {}",
                    workload.kind,
                    workload.rounds,
                    unit(workload),
                    workload.seed
                )
            }
            Self::Recorded(path) => format!("the trace {}", path.display()),
        }
    }
}

/// What its number of rounds counts.
fn unit(workload: &Workload) -> &'static str {
    match (workload.kind, workload.rounds) {
        (WorkloadKind::MemoryMotion, 1) => "process",
        (WorkloadKind::MemoryMotion, _) => "processes",
        (_, 1) => "round",
        _ => "rounds",
    }
}

/// The paper's machine has 5 GB; larger programs get a larger one.
fn enlarge(config: &mut RunConfig, workload: &Workload) {
    let need = workload.bytes / 4 * 5 + (64 << 20);
    let vm = &mut config.vm;
    vm.memory_bytes = vm.memory_bytes.max(need);
    let VmConfig { memory_bytes, .. } = *vm;
    config.host.memory_bytes = config.host.memory_bytes.max(memory_bytes / 4 * 5);
}

/// A reader of a trace that begins like one.
pub(crate) fn open(path: &Path) -> Result<Reader<BufReader<File>>> {
    let named = || path.display().to_string();
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    Reader::new(BufReader::new(file)).with_context(named)
}
