//! [`Status`]: what a daemon says of itself, as JSON (schema 1) and in words.
//!
//! Within a schema number fields are only ever added.

use std::collections::BTreeMap;

use comfy_table::{Table, presets};
use pagetrail_report::words;
use serde::{Deserialize, Serialize};

use super::config::Mode;

/// The whole daemon.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Status {
    pub(crate) schema: u32,
    pub(crate) pid: u32,
    pub(crate) mode: Mode,
    pub(crate) dry_run: bool,
    pub(crate) uptime_s: f64,
    /// Of the pool: all it has.
    pub(crate) fast_bytes: u64,
    /// What nobody is allowed.
    pub(crate) fast_free_bytes: u64,
    pub(crate) reloads: u64,
    pub(crate) targets: Vec<TargetStatus>,
}

/// A target.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct TargetStatus {
    pub(crate) name: String,
    /// Its own share.
    pub(crate) share_bytes: u64,
    /// What it is allowed at the moment.
    pub(crate) allowed_bytes: u64,
    /// What it could use, once that is known.
    pub(crate) demand_bytes: Option<u64>,
    pub(crate) processes: Vec<ProcessStatus>,
    /// Why a process of it is not kept.
    pub(crate) refused: Vec<String>,
}

/// A process.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct ProcessStatus {
    pub(crate) pid: u32,
    pub(crate) command: String,
    /// What reports which pages are used.
    pub(crate) source: String,
    /// `tracking`, `waiting` for the next period, or `paused` because the last ones were calm.
    pub(crate) state: String,
    pub(crate) fast_bytes: u64,
    pub(crate) slow_bytes: u64,
    pub(crate) allowed_bytes: u64,
    pub(crate) demand_bytes: u64,
    pub(crate) windows: u64,
    pub(crate) periods: u64,
    pub(crate) pauses: u64,
    pub(crate) faults: u64,
    pub(crate) promoted_bytes: u64,
    pub(crate) demoted_bytes: u64,
    /// Pages that were not moved, by reason.
    pub(crate) not_moved: BTreeMap<String, u64>,
    /// Time for sampling, deciding and moving.
    pub(crate) busy_s: f64,
}

impl Status {
    /// For people.
    pub(crate) fn text(&self) -> String {
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
                    format!("{} {}", process.pid, printable(&process.command)),
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

fn printable(text: &str) -> String {
    words::printable(text).into_owned()
}
