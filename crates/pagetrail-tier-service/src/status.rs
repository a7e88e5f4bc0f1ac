//! [`Status`]: what a daemon says of itself, as JSON (schema 1) and in words.
//!
//! Within a schema number fields are only ever added.

use std::collections::BTreeMap;

use comfy_table::{Table, presets};
use pagetrail_report::words;
use pagetrail_tier::Tiers;
use serde::{Deserialize, Serialize};

use crate::config::{Config, Mode};
use crate::kernel::KernelMover;

/// The whole daemon.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Status {
    /// The schema number: 1.
    pub schema: u32,
    /// The daemon's process.
    pub pid: u32,
    /// Whether targets share fast memory.
    pub mode: Mode,
    /// Whether nothing is moved.
    pub dry_run: bool,
    /// Time since the start.
    pub uptime_s: f64,
    /// Bytes of fast memory that the daemon may use.
    pub fast_bytes: u64,
    /// Bytes of fast memory that no target is allowed at the moment.
    pub fast_free_bytes: u64,
    /// How often the configuration was read anew.
    pub reloads: u64,
    /// Why nothing is moved at the moment, if it is so.
    #[serde(default)]
    pub held: Option<String>,
    /// What else moves pages here.
    #[serde(default)]
    pub kernel_movers: Vec<KernelMover>,
    /// How reads and writes weigh, where that was measured.
    #[serde(default)]
    pub weights: Option<Weights>,
    /// All targets, in the order of the configuration.
    pub targets: Vec<TargetStatus>,
}

/// How reads and writes weigh by what they were measured to take, for sources that tell them
/// apart.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Weights {
    /// What a read of fast memory takes.
    pub fast_read_ns: f64,
    /// What a write to it takes.
    pub fast_write_ns: f64,
    /// What a read of slow memory takes.
    pub slow_read_ns: f64,
    /// What a write to it takes.
    pub slow_write_ns: f64,
    /// Whether slow memory was not found to be slower.
    pub alike: bool,
    /// The weight of a window with an access.
    pub read: u8,
    /// What a window with a write adds to it.
    pub write: u8,
}

impl Weights {
    pub(crate) fn of(tiers: &Tiers, config: &Config) -> Self {
        let settings = tiers.weigh(config.policy.clone());
        let tenths = |ns: f64| (ns * 10.0).round() / 10.0;
        Self {
            fast_read_ns: tenths(tiers.fast.read_ns),
            fast_write_ns: tenths(tiers.fast.write_ns),
            slow_read_ns: tenths(tiers.slow.read_ns),
            slow_write_ns: tenths(tiers.slow.write_ns),
            alike: tiers.are_alike(),
            read: settings.read_weight,
            write: settings.write_weight,
        }
    }

    pub(crate) fn line(&self, fast: u32, slow: u32) -> String {
        let alike = match self.alike {
            true => "; they are alike",
            false => "",
        };
        format!(
            "a read of node {fast} takes {}, of node {slow} {}, a write {} and {}{alike}: where a source tells them apart, an \
             access weighs {}, and a write {} more",
            words::time(self.fast_read_ns),
            words::time(self.slow_read_ns),
            words::time(self.fast_write_ns),
            words::time(self.slow_write_ns),
            self.read,
            self.write,
        )
    }
}

/// A target.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct TargetStatus {
    /// Its name.
    pub name: String,
    /// Its own share.
    pub share_bytes: u64,
    /// What it is allowed at the moment.
    pub allowed_bytes: u64,
    /// What it could use, once that is known.
    pub demand_bytes: Option<u64>,
    /// Its processes.
    pub processes: Vec<ProcessStatus>,
    /// Why a process of it is not kept.
    pub refused: Vec<String>,
}

