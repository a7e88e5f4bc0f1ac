//! What checkpoints cost, as JSON: the pause of a program that writes 100 MB/s to random pages of
//! 1.5 GiB, by `precopy`, by `cow`, by `stop` and by gdb's `gcore`; the volume of a chain; the
//! throughput of a full image against `cp`; reading it back.
//!
//! The program is this example once more. It tells its own longest gaps, so that all tools are
//! measured by what the program felt. Each image of a chain is checked by the difference to the one
//! before it.
//!
//! `bench_checkpoint images` measures the last two only, `bench_checkpoint pauses` the pauses
//! alone, on tmpfs, of several programs by all modes in turn, and of Redis and Node with a goal for
//! the pause. `PAGETRAIL_BENCH_MIB` and `PAGETRAIL_BENCH_COUNT` make it smaller.

#![allow(clippy::print_stdout, reason = "the result")]
#![allow(clippy::print_stderr, reason = "how far it is")]

mod pauses;
mod programs;
mod steps;

use pagetrail_checkpoint::{
    Compression, Mode, ProcessCheckpointer, ProcessOptions, Store, WorldWritable, WriterOptions,
};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
/// How often images are made, to take the median.
const IMAGES: usize = 5;
const BYTES_PER_SECOND: usize = 100_000_000;
/// As much as it can.
const UNLIMITED: usize = usize::MAX;
const ROLE: &str = "PAGETRAIL_BENCH_WRITER";
/// Memory of each thread that computes.
const BUSY_BYTES: usize = 8 << 20;

