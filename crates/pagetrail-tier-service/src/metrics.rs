//! The numbers of a daemon as OpenMetrics text.

use pagetrail_endpoint::{Families, Format, Kind};

use crate::config::Mode;
use crate::status::{ProcessStatus, Status, TargetStatus};

/// A gauge or a counter of a process.
struct Figure {
    name: &'static str,
    help: &'static str,
    kind: Kind,
    value: fn(&ProcessStatus) -> f64,
}

const FIGURES: &[Figure] = &[
    Figure {
        name: "process_fast_bytes",
        help: "Memory of the process in fast memory.",
        kind: Kind::Gauge,
        value: |p| p.fast_bytes as f64,
    },
    Figure {
        name: "process_slow_bytes",
        help: "Memory of the process in slow memory.",
        kind: Kind::Gauge,
        value: |p| p.slow_bytes as f64,
    },
    Figure {
        name: "process_allowed_bytes",
        help: "Fast memory that the process may use.",
        kind: Kind::Gauge,
        value: |p| p.allowed_bytes as f64,
    },
    Figure {
        name: "process_tracking",
        help: "Whether the process is tracked at the moment.",
        kind: Kind::Gauge,
        value: |p| f64::from(u8::from(p.state == "tracking")),
    },
    Figure {
        name: "windows",
        help: "Windows that were tracked.",
        kind: Kind::Counter,
        value: |p| p.windows as f64,
    },
    Figure {
        name: "periods",
        help: "Periods that were tracked.",
        kind: Kind::Counter,
        value: |p| p.periods as f64,
    },
    Figure {
        name: "paused_periods",
        help: "Periods that were not tracked because those before were calm.",
        kind: Kind::Counter,
        value: |p| p.pauses as f64,
    },
    Figure {
        name: "faults",
        help: "Page faults that sampling cost the process.",
        kind: Kind::Counter,
        value: |p| p.faults as f64,
    },
    Figure {
        name: "promoted_bytes",
        help: "Memory moved into fast memory.",
        kind: Kind::Counter,
        value: |p| p.promoted_bytes as f64,
    },
    Figure {
        name: "demoted_bytes",
        help: "Memory moved out of fast memory.",
        kind: Kind::Counter,
        value: |p| p.demoted_bytes as f64,
    },
    Figure {
        name: "busy_seconds",
        help: "Time for sampling, deciding and moving.",
        kind: Kind::Counter,
        value: |p| p.busy_s,
    },
];

/// What [`text`] returns.
pub(crate) const FORMAT: Format = Format::OpenMetrics;

/// All numbers.
pub(crate) fn text(status: &Status) -> String {
    let mut families = Families::new(FORMAT, "pagetrail_tier_");
    of_daemon(status, &mut families);
    of_targets(&status.targets, &mut families);
    for figure in FIGURES {
        of_processes(figure, &status.targets, &mut families);
    }
    not_moved(&status.targets, &mut families);
    families.finish()
}

/// Numbers of all targets together.
fn of_daemon(status: &Status, families: &mut Families) {
    let is = |fact: bool| f64::from(u8::from(fact));
    let gauges = [
        (
            "fast_bytes",
            "Fast memory of all targets together.",
            status.fast_bytes as f64,
        ),
        (
            "fast_free_bytes",
            "Fast memory that no target may use.",
            status.fast_free_bytes as f64,
        ),
        (
            "pool",
            "Whether targets share fast memory.",
            is(status.mode == Mode::Pool),
        ),
        (
            "moves_held",
            "Whether nothing is moved because tasks wait for memory.",
            is(status.held.is_some()),
        ),
    ];
    for (name, help, value) in gauges {
        families.family(Kind::Gauge, name, help).sample(&[], value);
    }
    let help = "Whether the kernel moves pages between tiers, too.";
    let mut family = families.family(Kind::Gauge, "kernel_moves", help);
    for mover in &status.kernel_movers {
        family.sample(&[("by", &mover.name)], 1);
    }
}

/// A number of a target, if it has it.
type OfTarget = fn(&TargetStatus) -> Option<f64>;

/// Numbers of each target.
fn of_targets(targets: &[TargetStatus], families: &mut Families) {
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
        let mut family = families.family(Kind::Gauge, name, help);
        for target in targets {
            if let Some(value) = value(target) {
                family.sample(&[("target", &target.name)], value);
            }
        }
    }
}

/// Calls `each` with all processes and the labels that name them.
fn for_each_process<'a>(
    targets: &'a [TargetStatus],
    mut each: impl FnMut(&[(&str, &str)], &'a ProcessStatus),
) {
    for target in targets {
        for process in &target.processes {
            let pid = process.pid.to_string();
            let mut labels = vec![("target", target.name.as_str()), ("pid", &pid)];
            labels.extend(process.guest.as_deref().map(|guest| ("guest", guest)));
            each(&labels, process);
        }
    }
}

/// A number of each process.
fn of_processes(figure: &Figure, targets: &[TargetStatus], families: &mut Families) {
    let mut family = families.family(figure.kind, figure.name, figure.help);
    for_each_process(targets, |labels, process| {
        family.sample(labels, (figure.value)(process));
    });
}

fn not_moved(targets: &[TargetStatus], families: &mut Families) {
    let help = "Pages that were not moved, by reason.";
    let mut family = families.family(Kind::Counter, "not_moved_pages", help);
    for_each_process(targets, |labels, process| {
        for (reason, count) in &process.not_moved {
            family.sample(&[labels, &[("reason", reason)]].concat(), count);
        }
    });
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
