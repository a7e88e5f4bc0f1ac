//! The kernel's own tiering of a guest from outside (`numa_balancing=2` with demotion), and that of
//! the daemon, in turns: the same guest, the same placement at the start, as much fast memory.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::common::inner::{Inner, PAGE, Plan, files};
use super::common::running::Running;
use super::{MIB, Scene, Seen, hot, plan, stays, stop, write_figure};

/// The kernel looks through memory as often as it does in the bench of one program
/// (`bench tier-guest`): with its defaults it does so once in a second to a minute of processor
/// time, of which a guest that waits between its passes takes little. In emulation a scan of a
/// guest takes seconds, so that what is used at once after it counts as hot only by a higher
/// threshold than that of one second.
const SCAN: [(&str, &str); 5] = [
    ("scan_delay_ms", "100"),
    ("scan_period_min_ms", "250"),
    ("scan_period_max_ms", "500"),
    ("scan_size_mb", "256"),
    ("hot_threshold_ms", "5000"),
];
/// The program's pages outside its hot set, of which there are 44 MiB, are in fast memory at the
/// start, and so much of it is free.
const FREE: u64 = 4 * MIB;
const FAST: u64 = 44 * MIB + FREE;
/// How often and how long it is looked where the hot set is.
const STEP: Duration = Duration::from_secs(2);
const STEPS: u32 = 20;
/// The hot set counts as found when so much of it is in fast memory.
const FOUND: f64 = 0.9;
/// It must not be there before.
const BEFORE_MAX: f64 = 0.2;

/// Who moves pages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mover {
    Kernel,
    Daemon,
}

impl Mover {
    const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "numa_balancing=2 with demotion",
            Self::Daemon => "pagetrail tier run",
        }
    }
}

/// The kernel's own tiering, on or off.
fn kernel_tiering(on: bool) {
    let settings = "/sys/kernel/debug/sched/numa_balancing";
    for (name, value) in SCAN.into_iter().filter(|_| on) {
        fs::write(format!("{settings}/{name}"), value).expect("root, and debugfs");
    }
    for (file, value) in [
        ("/sys/kernel/mm/numa/demotion_enabled", u8::from(on)),
        ("/proc/sys/kernel/numa_balancing", u8::from(on) * 2),
    ] {
        fs::write(file, value.to_string()).expect("root in a guest");
    }
}

/// Counters of the kernel: hinting faults, and bytes that were moved, promoted and demoted.
fn counters() -> [u64; 4] {
    let text = fs::read_to_string("/proc/vmstat").expect("the kernel counts");
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    let all: BTreeMap<&str, u64> = lines
        .filter_map(|(name, value)| Some((name, value.parse().ok()?)))
        .collect();
    let of = |name: &str| *all.get(name).unwrap_or_else(|| panic!("no {name}"));
    let demoted = all.iter().filter(|(name, _)| name.starts_with("pgdemote_"));
    [
        of("numa_hint_faults"),
        of("pgmigrate_success") * PAGE,
        of("pgpromote_success") * PAGE,
        demoted.map(|(_, value)| value).sum::<u64>() * PAGE,
    ]
}

/// Below so many free bytes the kernel frees memory of the fast node: the sum of its zones.
fn watermark() -> u64 {
    let text = fs::read_to_string("/proc/zoneinfo").expect("the kernel has zones");
    let (mut is_fast, mut pages) = (false, 0);
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["Node", node, ..] => is_fast = node == "0,",
            ["high", high] if is_fast => pages += high.parse::<u64>().expect("a number"),
            _ => {}
        }
    }
    assert!(pages > 0, "no watermark: {text}");
    pages * PAGE
}

/// Takes the fast node's free memory but for what the scene may have.
fn fill(directory: &Path) -> Running {
    let program = directory.join("hog");
    if !program.exists() {
        let home = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let source = home.join("../pagetrail-tier/examples/bench_tier_guest/hog.c");
        let mut cc = Command::new("cc");
        let status = cc.arg("-O1").arg("-o").arg(&program).arg(source).status();
        assert!(status.is_ok_and(|status| status.success()), "cc failed");
    }
    let mut command = Command::new(program);
    command.arg(((watermark() + FREE) / MIB).to_string());
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut hog = Running(command.spawn().expect("it starts"));
    let mut line = String::new();
    let output = hog.0.stdout.as_mut().expect("it is piped");
    BufReader::new(output).read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    hog
}

