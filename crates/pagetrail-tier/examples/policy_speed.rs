//! How long a window over ten million pages takes the policy, and how much memory it needs:
//! `cargo run --release -p pagetrail-tier --example policy_speed`.

#![allow(clippy::print_stdout, reason = "the result of an example")]

use pagetrail::{PageRange, PageSet};
use pagetrail_tier::{Place, Policy, Run, Sample, Settings, SourceCaps};
use rustix::time::{ClockId, clock_gettime};

const PAGES: u64 = 10_000_000;
const PAGE: u64 = 4096;
const WINDOWS: usize = 9;

/// Processor time of this thread, in milliseconds: what else runs on the machine does not count.
fn cpu_ms() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text
        .split(' ')
        .nth(1)
        .and_then(|word| word.parse::<u64>().ok());
    pages.unwrap_or(0) * pagetrail::page_size()
}

fn run(start: u64, end: u64, place: Place) -> Run {
    Run {
        range: PageRange::new(start * PAGE, end * PAGE).expect("not empty"),
        place,
        huge: false,
        fixed: false,
    }
}

/// A fifth of all pages in runs of 64, and of the others one in seven, alone.
fn touched(random: &mut fastrand::Rng) -> PageSet {
    let mut set = PageSet::new();
    for block in 0..PAGES / 64 {
        let start = block * 64;
        if block % 5 == 0 {
            set.extend_pages(start, 64);
        } else {
            for page in (start..start + 64).filter(|_| random.u8(0..7) == 0) {
                set.extend_pages(page, 1);
            }
        }
    }
    set
}

trait ExtendPages {
    fn extend_pages(&mut self, page: u64, count: u64);
}

impl ExtendPages for PageSet {
    fn extend_pages(&mut self, page: u64, count: u64) {
        let range = PageRange::new(page * PAGE, (page + count) * PAGE);
        range.into_iter().for_each(|range| self.insert(range));
    }
}

fn main() {
    let caps = SourceCaps {
        accesses: true,
        ..SourceCaps::default()
    };
    let mut policy = Policy::new(Settings::default(), caps, PAGE).expect("the defaults are fine");
    let before = resident_bytes();
    let fast = PAGES / 5;
    policy.set_layout(&[run(0, fast, Place::Fast), run(fast, PAGES, Place::Slow)]);
    let bytes = resident_bytes() - before;
    println!("{:.1} bytes per page", bytes as f64 / PAGES as f64);
    // Without a period nothing is tried, and windows take less than a target's.
    policy.begin_period();
    let mut random = fastrand::Rng::with_seed(1);
    let (mut observed, mut planned) = (Vec::new(), Vec::new());
    for _ in 0..WINDOWS {
        let sample = Sample {
            accessed: Some(touched(&mut random)),
            written: None,
        };
        let began = cpu_ms();
        policy.observe(&sample);
        let middle = cpu_ms();
        let plan = policy.plan(fast * PAGE);
        let end = cpu_ms();
        println!(
            "observe {:.0} ms, plan {:.0} ms ({} pages to move)",
            middle - began,
            end - middle,
            plan.demote.len() + plan.promote.len()
        );
        observed.push(middle - began);
        planned.push(end - middle);
        for (units, place) in [(&plan.demote, Place::Slow), (&plan.promote, Place::Fast)] {
            units
                .iter()
                .for_each(|unit| policy.moved(unit.address, place));
        }
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    println!(
        "median of {WINDOWS} windows over {PAGES} pages: observe {:.0} ms, plan {:.0} ms of processor time",
        median(&mut observed),
        median(&mut planned)
    );
}
