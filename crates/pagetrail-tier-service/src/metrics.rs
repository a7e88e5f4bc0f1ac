//! The numbers of a daemon as OpenMetrics text.

use std::fmt::Write as _;

use crate::config::Mode;
use crate::status::{ProcessStatus, Status, TargetStatus};

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
        help: "Page faults that sampling cost the process.",
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
        help: "Time for sampling, deciding and moving.",
        counter: true,
        value: |p| p.busy_s,
    },
];

/// All numbers.
pub(crate) fn text(status: &Status) -> String {
    let mut out = String::new();
    of_daemon(status, &mut out);
    of_targets(&status.targets, &mut out);
    for figure in FIGURES {
        of_processes(figure, &status.targets, &mut out);
    }
    not_moved(&status.targets, &mut out);
    out + "# EOF\n"
}

/// Numbers of all targets together.
fn of_daemon(status: &Status, out: &mut String) {
    let mut one = |name, help, value| gauge(out, name, help, &[(String::new(), value)]);
    one(
        "fast_bytes",
        "Fast memory of all targets together.",
        status.fast_bytes as f64,
    );
    one(
        "fast_free_bytes",
        "Fast memory that no target may use.",
        status.fast_free_bytes as f64,
    );
    one(
        "pool",
        "Whether targets share fast memory.",
        f64::from(u8::from(status.mode == Mode::Pool)),
    );
    one(
        "moves_held",
        "Whether nothing is moved because tasks wait for memory.",
        f64::from(u8::from(status.held.is_some())),
    );
    let movers = status.kernel_movers.iter();
    let movers = movers.map(|mover| (format!("{{by=\"{}\"}}", label(&mover.name)), 1.0));
    gauge(
        out,
        "kernel_moves",
        "Whether the kernel moves pages between tiers, too.",
        &movers.collect::<Vec<_>>(),
    );
}

/// A number of a target, if it has it.
type OfTarget = fn(&TargetStatus) -> Option<f64>;

/// Numbers of each target.
fn of_targets(targets: &[TargetStatus], out: &mut String) {
    let gauges: [(&str, &str, OfTarget); 3] = [
        ("target_share_bytes", "The target's own share.", |target| {
            Some(target.share_bytes as f64)
        }),
        (
            "target_allowed_bytes",
            "Fast memory that the target may use.",
            |target| Some(target.allowed_bytes as f64),
        ),
        (
            "target_demand_bytes",
            "Fast memory that the target could use.",
            |target| target.demand_bytes.map(|bytes| bytes as f64),
        ),
    ];
    for (name, help, value) in gauges {
        let values = targets.iter().filter_map(|target| {
            let labels = format!("{{target=\"{}\"}}", label(&target.name));
            Some((labels, value(target)?))
        });
        gauge(out, name, help, &values.collect::<Vec<_>>());
    }
}

/// All processes, with the labels that name each.
fn processes(targets: &[TargetStatus]) -> impl Iterator<Item = (String, &ProcessStatus)> {
    targets.iter().flat_map(|target| {
        let name = label(&target.name);
        let processes = target.processes.iter();
        processes.map(move |process| {
            let mut labels = format!("target=\"{name}\",pid=\"{}\"", process.pid);
            if let Some(guest) = &process.guest {
                labels += &format!(",guest=\"{}\"", label(guest));
            }
            (labels, process)
        })
    })
}

/// A number of each process.
fn of_processes(figure: &Figure, targets: &[TargetStatus], out: &mut String) {
    let (kind, suffix) = match figure.counter {
        true => ("counter", "_total"),
        false => ("gauge", ""),
    };
    head(out, figure.name, kind, figure.help);
    for (labels, process) in processes(targets) {
        let (name, value) = (figure.name, (figure.value)(process));
        line(
            out,
            format_args!("pagetrail_tier_{name}{suffix}{{{labels}}} {value}"),
        );
    }
}

fn not_moved(targets: &[TargetStatus], out: &mut String) {
    let help = "Pages that were not moved, by reason.";
    head(out, "not_moved_pages", "counter", help);
    for (labels, process) in processes(targets) {
        for (reason, count) in &process.not_moved {
            let reason = label(reason);
            line(
                out,
                format_args!(
                    "pagetrail_tier_not_moved_pages_total{{{labels},reason=\"{reason}\"}} {count}"
                ),
            );
        }
    }
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

    use super::*;
    use crate::kernel::KernelMover;

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
            held: Some("pressure".into()),
            weights: None,
            kernel_movers: vec![KernelMover {
                name: "numa_balancing".into(),
                what: String::new(),
            }],
            targets: vec![TargetStatus {
                name: "a\"b\\".into(),
                share_bytes: 90,
                allowed_bytes: 90,
                demand_bytes: None,
                processes: vec![ProcessStatus {
                    pid: 7,
                    guest: Some("web\n1".into()),
                    not_moved: [("busy".to_owned(), 3)].into(),
                    ..ProcessStatus::default()
                }],
                refused: Vec::new(),
            }],
        };
        let text = text(&status);
        assert!(text.ends_with("# EOF\n"));
        assert!(text.contains(",pid=\"7\",guest=\"web\\n1\"} "), "{text}");
        assert!(text.contains("pagetrail_tier_moves_held 1\n"), "{text}");
        let moves = "pagetrail_tier_kernel_moves{by=\"numa_balancing\"} 1\n";
        assert!(text.contains(moves), "{text}");
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