fn setting(name: &str, default: usize) -> usize {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn main() {
    if let Ok(board) = std::env::var(ROLE) {
        return write(Path::new(&board));
    }
    if std::env::var_os("PAGETRAIL_BENCH_STEPS").is_some() {
        steps::show();
    }
    if std::env::args().nth(1).is_some_and(|arg| arg == "pauses") {
        let place = PathBuf::from("/dev/shm/pagetrail-bench-checkpoint");
        let rows = pauses::all(&place);
        let programs = programs::all(&place);
        let _ = fs::remove_dir_all(&place);
        let document = json!({ "schema": 2, "pauses": rows, "programs": programs });
        return println!("{document:#}");
    }
    let disk = PathBuf::from("target/bench-checkpoint");
    let shm = PathBuf::from("/dev/shm/pagetrail-bench-checkpoint");
    let places = [("disk", &disk), ("tmpfs", &shm)];
    let mut pauses = Vec::new();
    let mut chain = Value::Null;
    let images_only = std::env::args().nth(1).is_some_and(|arg| arg == "images");
    for (name, place) in places.into_iter().filter(|_| !images_only) {
        let precopy = chain_of(place, Mode::Precopy, name);
        let cow = chain_of(place, Mode::Cow, name);
        let stop = chain_of(place, Mode::Stop, name);
        let gcore = gcore(place, name);
        if chain.is_null() {
            chain = precopy.1.clone();
        }
        pauses.extend([precopy.0, cow.0, stop.0, gcore]);
    }
    let (interleaved, programs) = match images_only {
        true => Default::default(),
        false => (pauses::all(&shm), programs::all(&shm)),
    };
    let images: Vec<Value> = places
        .iter()
        .map(|(name, place)| image(place, name))
        .collect();
    for (_, place) in places {
        let _ = fs::remove_dir_all(place);
    }
    let document = json!({
        "schema": 1,
        "resident_mib": setting("PAGETRAIL_BENCH_MIB", 1536),
        "written_bytes_per_second": BYTES_PER_SECOND,
        "pause": pauses,
        "interleaved": interleaved,
        "programs": programs,
        "chain": chain,
        "image": images,
    });
    println!("{document:#}");
}

/// The program: writes, and tells its longest gap since it was last asked (by an empty board).
fn write(board: &Path) {
    let bytes = setting("PAGETRAIL_BENCH_MIB", 1536) << 20;
    let mut random = fastrand::Rng::with_seed(1);
    let mut memory = vec![0u8; bytes];
    for word in memory.chunks_exact_mut(8) {
        word.copy_from_slice(&random.u64(..).to_le_bytes());
    }
    let board = File::options()
        .write(true)
        .read(true)
        .open(board)
        .expect("the board");
    for seed in 0..setting("PAGETRAIL_BENCH_THREADS", 0) {
        std::thread::spawn(move || compute(seed as u64));
    }
    let tick = Duration::from_millis(1);
    let rate = setting("PAGETRAIL_BENCH_RATE", BYTES_PER_SECOND);
    let each = rate.min(4_000_000_000) / PAGE / 1000;
    let mut last = Instant::now();
    let mut due = last;
    loop {
        let mut counter = [0; 8];
        board.read_exact_at(&mut counter, 0).expect("the board");
        let now = Instant::now();
        let gap = (now - last).as_nanos() as u64;
        last = now;
        if gap > u64::from_le_bytes(counter) {
            board
                .write_all_at(&gap.to_le_bytes(), 0)
                .expect("the board");
        }
        for _ in 0..each {
            let at = random.usize(0..bytes / PAGE) * PAGE;
            memory[at..at + 8].copy_from_slice(&random.u64(..).to_le_bytes());
        }
        if rate == UNLIMITED {
            continue;
        }
        due = (due + tick).max(now);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

/// Computes without a break, and writes a page now and then.
fn compute(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut memory = vec![1u8; BUSY_BYTES];
    loop {
        let sum = (0..100_000).fold(0, |sum: u64, _| sum ^ random.u64(..));
        let at = random.usize(0..BUSY_BYTES / PAGE) * PAGE;
        memory[at..at + 8].copy_from_slice(&sum.to_le_bytes());
    }
}

struct Writer {
    child: Child,
    board: File,
}

impl Writer {
    fn start(place: &Path) -> Self {
        Self::with(place, &[])
    }

    /// Starts one with settings.
    fn with(place: &Path, settings: &[(&str, usize)]) -> Self {
        let settings = settings
            .iter()
            .map(|(name, value)| (name, value.to_string()));
        fs::create_dir_all(place).expect("a directory");
        let path = Path::new("/dev/shm").join(format!("pagetrail-board-{}", std::process::id()));
        fs::write(&path, [0; 8]).expect("the board");
        let board = File::options()
            .read(true)
            .write(true)
            .open(&path)
            .expect("the board");
        let child = Command::new(std::env::current_exe().expect("a path"))
            .env(ROLE, &path)
            .envs(settings)
            .stdin(Stdio::null())
            .spawn()
            .expect("it starts");
        let writer = Self { child, board };
        // Until it has filled its memory, it tells nothing.
        while writer.gap() == 0 {
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = fs::remove_file(path);
        writer
    }

    fn gap(&self) -> u64 {
        let mut gap = [0; 8];
        self.board.read_exact_at(&mut gap, 0).expect("the board");
        u64::from_le_bytes(gap)
    }

    /// Sends it a signal, by its name as kill(1) has it.
    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status();
        assert!(sent.is_ok_and(|status| status.success()), "{signal}");
    }

    fn reset(&self) {
        self.board.write_all_at(&[0; 8], 0).expect("the board");
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn fresh_store(place: &Path) -> (PathBuf, Store) {
    let path = place.join("store");
    let _ = fs::remove_dir_all(&path);
    let store = Store::create(&path, WorldWritable::Allow).expect("a store");
    (path, store)
}

fn options(compression: Compression) -> WriterOptions {
    WriterOptions {
        compression,
        ..WriterOptions::default()
    }
}

/// Pauses, and the volume, of a chain with a checkpoint every second.
fn chain_of(place: &Path, mode: Mode, name: &str) -> (Value, Value) {
    let count = setting("PAGETRAIL_BENCH_COUNT", 20);
    let writer = Writer::start(place);
    let (path, store) = fresh_store(place);
    let mut to = store.writer(options(Compression::None)).expect("a writer");
    let options = ProcessOptions {
        mode,
        ..ProcessOptions::default()
    };
    let mut process = ProcessCheckpointer::attach(writer.child.id(), options).expect("attached");
    let base = process.checkpoint(&mut to).expect("a base");
    let (mut pauses, mut felt, mut stored, mut copied) = (Vec::new(), Vec::new(), 0, 0);
    for _ in 0..count {
        let due = Instant::now() + Duration::from_secs(1);
        writer.reset();
        let manifest = process.checkpoint(&mut to).expect("a checkpoint");
        felt.push(writer.gap());
        pauses.push(manifest.cost.pause_ns);
        stored += manifest.cost.stored_pages;
        copied += manifest.cost.copied_pages;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    drop(process);
    drop(writer);
    let numbers = store.numbers().expect("numbers");
    let mut changed = 0;
    for pair in numbers.windows(2) {
        let diff = store.diff(pair[0], pair[1]).expect("a difference");
        changed += diff
            .iter()
            .map(|mapping| mapping.pages.page_count())
            .sum::<u64>();
    }
    let total: u64 = fs::read_dir(&path)
        .expect("a store")
        .map(|entry| {
            entry
                .and_then(|entry| entry.metadata())
                .map_or(0, |m| m.len())
        })
        .sum();
    let pause = json!({
        "place": name,
        "tool": format!("pagetrail {mode:?}").to_lowercase(),
        "checkpoints": count,
        "base_pause_ns": base.cost.pause_ns,
        "pause_median_ns": percentile(&mut pauses, 50),
        "pause_p99_ns": percentile(&mut pauses, 99),
        "felt_gap_median_ns": percentile(&mut felt, 50),
        "felt_gap_p99_ns": percentile(&mut felt, 99),
    });
    let chain = json!({
        "increments": count,
        "changed_pages": changed,
        "stored_pages": stored,
        "stored_per_changed": rounded(stored as f64 / changed as f64),
        "copied_per_changed": rounded(copied as f64 / changed as f64),
        "bytes_of_chain": total,
        "bytes_of_full_images": base.cost.stored_bytes * (count as u64 + 1),
        "share_of_full_images":
            rounded(total as f64 / (base.cost.stored_bytes * (count as u64 + 1)) as f64),
    });
    eprintln!("{pause}\n{chain}");
    let _ = fs::remove_dir_all(&path);
    (pause, chain)
}

/// What the program feels of gdb's `gcore`.
fn gcore(place: &Path, name: &str) -> Value {
    let writer = Writer::start(place);
    let mut felt = Vec::new();
    let prefix = place.join("core");
    let core = place.join(format!("core.{}", writer.child.id()));
    for _ in 0..3 {
        writer.reset();
        let output = Command::new("gcore")
            .arg("-o")
            .arg(&prefix)
            .arg(writer.child.id().to_string())
            .stdin(Stdio::null())
            .output();
        if !output.is_ok_and(|output| output.status.success()) {
            return json!({ "place": name, "tool": "gcore", "absent": "it is not here or failed" });
        }
        std::thread::sleep(Duration::from_millis(100));
        felt.push(writer.gap());
        let _ = fs::remove_file(&core);
    }
    let row = json!({
        "place": name,
        "tool": "gcore",
        "checkpoints": felt.len(),
        "felt_gap_median_ns": percentile(&mut felt, 50),
        "felt_gap_p99_ns": percentile(&mut felt, 99),
    });
    eprintln!("{row}");
    row
}

/// A virtual machine that has given free memory back to its host pays for it when it is used again,
/// no matter which program happens to be the first. So nobody is.
fn warm_up(bytes: usize) {
    std::hint::black_box(vec![1u8; bytes]);
}

/// A full image against `cp` of the same bytes to the same place, and reading it against reading
/// the copy.
fn image(place: &Path, name: &str) -> Value {
    let bytes = setting("PAGETRAIL_BENCH_MIB", 1536) << 20;
    let writer = Writer::start(place);
    // Stopped, it leaves the processors alone, and both copy the same.
    writer.signal("-STOP");
    let original = Path::new("/dev/shm/pagetrail-bench-original");
    let mut random = fastrand::Rng::with_seed(2);
    let contents: Vec<u8> = (0..bytes / 8)
        .flat_map(|_| random.u64(..).to_le_bytes())
        .collect();
    fs::write(original, contents).expect("room in memory");
    let copy = place.join("copy");
    let (mut image, mut lz4, mut cp, mut read, mut restore) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut ratio = 0.0;
    // Where memory is put back, by both: as a program's regions would be, which have been written
    // before.
    let mut memory = vec![1; bytes];
    for _ in 0..IMAGES {
        warm_up(bytes);
        // Both on their way to the disk when the time is taken: a checkpoint is synced, so is the
        // copy.
        let began = Instant::now();
        let status = Command::new("cp")
            .arg("--sparse=never")
            .args([original, &copy])
            .status();
        assert!(status.is_ok_and(|status| status.success()));
        File::open(&copy)
            .and_then(|file| file.sync_all())
            .expect("synced");
        cp.push(began.elapsed().as_nanos() as u64);

        let began = Instant::now();
        let mut file = File::open(&copy).expect("the copy");
        file.read_exact(&mut memory).expect("the copy");
        read.push(began.elapsed().as_nanos() as u64);
        let _ = fs::remove_file(&copy);

        for (compression, times) in [
            (Compression::None, &mut image),
            (Compression::Lz4, &mut lz4),
        ] {
            let (path, store) = fresh_store(place);
            let mut to = store.writer(options(compression)).expect("a writer");
            let mut process =
                ProcessCheckpointer::attach(writer.child.id(), ProcessOptions::default())
                    .expect("attached");
            warm_up(bytes);
            let began = Instant::now();
            let manifest = process.checkpoint(&mut to).expect("an image");
            times.push(began.elapsed().as_nanos() as u64);
            if compression == Compression::None {
                let mut image = store.image(manifest.number).expect("an image");
                let pages = image.pages();
                let began = Instant::now();
                for range in pages.ranges() {
                    for start in (range.start()..range.end()).step_by(bytes) {
                        let end = range.end().min(start + bytes as u64);
                        let part = pagetrail::PageRange::new(start, end).expect("not empty");
                        image
                            .read(part, &mut memory[..part.bytes() as usize])
                            .expect("sound");
                    }
                }
                restore.push(began.elapsed().as_nanos() as u64);
            } else {
                ratio = manifest.cost.stored_bytes as f64 / bytes as f64;
            }
            let _ = fs::remove_dir_all(path);
        }
    }
    writer.signal("-CONT");
    let _ = fs::remove_file(original);
    let medians =
        [&mut image, &mut lz4, &mut cp, &mut read, &mut restore].map(|t| percentile(t, 50));
    let [image, lz4, cp, read, restore] = medians;
    let row = json!({
        "place": name,
        "image_ns": image,
        "cp_ns": cp,
        "image_throughput_of_cp": rounded(cp as f64 / image as f64),
        "lz4_ns": lz4,
        "lz4_throughput_of_cp": rounded(cp as f64 / lz4 as f64),
        "lz4_stored_share": rounded(ratio),
        "read_ns": read,
        "restore_ns": restore,
        "restore_throughput_of_read": rounded(read as f64 / restore as f64),
    });
    eprintln!("{row}");
    row
}

fn percentile(values: &mut [u64], percent: usize) -> u64 {
    values.sort_unstable();
    values[(values.len() * percent / 100).min(values.len() - 1)]
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
