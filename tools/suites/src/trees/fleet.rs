//! Many processes with much memory, recorded and shown: what is spent outside of the kernel's own
//! calls, and how soon the live view answers.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::screen::Top;
use super::{Bench, Running, spread};
use pagetrail_steps::steps::NotHere;

const PROCESSES: u32 = 200;
const MIB_EACH: u32 = 50;
/// Pages that each of them writes ten times a second.
const WRITTEN: [u32; 2] = [0, 128];
/// Until then the recorder must have attached to all, and from then on it is measured.
const BEGIN: Duration = Duration::from_secs(4);
const MEASURED: Duration = Duration::from_secs(8);
/// How often it is measured at most: each takes a quarter of a minute.
const ROUNDS_MAX: usize = 3;
/// How often a key is pressed.
const KEYS: usize = 41;

pub(super) fn measure(bench: &Bench) -> Result<Vec<Value>> {
    let needed_kib = u64::from(PROCESSES * MIB_EACH) * 1024 * 5 / 4;
    if available_kib()? < needed_kib {
        return Err(NotHere::error(&format!(
            "{} MiB of free memory",
            needed_kib / 1024
        )));
    }
    WRITTEN.iter().map(|written| of(bench, *written)).collect()
}

fn available_kib() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"));
    let number = line.and_then(|line| line.split_ascii_whitespace().nth(1));
    Ok(number.context("no MemAvailable")?.parse()?)
}

fn of(bench: &Bench, written: u32) -> Result<Value> {
    let numbers = [600, PROCESSES, MIB_EACH, written].map(|number| number.to_string());
    let mut command = Command::new(bench.victim("fleet"));
    let child = command
        .args(numbers)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    let mut fleet = Running(child?);
    let mut lines = BufReader::new(fleet.0.stdout.take().context("no pipe")?).lines();
    let ready = lines.next().context("the processes have ended at once")??;
    ensure!(ready == "ready", "it said: {ready}");
    let pid = fleet.0.id();
    let (mut user, mut kernel, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.rounds.min(ROUNDS_MAX) {
        let used = record(bench, pid, written)?;
        user.push(used.user_share);
        kernel.push(used.kernel_share);
        rates.push(used.rounds_per_second);
    }
    let redraw = Top::start(bench, pid, "30s")?.latencies(KEYS)?;
    let answer = Top::start(bench, pid, "100ms")?.latencies(KEYS)?;
    if let Some(pid) = Pid::from_raw(i32::try_from(pid)?) {
        kill_process(pid, Signal::TERM)?;
    }
    let status = fleet.0.wait()?;
    ensure!(
        status.success(),
        "the processes did not stay as they were: {status}"
    );
    let (user, redraw) = (spread(&user), spread(&redraw));
    println!(
        "{PROCESSES} processes of {MIB_EACH} MiB, {written} pages written by each in 100 ms: {} of a core \
         outside of the kernel (goal 0.1), {} in it, {} rounds a second; top redraws in {} ms (goal 50)",
        user["median"],
        spread(&kernel)["median"],
        spread(&rates)["median"],
        redraw["median"],
    );
    Ok(json!({
        "processes": PROCESSES,
        "mib_each": MIB_EACH,
        "pages_written_by_each_in_100_ms": written,
        "interval_ms": 100,
        "user_share_of_a_core": user,
        "user_share_goal": 0.1,
        "kernel_share_of_a_core": spread(&kernel),
        "rounds_per_second": spread(&rates),
        "top_redraw_ms": redraw,
        "top_redraw_goal_ms": 50,
        "top_answer_at_100_ms_rounds_ms": spread(&answer),
    }))
}

struct Used {
    user_share: f64,
    kernel_share: f64,
    rounds_per_second: f64,
}

/// Records the processes, and says what the recorder used of a processor meanwhile.
fn record(bench: &Bench, pid: u32, written: u32) -> Result<Used> {
    let trail = bench.trail("fleet.trail");
    let (pid, duration) = (pid.to_string(), BEGIN + MEASURED + Duration::from_secs(1));
    let duration = format!("{}s", duration.as_secs());
    let arguments = ["-p", &pid, "--interval", "100ms", "--duration", &duration];
    let mut command = bench.record(&trail, &arguments);
    let mut recorder = Running(
        command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?,
    );
    sleep(BEGIN);
    let (before, began) = (Ticks::of(recorder.0.id())?, Instant::now());
    sleep(MEASURED);
    let (after, seconds) = (Ticks::of(recorder.0.id())?, began.elapsed().as_secs_f64());
    let status = recorder.0.wait()?;
    ensure!(status.success(), "record: {status}");
    let report = bench.report(&trail)?;
    let rows = report["processes"].as_array().context("no processes")?;
    ensure!(
        rows.len() as u32 == PROCESSES + 1,
        "{} processes are recorded",
        rows.len()
    );
    let late = |row: &&Value| {
        row["appeared_ms"]
            .as_f64()
            .is_none_or(|ms| ms / 1e3 > BEGIN.as_secs_f64())
    };
    if let Some(late) = rows.iter().find(late) {
        bail!("it was still attaching when it was measured: {late}");
    }
    // A second of writes at least, however busy the machine is.
    let lacks = |row: &&Value| row["page_writes"].as_u64() < Some(10 * u64::from(written));
    if let Some(lacks) = rows[1..].iter().find(lacks) {
        bail!("writes are missing: {lacks}");
    }
    let rounds = report["rounds"].as_array().context("no rounds")?;
    let in_time = rounds.iter().filter_map(|round| round["start_ms"].as_f64());
    let end = (BEGIN + MEASURED).as_secs_f64() * 1e3;
    let in_time = in_time.filter(|start| (BEGIN.as_secs_f64() * 1e3..end).contains(start));
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    Ok(Used {
        user_share: (after.user - before.user) as f64 / ticks / seconds,
        kernel_share: (after.kernel - before.kernel) as f64 / ticks / seconds,
        rounds_per_second: in_time.count() as f64 / MEASURED.as_secs_f64(),
    })
}

/// Processor time of a process, in ticks (`proc_pid_stat(5)`).
struct Ticks {
    user: u64,
    kernel: u64,
}

impl Ticks {
    fn of(pid: u32) -> Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let (_, fields) = stat.rsplit_once(") ").context("no name in stat")?;
        let mut times = fields.split(' ').skip(11).map(str::parse);
        let mut next = || times.next().context("stat is too short");
        Ok(Self {
            user: next()??,
            kernel: next()??,
        })
    }
}
