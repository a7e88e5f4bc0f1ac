//! `pagetrail tier` with guests of KVM that run Linux, on two memory nodes: what moves is what they
//! use, they reboot and die, agents and the daemon end, and every page has what it had.
//!
//! `cargo xtask tier-guests` runs them in a guest, and keeps what they note. Where pages are says
//! the kernel: `numa_maps`, and `move_pages(2)` page by page; what is in them, the guests' own
//! program.

#![allow(
    clippy::print_stdout,
    reason = "what was seen stands beside what failed"
)]

mod common;
#[path = "tier_guests/kernel.rs"]
mod kernel;

use std::env;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use common::inner::{Inner, PORT, Plan, files};
use common::running::Running;
use common::{number, pagetrail, run};
use rustix::process::Signal;
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
/// How long the kernel waits until it looks for huge pages again.
const KHUGEPAGED: &str = "/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs";
/// For anything but a boot, in emulation on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Which part of a hot set must be in fast memory.
const MOST: f64 = 0.95;
/// What a guest takes newly while a plan is carried out is in fast memory, too.
const SLACK: u64 = 4 * MIB;
/// The share of fast memory of a guest in huge pages, of which its kernel and what it starts with
/// use some 60 MiB in each window; a hot set is 6.
const FAST_HUGE: u64 = 80 * MIB;
/// The share of one in small pages, of which an agent says of 112 MiB that they are the kernel's,
/// unevictable or of small processes, all of which counts as used.
const FAST_SMALL: u64 = 128 * MIB;
/// The share of such a guest where it is watched from outside.
const FAST_WITHOUT_AGENT: u64 = 64 * MIB;
/// The share of a guest in small pages that lends and borrows: its program alone has more, and its
/// kernel uses less than what it keeps of it.
const FAST_LENT: u64 = 40 * MIB;
/// Of such a share a guest that borrows must have so much more, which is half of what it may have.
const BORROWED_MIN: u64 = 5 * MIB;
/// In huge pages at least, of a guest whose memory they are for.
const HUGE_MIN: u64 = 96 * MIB;
/// A guest touches more than this as it boots: what is not in fast memory must be on the slow node.
const TOUCHED: u64 = 160 * MIB;

/// A guest in small pages, with an agent, or in huge ones, watched from outside.
fn plan(name: &'static str, cid: Option<u32>) -> Plan {
    Plan {
        name,
        memory_mib: 192,
        program_mib: 48,
        huge: cid.is_none(),
        cid,
    }
}

/// A daemon's directory, and its guests.
struct Scene {
    directory: tempfile::TempDir,
    name: &'static str,
    in_pool: bool,
    window_s: u64,
    /// Their names and their shares of fast memory, in the order of the configuration.
    guests: Vec<(&'static str, u64)>,
}

/// Where the memory of a guest is, in bytes, and which parts of a hot set and of the pages that are
/// in none are in fast memory.
struct Seen {
    fast: u64,
    slow: u64,
    hot: f64,
    others: f64,
}

impl Seen {
    fn of(guest: &Inner, set: u64) -> Self {
        let [fast, slow] = guest.on_nodes();
        let [hot, others] = [Some(set), None].map(|set| guest.in_fast(set));
        let seen = Self {
            fast,
            slow,
            hot,
            others,
        };
        println!(
            "  {}: {} MiB on node 0, {} on node 1; in fast memory {hot:.2} of hot set {set}, \
             {others:.2} of what is in none",
            guest.name,
            fast / MIB,
            slow / MIB,
        );
        seen
    }
}

impl Scene {
    fn new(directory: tempfile::TempDir, name: &'static str, in_pool: bool) -> Self {
        // The guest around is there for these tests alone, and its kernel would move pages, too:
        // by their accesses, and to make huge ones of small ones.
        for (file, value) in [
            ("/proc/sys/kernel/numa_balancing", "0"),
            (KHUGEPAGED, "3600000"),
        ] {
            fs::write(file, value).expect("root in a guest");
        }
        Self {
            directory,
            name,
            in_pool,
            window_s: 1,
            guests: Vec::new(),
        }
    }