/// A process.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct ProcessStatus {
    /// Its PID.
    pub pid: u32,
    /// The first words of its command line.
    pub command: String,
    /// The name of its guest, if it is the monitor of a virtual machine and guest memory alone is
    /// kept; empty if that has none.
    #[serde(default)]
    pub guest: Option<String>,
    /// What reports which pages are used.
    pub source: String,
    /// `tracking`, `waiting` for the next period, or `paused` because the last ones were calm.
    pub state: String,
    /// Its memory in fast memory.
    pub fast_bytes: u64,
    /// Its memory in slow memory.
    pub slow_bytes: u64,
    /// Fast memory that it may use.
    pub allowed_bytes: u64,
    /// Fast memory that it could use.
    pub demand_bytes: u64,
    /// Windows that were tracked.
    pub windows: u64,
    /// Periods that were tracked.
    pub periods: u64,
    /// Periods that were not tracked because those before were calm.
    pub pauses: u64,
    /// Page faults that sampling cost it.
    pub faults: u64,
    /// Memory moved into fast memory.
    pub promoted_bytes: u64,
    /// Memory moved out of fast memory.
    pub demoted_bytes: u64,
    /// Pages that were not moved, by reason.
    pub not_moved: BTreeMap<String, u64>,
    /// Time for sampling, deciding and moving.
    pub busy_s: f64,
}

impl Status {
    /// For people.
    pub fn text(&self) -> String {
        let size = |bytes: u64| words::bytes(bytes as f64);
        let mode = match self.mode {
            Mode::Island => "each target has its share",
            Mode::Pool => "targets share a pool",
        };
        let mut out = format!(
            "process {}, up for {}; {mode}; fast memory {}, {} of it free{}\n",
            self.pid,
            words::time(self.uptime_s * 1e9),
            size(self.fast_bytes),
            size(self.fast_free_bytes),
            if self.dry_run {
                "; a dry run: nothing is moved"
            } else {
                ""
            }
        );
        if let Some(reason) = &self.held {
            out += &format!("nothing is moved at the moment: {}\n", printable(reason));
        }
        for mover in &self.kernel_movers {
            out += &format!("{}\n", printable(&mover.line()));
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header([
            "target",
            "process",
            "state",
            "source",
            "fast",
            "slow",
            "allowed",
            "wanted",
            "moved in",
            "moved out",
            "faults",
            "not moved",
        ]);
        for target in &self.targets {
            if target.processes.is_empty() {
                let none = ["-", "not running", "", "", ""].map(str::to_owned);
                let allowed = size(target.allowed_bytes);
                table.add_row(
                    [vec![printable(&target.name)], none.to_vec(), vec![allowed]].concat(),
                );
            }
            for process in &target.processes {
                let not_moved = process.not_moved.iter();
                let not_moved: Vec<String> = not_moved
                    .map(|(reason, count)| format!("{} {reason}", words::count(*count)))
                    .collect();
                table.add_row([
                    printable(&target.name),
                    format!("{} {}", process.pid, printable(&process.what())),
                    process.state.clone(),
                    process.source.clone(),
                    size(process.fast_bytes),
                    size(process.slow_bytes),
                    size(process.allowed_bytes),
                    size(process.demand_bytes),
                    size(process.promoted_bytes),
                    size(process.demoted_bytes),
                    words::count(process.faults),
                    not_moved.join(", "),
                ]);
            }
        }
        out += &table
            .lines()
            .map(|line| line.trim_end().to_owned() + "\n")
            .collect::<String>();
        for target in &self.targets {
            for reason in &target.refused {
                out += &format!("{}: {}\n", printable(&target.name), printable(reason));
            }
        }
        out
    }
}

impl ProcessStatus {
    /// Its guest, or its command.
    fn what(&self) -> String {
        match self.guest.as_deref() {
            Some("") => format!("guest of {}", self.command),
            Some(name) => format!("guest {name}"),
            None => self.command.clone(),
        }
    }
}

fn printable(text: &str) -> String {
    words::printable(text).into_owned()
}
