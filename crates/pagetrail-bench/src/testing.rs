//! Results with fixed numbers.

use super::predicted::Predicted;
use super::results::{Absent, Fault, Measured, Results, Spread, Steps, Tracked};

fn exactly(median: f64) -> Spread {
    let (min, max) = (median * 0.9, median * 1.2);
    Spread { median, min, max }
}

/// One technique at one size; `scale` multiplies what it costs.
fn measured(technique: &'static str, tracked: Tracked, mib: u64, scale: f64) -> Measured {
    let pages = mib * 256;
    let untracked = pages as f64 * 14.0;
    let times = |per_page: f64| exactly(pages as f64 * per_page * scale.abs());
    let none = exactly(0.0);
    let other = tracked == Tracked::Other;
    Measured {
        technique,
        tracked,
        size_bytes: mib << 20,
        pages_written: pages,
        pages_reported: pages,
        pages_reported_clean: 0,
        untracked_pass_ns: exactly(untracked),
        tracked_pass_ns: exactly(untracked * (1.0 + scale)),
        overhead_on_tracked_percent: exactly(100.0 * scale),
        overhead_on_tracker_percent: exactly(250.0 * scale + 2.0),
        steps: Steps {
            arm_ns: times(1.5),
            attach_stopped_ns: if other { exactly(1.2e6) } else { none },
            fault: (scale > 0.5).then(|| Fault {
                handled_in: "kernel",
                ns_per_page: exactly(14.0 * scale),
                take_and_rearm_ns_per_page: exactly(3.0 * scale),
            }),
            collect_ns: times(3.5),
            collect_stopped_ns: none,
            clean_collect_ns: times(0.5),
            disarm_ns: times(1.0),
        },
        prediction: (technique == "adaptive").then(|| Predicted {
            predicted_per_round: exactly(pages as f64 * 0.5),
            faults_avoided_per_round: exactly(pages as f64 * 0.4),
            false_positives_per_round: exactly(pages as f64 * 0.1),
            calls_per_round: none,
            table_bytes: pages * 3,
        }),
    }
}

/// Three techniques, three sizes; `compare` hardly costs the writer anything.
pub fn results() -> Results {
    let mut results = Vec::new();
    for mib in [1, 10, 1024] {
        results.push(measured("pagemap-scan", Tracked::Own, mib, 60.0));
        results.push(measured("compare", Tracked::Own, mib, -0.002));
        results.push(measured("pagemap-scan", Tracked::Other, mib, 62.0));
        results.push(measured("adaptive", Tracked::Other, mib, 31.0));
    }
    Results {
        schema: 2,
        kernel: "6.18.1".into(),
        machine: "A processor".into(),
        date: "2026-01-01T00:00:00Z".into(),
        command: "pagetrail bench --json".into(),
        cpus: 2,
        page_size: 4096,
        runs: 5,
        not_locked: None,
        absent: vec![Absent {
            technique: "soft-dirty",
            tracked: Tracked::Own,
            reason: "this kernel has no <soft-dirty> bits".into(),
        }],
        results,
    }
}
