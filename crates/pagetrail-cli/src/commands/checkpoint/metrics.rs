//! [`Metrics`]: numbers about checkpoints in the text format of Prometheus, in a file that is
//! replaced at once, or by HTTP.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;
use pagetrail_checkpoint::Manifest;

use crate::exit;
use pagetrail_endpoint::{Address, Endpoint, Families, Format, Kind};

/// The one that the node exporter reads from files.
const FORMAT: Format = Format::Prometheus;

/// The numbers so far, and where they go.
#[derive(Debug)]
pub(super) struct Metrics {
    file: Option<PathBuf>,
    endpoint: Option<Endpoint>,
    totals: Totals,
}

#[derive(Debug, Default)]
struct Totals {
    checkpoints: u64,
    failures: u64,
    copied_pages: u64,
    stored_bytes: u64,
    rounds: u64,
    pause_ns: u64,
    pause_ns_max: u64,
    last_pause_ns: u64,
    last_unix_ns: u64,
}

impl Metrics {
    pub(super) fn new(file: Option<PathBuf>, listen: Option<SocketAddr>) -> Result<Self> {
        let address = listen.map(Address::Tcp);
        let endpoint = address.as_ref().map(Endpoint::listen).transpose()?;
        if let Some(endpoint) = &endpoint {
            endpoint.set("/metrics", FORMAT.content_type(), Totals::default().text());
            // Port 0 asked for any.
            exit::message(&format!("numbers at http://{}/metrics", endpoint.address()));
        }
        Ok(Self {
            file,
            endpoint,
            totals: Totals::default(),
        })
    }

    /// Counts a checkpoint, or one that failed.
    pub(super) fn count(&mut self, taken: Option<&Manifest>) {
        self.totals.count(taken);
        let text = self.totals.text();
        if let Some(file) = &self.file {
            let fresh = file.with_extension("new");
            let written = fs::write(&fresh, &text).and_then(|()| fs::rename(&fresh, file));
            if let Err(error) = written {
                exit::message(&format!("cannot write {}: {error}", file.display()));
            }
        }
        if let Some(endpoint) = &self.endpoint {
            endpoint.set("/metrics", FORMAT.content_type(), text);
        }
    }
}

impl Totals {
    fn count(&mut self, taken: Option<&Manifest>) {
        let Some(manifest) = taken else {
            self.failures += 1;
            return;
        };
        let cost = &manifest.cost;
        self.checkpoints += 1;
        self.copied_pages += cost.copied_pages;
        self.stored_bytes += manifest.bytes_in_store();
        self.rounds += u64::from(cost.rounds) + 1;
        self.pause_ns += cost.pause_ns;
        self.pause_ns_max = self.pause_ns_max.max(cost.pause_ns);
        self.last_pause_ns = cost.pause_ns;
        self.last_unix_ns = manifest.taken_unix_ns;
    }

    fn text(&self) -> String {
        let seconds = |ns: u64| ns as f64 / 1e9;
        let counters = [
            ("checkpoints", "Checkpoints taken.", self.checkpoints as f64),
            (
                "checkpoint_failures",
                "Checkpoints that failed.",
                self.failures as f64,
            ),
            (
                "copied_pages",
                "Pages copied from the process.",
                self.copied_pages as f64,
            ),
            (
                "stored_bytes",
                "Bytes written to packs.",
                self.stored_bytes as f64,
            ),
            (
                "rounds",
                "Rounds of copying, the last of each checkpoint included.",
                self.rounds as f64,
            ),
            (
                "pause_seconds",
                "Time for which the process stood still.",
                seconds(self.pause_ns),
            ),
        ];
        let gauges = [
            (
                "last_pause_seconds",
                "The pause of the newest checkpoint.",
                seconds(self.last_pause_ns),
            ),
            (
                "pause_seconds_max",
                "The longest pause.",
                seconds(self.pause_ns_max),
            ),
            (
                "last_checkpoint_timestamp_seconds",
                "When the newest was taken.",
                seconds(self.last_unix_ns),
            ),
        ];
        let mut families = Families::new(FORMAT, "pagetrail_");
        for (kind, figures) in [(Kind::Counter, &counters[..]), (Kind::Gauge, &gauges[..])] {
            for (name, help, value) in figures {
                families.family(kind, name, help).sample(&[], value);
            }
        }
        families.finish()
    }
}
