//! The numbers of a daemon as OpenMetrics text.

use std::fmt::Write as _;

use super::config::Mode;
use super::status::{ProcessStatus, Status};

/// What the text is, by HTTP.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A gauge or a counter of a process.
struct Figure {
    name: &'static str,
    help: &'static str,
    counter: bool,
    value: fn(&ProcessStatus) -> f64,
}

const FIGURES: &[Figure] = &[
    Figure {
        name: "process_fast_bytes",
        help: "Memory of the process in fast memory.",
        counter: false,
        value: |p| p.fast_bytes as f64,
    },
    Figure {
        name: "process_slow_bytes",
        help: "Memory of the process in slow memory.",
        counter: false,
        value: |p| p.slow_bytes as f64,
    },
    Figure {
        name: "process_allowed_bytes",
        help: "Fast memory that the process may use.",
        counter: false,
        value: |p| p.allowed_bytes as f64,
    },
    Figure {
        name: "process_tracking",
        help: "Whether the process is tracked at the moment.",
        counter: false,
        value: |p| f64::from(u8::from(p.state == "tracking")),
    },
    Figure {
        name: "windows",
        help: "Windows that were tracked.",
        counter: true,
        value: |p| p.windows as f64,
    },
    Figure {
        name: "periods",
        help: "Periods that were tracked.",
        counter: true,
        value: |p| p.periods as f64,
    },
    Figure {
        name: "paused_periods",
        help: "Periods that were not tracked because those before were calm.",
        counter: true,
        value: |p| p.pauses as f64,
    },
    Figure {
        name: "faults",
        help: "Faults that the process took for being kind.",
        counter: true,
        value: |p| p.faults as f64,
    },
    Figure {
        name: "promoted_bytes",
        help: "Memory moved into fast memory.",
        counter: true,
        value: |p| p.promoted_bytes as f64,
    },
    Figure {
        name: "demoted_bytes",
        help: "Memory moved out of fast memory.",
        counter: true,
        value: |p| p.demoted_bytes as f64,
    },
    Figure {
        name: "busy_seconds",
        help: "Time for asking, deciding and moving.",
        counter: true,
        value: |p| p.busy_s,
    },
];

/// All numbers.
pub(crate) fn text(status: &Status) -> String {
    let mut out = String::new();
    gauge(
        &mut out,
        "fast_bytes",
        "Fast memory of all targets together.",
        &[(String::new(), status.fast_bytes as f64)],
    );
    gauge(
        &mut out,
        "fast_free_bytes",
        "Fast memory that no target may use.",
        &[(String::new(), status.fast_free_bytes as f64)],
    );
    gauge(
        &mut out,
        "pool",
        "Whether targets share fast memory.",
        &[(
            String::new(),
            f64::from(u8::from(status.mode == Mode::Pool)),
        )],
    );
    let by_target =
        |value: &dyn Fn(&super::status::TargetStatus) -> Option<f64>| -> Vec<(String, f64)> {
            let targets = status.targets.iter();
            targets
                .filter_map(|target| {
                    Some((
                        format!("{{target=\"{}\"}}", label(&target.name)),
                        value(target)?,
                    ))
                })
                .collect()
        };
    gauge(
        &mut out,
        "target_share_bytes",
        "The target's own share.",
        &by_target(&|t| Some(t.share_bytes as f64)),
    );
    gauge(
        &mut out,
        "target_allowed_bytes",
        "Fast memory that the target may use.",
        &by_target(&|t| Some(t.allowed_bytes as f64)),
    );
    gauge(
        &mut out,
        "target_demand_bytes",
        "Fast memory that the target could use.",
        &by_target(&|t| t.demand_bytes.map(|bytes| bytes as f64)),
    );
    let processes = || {
        status.targets.iter().flat_map(|target| {
            let of = move |process| (label(&target.name), process);
            target.processes.iter().map(of)
        })
    };
    for figure in FIGURES {
        let kind = if figure.counter { "counter" } else { "gauge" };
        head(&mut out, figure.name, kind, figure.help);
        let suffix = if figure.counter { "_total" } else { "" };
        for (target, process) in processes() {
            line(
                &mut out,
                format_args!(
                    "pagetrail_tier_{}{suffix}{{target=\"{target}\",pid=\"{}\"}} {}",
                    figure.name,
                    process.pid,
                    (figure.value)(process)
                ),
            );
        }
    }
    head(
        &mut out,
        "not_moved_pages",
        "counter",
        "Pages that were not moved, by reason.",
    );
    for (target, process) in processes() {
        for (reason, count) in &process.not_moved {
            line(
                &mut out,
                format_args!(
                    "pagetrail_tier_not_moved_pages_total{{target=\"{target}\",pid=\"{}\",reason=\"{}\"}} {count}",
                    process.pid,
                    label(reason)
                ),
            );
        }
    }
    out + "# EOF\n"
}

fn gauge(out: &mut String, name: &str, help: &str, values: &[(String, f64)]) {
    head(out, name, "gauge", help);
    for (labels, value) in values {
        line(out, format_args!("pagetrail_tier_{name}{labels} {value}"));
    }
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    line(
        out,
        format_args!("# TYPE pagetrail_tier_{name} {kind}\n# HELP pagetrail_tier_{name} {help}"),
    );
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("a String takes all");
}

/// Text made safe within quotes.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::status::TargetStatus;
    use super::*;

    #[test]
    fn every_sample_has_its_family_and_names_are_escaped() {
        let status = Status {
            schema: 1,
            pid: 1,
            mode: Mode::Pool,
            dry_run: false,
            uptime_s: 1.0,
            fast_bytes: 100,
            fast_free_bytes: 10,
            reloads: 0,
            targets: vec![TargetStatus {
                name: "a\"b\\".into(),
                share_bytes: 90,
                allowed_bytes: 90,
                demand_bytes: None,
                processes: vec![ProcessStatus {
                    pid: 7,
                    not_moved: [("busy".to_owned(), 3)].into(),
                    ..ProcessStatus::default()
                }],
                refused: Vec::new(),
            }],
        };
        let text = text(&status);
        assert!(text.ends_with("# EOF\n"));
        assert!(text.contains("reason=\"busy\"} 3\n"), "{text}");
        assert!(text.contains("target=\"a\\\"b\\\\\""), "{text}");
        let mut families = BTreeSet::new();
        for line in text.lines().filter(|line| *line != "# EOF") {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(
                    families.insert((name.to_owned(), kind == "counter")),
                    "{name} twice"
                );
            } else if !line.starts_with('#') {
                let name = line.split(['{', ' ']).next().unwrap();
                let family = match name.strip_suffix("_total") {
                    Some(name) => (name.to_owned(), true),
                    None => (name.to_owned(), false),
                };
                assert!(families.contains(&family), "{line}");
            }
        }
    }
}