fn rounded(part: f64) -> f64 {
    (part * 1000.0).round() / 1000.0
}

/// Has the hot set move to pages of the slow node, looks at what becomes of it, and notes it.
/// Returns which part of it is in fast memory at the end, and how many hinting faults there were.
fn turn(number: u32, mover: Mover, set: u64, guest: &mut Inner, scene: &Scene) -> (f64, u64) {
    // Used until now is a set that stays in fast memory.
    hot(guest, 0);
    guest.leave_on_slow_node(set);
    let filler = fill(scene.path());
    thread::sleep(STEP);
    let before = Seen::of(guest, set);
    assert!(before.hot < BEFORE_MAX, "in fast memory: {}", before.hot);
    let (faults, counted) = (guest.faults(), counters());
    hot(guest, set);
    let began = Instant::now();
    let daemon = match mover {
        Mover::Daemon => Some(scene.daemon()),
        Mover::Kernel => {
            kernel_tiering(true);
            None
        }
    };
    let (mut parts, mut fast, mut found_after) = (Vec::new(), Vec::new(), None);
    let mut seen = Seen::of(guest, set);
    for step in 1..=STEPS {
        thread::sleep((STEP * step).saturating_sub(began.elapsed()));
        seen = Seen::of(guest, set);
        parts.push(rounded(seen.hot));
        fast.push(seen.fast / MIB);
        if seen.hot >= FOUND && found_after.is_none() {
            found_after = Some(rounded(began.elapsed().as_secs_f64()));
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let process = daemon.as_ref().map(|_| scene.process(guest.name));
    match daemon {
        Some(daemon) => stop(daemon),
        None => kernel_tiering(false),
    }
    let [hints, moved, promoted, demoted] = {
        let after = counters();
        [0, 1, 2, 3].map(|at| after[at] - counted[at])
    };
    drop(filler);
    let of_daemon = |name: &str, own: u64| match &process {
        Some(process) => process[name].clone(),
        None => Value::from(own),
    };
    write_figure(&json!({
        "test": scene.name,
        "step": "the hot set has moved to pages of the slow node",
        "turn": number,
        "moved_by": mover.name(),
        "guest": guest.name,
        "hot_set": set,
        "capacity_bytes": FAST,
        "hot_fast_share_before": rounded(before.hot),
        "hot_fast_share_by_step": parts,
        "fast_mib_by_step": fast,
        "steps_s": rounded(seconds / f64::from(STEPS)),
        "found_after_s": found_after,
        "windows": process.as_ref().map(|process| process["windows"].clone()),
        "other_fast_share": rounded(seen.others),
        "fast_bytes": seen.fast,
        "slow_bytes": seen.slow,
        "moved_bytes": moved,
        "promoted_bytes": of_daemon("promoted_bytes", promoted),
        "demoted_bytes": of_daemon("demoted_bytes", demoted),
        "hint_faults": hints,
        "faults": guest.faults() - faults,
    }));
    assert!(
        seen.fast + seen.slow >= before.fast + before.slow,
        "memory is gone"
    );
    stays(guest);
    (seen.hot, hints)
}

/// What the kernel makes of a guest from outside is the baseline, of which is noted how much of the
/// hot set it promotes; the daemon must find it. In either case memory has what was written to it.
#[test]
fn the_kernel_alone_and_the_daemon_promote_what_a_guest_uses() {
    let Some(files) = files() else {
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let plan = Plan {
        huge: false,
        ..plan("kernel", None)
    };
    // How long a thread waits for its first scan is set when the thread is made: with the default
    // no page of this guest was looked at within 40 s.
    kernel_tiering(true);
    kernel_tiering(false);
    let mut guest = Inner::start(&files, directory.path(), &plan);
    guest.wait();
    let mut scene = Scene::new(directory, "kernel", false);
    scene.configure(&[(&guest, FAST)]);
    let mut all_hints = 0;
    for (number, (mover, set)) in (1..).zip([
        (Mover::Kernel, 1),
        (Mover::Daemon, 1),
        (Mover::Kernel, 2),
        (Mover::Daemon, 2),
    ]) {
        println!("{}, hot set {set}", mover.name());
        let (found, hints) = turn(number, mover, set, &mut guest, &scene);
        assert!(
            mover == Mover::Kernel || found >= FOUND,
            "the daemon has found {found}: {}",
            scene.log()
        );
        all_hints += hints;
    }
    assert!(all_hints > 0, "the kernel has looked at nothing");
}
