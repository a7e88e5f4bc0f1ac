//! Pauses of programs that write slowly, fast, and without a break, by all modes in turn: one
//! checkpoint by each, over and over, so that whatever else the machine does meets them alike.

use super::{PAGE, UNLIMITED, Writer, options, percentile, setting};
use pagetrail::{Memory, PageRange};
use pagetrail_checkpoint::Writer as CheckpointWriter;
use pagetrail_checkpoint::{
    Compression, Mode, ProcessCheckpointer, ProcessOptions, Store, WorldWritable,
};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::time::Duration;

const MODES: [Mode; 3] = [Mode::Precopy, Mode::Cow, Mode::Stop];
/// How much is compared at a time, in bytes.
const CHUNK: usize = 4 << 20;
/// The time from one checkpoint to the next.
const REST: Duration = Duration::from_millis(100);

/// From so many bytes per second on, older checkpoints are removed meanwhile.
const FAST: usize = 1_000_000_000;

/// A program.
struct Case {
    name: &'static str,
    mib: usize,
    bytes_per_second: usize,
    /// Threads that compute besides.
    threads: usize,
}

/// Of 4 GiB, a hundredth each second.
const ONE_PERCENT: usize = (4 << 30) / 100;

const CASES: [Case; 5] = [
    Case {
        name: "1.5 GiB, 100 MB/s",
        mib: 1536,
        bytes_per_second: 100_000_000,
        threads: 0,
    },
    Case {
        name: "4 GiB, 1 %/s",
        mib: 4096,
        bytes_per_second: ONE_PERCENT,
        threads: 0,
    },
    Case {
        name: "256 MiB, 8 busy threads",
        mib: 256,
        bytes_per_second: 10_000_000,
        threads: 8,
    },
    Case {
        name: "1.5 GiB, 1 GB/s",
        mib: 1536,
        bytes_per_second: 1_000_000_000,
        threads: 0,
    },
    Case {
        name: "1.5 GiB, without a break",
        mib: 1536,
        bytes_per_second: UNLIMITED,
        threads: 0,
    },
];

/// Measures all of them, or those whose numbers `PAGETRAIL_BENCH_CASES` has, from 0 on.
pub(super) fn all(place: &Path) -> Vec<Value> {
    let wanted = std::env::var("PAGETRAIL_BENCH_CASES").ok();
    let is_wanted = |at: &usize| {
        let numbers = wanted.as_deref().map(|text| text.split(','));
        numbers.is_none_or(|mut numbers| numbers.any(|number| number.parse() == Ok(*at)))
    };
    let cases = CASES.iter().enumerate().filter(|(at, _)| is_wanted(at));
    cases.map(|(_, case)| of(case, place)).collect()
}

fn of(case: &Case, place: &Path) -> Value {
    let count = setting("PAGETRAIL_BENCH_COUNT", 24);
    let settings = [
        ("PAGETRAIL_BENCH_MIB", case.mib),
        ("PAGETRAIL_BENCH_RATE", case.bytes_per_second),
        ("PAGETRAIL_BENCH_THREADS", case.threads),
    ];
    let before = load();
    let writer = Writer::with(place, &settings);
    let path = place.join("store");
    let _ = fs::remove_dir_all(&path);
    let store = Store::create(&path, WorldWritable::Allow).expect("a store");
    let mut to = store.writer(options(Compression::None)).expect("a writer");
    let attached = ProcessCheckpointer::attach(writer.child.id(), ProcessOptions::default());
    let mut process = attached.expect("attached");
    process.checkpoint(&mut to).expect("a base");
    let mut found = MODES.map(|_| [Vec::new(), Vec::new(), Vec::new()]);
    for _ in 0..count {
        for (mode, [pauses, felt, stopped]) in MODES.into_iter().zip(&mut found) {
            std::thread::sleep(REST);
            process.set_mode(mode);
            writer.reset();
            let manifest = process.checkpoint(&mut to).expect("a checkpoint");
            pauses.push(manifest.cost.pause_ns);
            stopped.push(manifest.cost.stopped_pages);
            felt.push(writer.gap());
        }
        if case.bytes_per_second >= FAST {
            // It would fill the memory.
            to.prune(1).expect("pruned");
        }
    }
    check(&writer, &mut process, &mut to);
    let rows = MODES.into_iter().zip(&mut found).map(|(mode, found)| {
        let [pauses, felt, stopped] = found;
        json!({
            "mode": format!("{mode:?}").to_lowercase(),
            "pause_median_ns": percentile(pauses, 50),
            "pause_p99_ns": percentile(pauses, 99),
            "felt_gap_median_ns": percentile(felt, 50),
            "felt_gap_p99_ns": percentile(felt, 99),
            "copied_at_rest_pages_median": percentile(stopped, 50),
        })
    });
    let rate = case.bytes_per_second;
    let row = json!({
        "program": case.name,
        "resident_pages": (case.mib << 20) / PAGE,
        "bytes_per_second": (rate != UNLIMITED).then_some(rate),
        "busy_threads": case.threads,
        "checkpoints_by_each_mode": count,
        "load_before": before,
        "load_after": load(),
        "modes": rows.collect::<Vec<_>>(),
    });
    eprintln!("{row}");
    row
}

/// Makes sure that the program's memory is what the chain has: a write that one of the checkpoints
/// has lost would be missing in all that follow.
fn check(writer: &Writer, process: &mut ProcessCheckpointer, to: &mut CheckpointWriter) {
    writer.signal("-STOP");
    let manifest = process.checkpoint(to).expect("a checkpoint");
    let mut image = to.store().image(manifest.number).expect("an image");
    let memory = Memory::of(writer.child.id()).expect("the memory");
    let (mut now, mut then) = (vec![0; CHUNK], vec![0; CHUNK]);
    for range in image.pages().ranges() {
        for start in (range.start()..range.end()).step_by(CHUNK) {
            let end = range.end().min(start + CHUNK as u64);
            let part = PageRange::new(start, end).expect("not empty");
            let bytes = part.bytes() as usize;
            let missing = memory.read(&[part], &mut now[..bytes]).expect("readable");
            image.read(part, &mut then[..bytes]).expect("sound");
            let same = now[..bytes] == then[..bytes];
            assert!(same || !missing.is_empty(), "{part} is not as it was");
        }
    }
    writer.signal("-CONT");
}

/// How many threads wanted a processor in the last minute.
pub(super) fn load() -> Option<f64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split(' ').next()?.parse().ok()
}
