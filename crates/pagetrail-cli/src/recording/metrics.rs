//! [`Metrics`]: the counts of a recording as OpenMetrics text, for Prometheus to fetch while it
//! grows.

use anyhow::Result;
use pagetrail_trail::Header;

use crate::exit;
use pagetrail_endpoint::{Address, Endpoint, Families, Format, Kind};
use pagetrail_recorder::Totals;

/// The path that the text is served at.
const PATH: &str = "/metrics";
const FORMAT: Format = Format::OpenMetrics;
/// What the names of all numbers begin with.
const PREFIX: &str = "pagetrail_record_";

/// Serves counts.
#[derive(Debug)]
pub(crate) struct Metrics(Endpoint);

/// A gauge or a counter.
struct Figure {
    name: &'static str,
    help: &'static str,
    kind: Kind,
    value: fn(&Totals) -> Option<f64>,
}

const FIGURES: &[Figure] = &[
    Figure {
        name: "rounds",
        help: "Rounds recorded, of the process that has most of them.",
        kind: Kind::Counter,
        value: |totals| Some(totals.rounds.into()),
    },
    Figure {
        name: "page_writes",
        help: "Pages written (or accessed, where only accesses are tracked), once per round.",
        kind: Kind::Counter,
        value: |totals| Some(totals.page_writes as f64),
    },
    Figure {
        name: "dirty_pages",
        help: "Pages of the last round.",
        kind: Kind::Gauge,
        value: |totals| Some(totals.last_pages as f64),
    },
    Figure {
        name: "seconds",
        help: "Length of all rounds, of all processes.",
        kind: Kind::Counter,
        value: |totals| Some(totals.duration_ns as f64 / 1e9),
    },
    Figure {
        name: "collect_seconds",
        help: "Time for collecting rounds.",
        kind: Kind::Counter,
        value: |totals| Some(totals.collect_ns as f64 / 1e9),
    },
    Figure {
        name: "stopped_seconds",
        help: "Time for which the process was stopped, without attaching.",
        kind: Kind::Counter,
        value: |totals| Some(totals.stopped_ns as f64 / 1e9),
    },
    Figure {
        name: "faults",
        help: "Page faults that tracking caused; absent where they are not counted.",
        kind: Kind::Counter,
        value: |totals| totals.faults.map(|faults| faults as f64),
    },
];

impl Metrics {
    /// Listens. Until the first round there are no counts.
    pub(crate) fn listen(address: &Address) -> Result<Self> {
        let endpoint = Endpoint::listen(address)?;
        let none = Families::new(FORMAT, PREFIX).finish();
        endpoint.set(PATH, FORMAT.content_type(), none);
        Ok(Self(endpoint))
    }

    /// Says where the text is.
    pub(crate) fn announce(&self) {
        exit::message(&match self.0.address() {
            Address::Tcp(address) => format!("metrics are at http://{address}{PATH}"),
            unix @ Address::Unix(_) => format!("metrics are at {unix}, path {PATH}"),
        });
    }

    /// Serves these counts from now on.
    pub(crate) fn publish(&self, header: &Header, totals: &Totals) {
        self.0
            .set(PATH, FORMAT.content_type(), text(header, totals));
    }
}

fn text(header: &Header, totals: &Totals) -> String {
    let mut families = Families::new(FORMAT, PREFIX);
    let pid = header.pid.to_string();
    let labels = [("pid", pid.as_str()), ("technique", &header.technique)];
    families
        .family(Kind::Gauge, "page_size_bytes", "Bytes per page.")
        .sample(&labels, header.page_size);
    for figure in FIGURES {
        if let Some(value) = (figure.value)(totals) {
            let mut family = families.family(figure.kind, figure.name, figure.help);
            family.sample(&labels, value);
        }
    }
    families.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_has_its_family() {
        let mut totals = Totals::default();
        (totals.rounds, totals.page_writes) = (3, 70);
        let header = Header {
            pid: 7,
            technique: "a\"\n".into(),
            ..Header::default()
        };
        let text = text(&header, &totals);
        let labels = "{pid=\"7\",technique=\"a\\\"\\n\"}";
        assert!(text.contains(&format!("pagetrail_record_page_writes_total{labels} 70\n")));
        assert!(
            text.ends_with("# EOF\n") && !text.contains("faults"),
            "{text}"
        );
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split('{').next().unwrap_or_default();
            let family = name.strip_suffix("_total").unwrap_or(name);
            assert!(text.contains(&format!("# TYPE {family} ")), "{line}");
        }
    }
}