    /// Writes the configuration of a daemon that keeps these guests, with their shares.
    fn configure(&mut self, guests: &[(&Inner, u64)]) {
        let mode = if self.in_pool { "pool" } else { "island" };
        let mut text = format!(
            "listen = \"unix:{}\"\nmode = \"{mode}\"\nwindow = \"{}s\"\nperiod = \"{}s\"\n\
             [policy]\ncalm_bytes = 4096\npause_max = 0\n",
            self.path().join("tier.sock").display(),
            self.window_s,
            self.window_s * 9,
        );
        for (guest, share) in guests {
            let (name, fast) = (guest.name, share / MIB);
            text +=
                &format!("[[target]]\nname = \"{name}\"\nvm = \"{name}\"\nfast = \"{fast}M\"\n");
            if let Some(cid) = guest.cid {
                text += &format!("agent = \"vsock:{cid}:{PORT}\"\n");
            }
        }
        fs::write(self.path().join("tier.toml"), text).expect("it can be written");
        let guests = guests.iter().map(|(guest, share)| (guest.name, *share));
        self.guests = guests.collect();
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn daemon(&self) -> Running {
        let mut log = fs::File::options();
        let log = log.append(true).create(true).open(self.log_path());
        let mut command = pagetrail(self.path(), &["tier", "run", "--config", "tier.toml"]);
        let command = command.stderr(log.expect("a log"));
        Running(command.spawn().expect("it starts"))
    }

    /// Where it can be read beside the tests, if the guest around them shares a directory.
    fn log_path(&self) -> PathBuf {
        let name = format!("{}.log", self.name);
        shared()
            .unwrap_or_else(|| self.path().to_owned())
            .join(name)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn status(&self) -> Value {
        let arguments = ["tier", "status", "--config", "tier.toml", "--json"];
        let output = run(self.path(), &arguments);
        let status = serde_json::from_slice(&output.stdout).ok();
        status
            .filter(|_| output.status.success())
            .unwrap_or(Value::Null)
    }

    /// A guest's process, in what the daemon says.
    fn process(&self, guest: &str) -> Value {
        let at = self.guests.iter().position(|(known, _)| *known == guest);
        self.status()["targets"][at.expect("it is configured")]["processes"][0].clone()
    }

    /// Waits until it is so.
    fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let began = Instant::now();
        while !is_so() {
            assert!(
                began.elapsed() < TIMEOUT,
                "not {what}: {:#}\n{}",
                self.status(),
                self.log()
            );
            // To look at all pages takes time of the guests' processors.
            thread::sleep(Duration::from_secs(2));
        }
        println!(
            "{}: {what}: after {:.1} s",
            self.name,
            began.elapsed().as_secs_f64()
        );
    }

    /// Waits until each guest has no more than it may in fast memory, all else on the slow node,
    /// and this hot set of its program in fast memory. What neither program nor kernel uses is
    /// alike, and may be in both.
    fn until_tiered(&self, step: &str, guests: &[(&Inner, u64)]) {
        let all: u64 = self.guests.iter().map(|(_, share)| share).sum();
        // In a pool as much more as the settings let it have of what others do not use.
        let most = |guest: &Inner| {
            let (_, share) = self.guests.iter().find(|(name, _)| *name == guest.name)?;
            Some(if self.in_pool { share * 5 / 4 } else { *share })
        };
        let windows = |guest: &Inner| self.process(guest.name)["windows"].as_u64().unwrap_or(0);
        let state = |(guest, set): &(&Inner, u64)| (windows(guest), guest.in_fast(Some(*set)));
        let before: Vec<(u64, f64)> = guests.iter().map(state).collect();
        let mut seen = Vec::new();
        self.until(step, || {
            seen = guests
                .iter()
                .map(|(guest, set)| Seen::of(guest, *set))
                .collect();
            let fast: u64 = seen.iter().map(|seen| seen.fast).sum();
            let mut each = guests.iter().zip(&seen);
            fast <= all + SLACK
                && each.all(|((guest, _), seen)| {
                    let most = most(guest).expect("it is configured");
                    let slow_min = TOUCHED.saturating_sub(most);
                    seen.fast <= most + SLACK && seen.slow >= slow_min && seen.hot >= MOST
                })
        });
        for (((guest, set), seen), before) in guests.iter().zip(&seen).zip(before) {
            self.note(step, guest, *set, seen, before);
        }
    }

    /// Waits until guests whose programs use all their memory have more of fast memory than their
    /// shares, at the expense of those that are idle; or their shares, where nobody is idle.
    fn until_lent(&self, step: &str, guests: &[(&Inner, bool)]) {
        let all: u64 = self.guests.iter().map(|(_, share)| share).sum();
        let none_is_idle = guests.iter().all(|(_, busy)| *busy);
        let is_so = |fast: u64, busy: bool| match busy {
            true if none_is_idle => fast.abs_diff(FAST_LENT) <= SLACK,
            true => (FAST_LENT + BORROWED_MIN..=FAST_LENT * 5 / 4 + SLACK).contains(&fast),
            false => fast <= FAST_LENT * 3 / 4 + SLACK,
        };
        let mut seen = Vec::new();
        self.until(step, || {
            let on_nodes = guests.iter().map(|(guest, _)| guest.on_nodes());
            seen = on_nodes.collect();
            let mib = seen.iter().map(|nodes| nodes.map(|bytes| bytes / MIB));
            println!("  MiB on either node: {:?}", mib.collect::<Vec<_>>());
            let fast: u64 = seen.iter().map(|[fast, _]| fast).sum();
            let mut each = guests.iter().zip(&seen);
            fast <= all + SLACK && each.all(|((_, busy), [fast, _])| is_so(*fast, *busy))
        });
        for ((guest, busy), [fast, slow]) in guests.iter().zip(seen) {
            let process = self.process(guest.name);
            write_figure(&json!({
                "test": self.name,
                "step": step,
                "guest": guest.name,
                "source": process["source"],
                "windows": process["windows"],
                "busy": busy,
                "share_bytes": FAST_LENT,
                "fast_bytes": fast,
                "slow_bytes": slow,
            }));
        }
    }

    /// Notes what is so after a step; `before` has windows, and the part of the hot set that was in
    /// fast memory. Seconds are those of an emulator: windows are what counts.
    fn note(&self, step: &str, guest: &Inner, set: u64, seen: &Seen, before: (u64, f64)) {
        let process = self.process(guest.name);
        let part = |part: f64| (part * 1000.0).round() / 1000.0;
        let windows = process["windows"].as_u64().unwrap_or(0);
        let line = json!({
            "test": self.name,
            "step": step,
            "guest": guest.name,
            "source": process["source"],
            "windows": windows.saturating_sub(before.0),
            "hot_set": set,
            "hot_fast_share_before": part(before.1),
            "hot_fast_share": part(seen.hot),
            "other_fast_share": part(seen.others),
            "fast_bytes": seen.fast,
            "slow_bytes": seen.slow,
            "huge_bytes": guest.in_huge_pages(),
            "faults": process["faults"],
            "promoted_bytes": process["promoted_bytes"],
            "demoted_bytes": process["demoted_bytes"],
            "not_moved": process["not_moved"],
        });
        write_figure(&line);
    }
}

/// Keeps what was noted, if the guest around the tests shares a directory.
fn write_figure(line: &Value) {
    println!("  {line}");
    if let Some(shared) = shared() {
        let file = fs::File::options()
            .append(true)
            .create(true)
            .open(shared.join("figures"));
        writeln!(file.expect("a file"), "{line}").expect("it can be written");
    }
}

/// The directory that the guest around the tests shares with its host.
fn shared() -> Option<PathBuf> {
    env::var_os("PAGETRAIL_OUT").map(PathBuf::from)
}

fn stop(mut daemon: Running) {
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.0.wait().expect("it ends").code(), Some(0));
}

fn kill(mut daemon: Running) {
    daemon.signal(Signal::KILL);
    daemon.0.wait().expect("it is dead");
}

/// Without a daemon pages stay where they are, and have what they had.
fn stays(guest: &mut Inner) {
    let [_, slow] = guest.on_nodes();
    guest.check();
    assert!(slow > 0, "all of it is in fast memory");
    assert_eq!(guest.on_nodes()[1], slow, "on the slow node");
}

fn hot(guest: &mut Inner, set: u64) {
    let order = guest.order(b'0' + set as u8);
    assert_eq!(order, format!("hot {set}"));
}

/// By vsock an agent says what is used, and the rest moves to the slow node. Without its agent the
/// guest is watched from outside.
#[test]
fn what_an_agent_calls_cold_moves() {
    let Some(files) = files() else {
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let mut guest = Inner::start(&files, directory.path(), &plan("agent", Some(11)));
    guest.wait();
    assert_eq!(guest.in_huge_pages(), 0);
    let mut scene = Scene::new(directory, "agent", false);
    scene.configure(&[(&guest, FAST_SMALL)]);
    let daemon = scene.daemon();
    scene.until_tiered("tiered", &[(&guest, 0)]);
    let source = |scene: &Scene| scene.process("agent")["source"].clone();
    scene.until("by its agent", || source(&scene) == "agent (accesses)");
    let before = number(&scene.process("agent")["windows"]);
    hot(&mut guest, 1);
    scene.until_tiered("tiered after the hot set has moved", &[(&guest, 1)]);
    // By the agent's word alone: a guest that is watched from outside for a while counts anew.
    let process = scene.process("agent");
    assert_eq!(process["source"], "agent (accesses)", "{process:#}");
    assert!(number(&process["windows"]) > before, "{process:#}");
    for moved in ["promoted_bytes", "demoted_bytes"] {
        assert!(number(&process[moved]) > 0, "{process:#}");
    }
    assert_eq!(guest.order(b'k'), "killed");
    scene.until("watched from outside", || source(&scene) == "access-scan");
    // Which is seen to need less.
    scene.configure(&[(&guest, FAST_WITHOUT_AGENT)]);
    daemon.signal(Signal::HUP);
    scene.until_tiered("tiered without the agent, with less", &[(&guest, 1)]);
    guest.check();
    hot(&mut guest, 2);
    scene.until_tiered("tiered after it has moved again", &[(&guest, 2)]);
    stop(daemon);
    stays(&mut guest);
}

/// Of guest memory in huge pages, the part that the guest's program uses moves as it moves, also
/// after it was the same for so long that it is sampled rarely.
#[test]
fn a_hot_set_moves_within_huge_pages() {
    let Some(files) = files() else {
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let mut guest = Inner::start(&files, directory.path(), &plan("huge", None));
    guest.wait();
    assert!(guest.in_huge_pages() >= HUGE_MIN, "few huge pages");
    let mut scene = Scene::new(directory, "huge", false);
    scene.configure(&[(&guest, FAST_HUGE)]);
    let daemon = scene.daemon();
    for (set, step) in [
        (0, "tiered"),
        (1, "tiered after the hot set has moved"),
        (2, "tiered after it has moved again"),
    ] {
        hot(&mut guest, set);
        scene.until_tiered(step, &[(&guest, set)]);
        guest.check();
        let then = number(&scene.process("huge")["windows"]);
        scene.until("the same for 40 windows", || {
            scene.process("huge")["windows"].as_u64() >= Some(then + 40)
        });
    }
    assert!(guest.in_huge_pages() >= HUGE_MIN, "huge pages were split");
    stop(daemon);
    stays(&mut guest);
}

/// Four guests in a pool, in small pages: those that are idle lend fast memory to those that use
/// more than their share, and have it again once they use it themselves.
#[test]
fn idle_guests_lend_fast_memory() {
    let Some(files) = files() else {
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let mut guests = ["first", "second", "third", "fourth"].map(|name| {
        let plan = Plan {
            huge: false,
            ..plan(name, None)
        };
        Inner::start(&files, directory.path(), &plan)
    });
    guests.iter_mut().for_each(Inner::wait);
    let mut scene = Scene::new(directory, "lending", true);
    // Emulated, a program takes seconds to go through all its memory while it is sampled.
    scene.window_s = 4;
    scene.configure(&guests.each_ref().map(|guest| (guest, FAST_LENT)));
    let daemon = scene.daemon();
    for (busy, step) in [
        ([true, false, false, false], "one borrows from three"),
        (
            [false, true, true, false],
            "two borrow, one of them a lender before",
        ),
        ([true; 4], "all have their shares again"),
    ] {
        for (guest, busy) in guests.iter_mut().zip(busy) {
            guest.use_all(busy);
        }
        let states: Vec<(&Inner, bool)> = guests.iter().zip(busy).collect();
        scene.until_lent(step, &states);
    }
    guests.iter_mut().for_each(Inner::check);
    stop(daemon);
    guests.iter_mut().for_each(stays);
}

/// Three guests in a pool, one in small pages with an agent and two in huge ones. The daemon is
/// killed and started again, the agent ends, a guest reboots and one is killed.
#[test]
fn guests_and_the_daemon_come_and_go() {
    let Some(files) = files() else {
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let plans = [
        plan("reboots", None),
        plan("dies", None),
        plan("agent", Some(12)),
    ];
    let [mut reboots, mut dies, mut agent] =
        plans.map(|plan| Inner::start(&files, directory.path(), &plan));
    for guest in [&mut reboots, &mut dies, &mut agent] {
        guest.wait();
    }
    assert!(reboots.in_huge_pages() >= HUGE_MIN, "few huge pages");
    let mut scene = Scene::new(directory, "pool", true);
    let shares = [
        (&reboots, FAST_HUGE),
        (&dies, FAST_HUGE),
        (&agent, FAST_SMALL),
    ];
    scene.configure(&shares);
    let daemon = scene.daemon();
    scene.until_tiered("tiered", &[(&reboots, 0), (&dies, 0), (&agent, 0)]);
    kill(daemon);
    for guest in [&mut reboots, &mut dies, &mut agent] {
        stays(guest);
        hot(guest, 1);
    }
    let daemon = scene.daemon();
    let moved = [(&reboots, 1), (&dies, 1), (&agent, 1)];
    scene.until_tiered(
        "tiered by the next daemon, after the hot sets have moved",
        &moved,
    );
    assert_eq!(agent.order(b'k'), "killed");
    scene.until("watched from outside", || {
        scene.process("agent")["source"] == "access-scan"
    });
    dies.check();
    dies.monitor.signal(Signal::KILL);
    reboots.reboot();
    scene.until("without the guest that died", || {
        let status = scene.status();
        let processes = status["targets"][1]["processes"].as_array();
        processes.is_some_and(Vec::is_empty)
    });
    hot(&mut agent, 2);
    let left = [(&reboots, 0), (&agent, 2)];
    scene.until_tiered(
        "tiered after a reboot, a death, and without the agent",
        &left,
    );
    stop(daemon);
    for guest in [&mut reboots, &mut agent] {
        stays(guest);
    }
}
