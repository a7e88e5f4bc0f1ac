//! `cargo xtask tier-agent`: `pagetrail tier agent` in a guest with a kernel that reports accesses,
//! asked from this machine.
//!
//! The guest is a process here, whichever way it runs: what its agent says must name the pages of
//! its memory that a program there uses, at their addresses in that process. It has two memory
//! nodes and more than 3 GiB, so that its memory is two mappings with a hole.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use pagetrail_rig::guest::{CHANNEL, End, Guest, Job, Machine};
use pagetrail_rig::kernel::Series;
use pagetrail_rig::{Rig, guest};
use pagetrail_steps::products::{Product, Profile};
use pagetrail_steps::repo::Repo;
use pagetrail_steps::steps::Outcome;
use pagetrail_steps::victims;

/// Reports accesses.
const SERIES: &str = "7.x";
const PAGE: u64 = 4096;
const HUGE: u64 = 2 << 20;
/// Of each kind that must be looked at.
const ENOUGH: usize = 512;
/// Of the guest, below the hole of a PC.
const BELOW_HOLE: u64 = 3 << 30;
const HOLE_END: u64 = 4 << 30;
const MEMORY_MIB: u32 = 4096;
/// For the job; emulated, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(400);
/// Until the program in the guest has said where its pages are.
const START_MAX: Duration = Duration::from_secs(240);
/// So little that all of the guest would go, each page with its degree.
const FAST: &str = "4K";
/// Degrees after six windows, of which the first two may see a page only at their end.
const HOT_MIN: u64 = 4;
const COLD_MAX: u64 = 1;

/// Runs the agent, and asks it.
pub fn run(repo: &Repo) -> Result<Outcome> {
    let command = Product::Command.build(repo, Profile::Dev)?;
    victims::build(repo)?;
    let program = repo.victims().join("guest_pages");
    let rig = Rig::open(repo)?;
    let series = Series::named(SERIES)?;
    let kernel = rig.kernel(series)?;
    let directory = tempfile::tempdir()?;
    let socket = directory.path().join("agent");
    let out = Guest::out(rig.dir());
    let script = format!(
        "'{}' \"$PAGETRAIL_OUT/pages\" & program=$!; \
         '{}' tier agent --listen {CHANNEL} --min-memory 16M & agent=$!; \
         while [ ! -e \"$PAGETRAIL_OUT/stop\" ]; do sleep 0.2; done; \
         kill $program $agent; wait $agent",
        program.display(),
        command.display()
    );
    let job = Job {
        dir: repo.root.clone(),
        command: ["bash", "-c", &script].map(str::to_owned).to_vec(),
        env: rig.environment(series),
    };
    let machine = Machine {
        memory_mib: MEMORY_MIB,
        numa: true,
        channel: Some(socket.clone()),
        timeout: TIMEOUT,
        ..Machine::default()
    };
    let asking = Asking {
        command,
        socket,
        out,
    };
    // What an earlier guest has left would be taken for this one's.
    if asking.out.exists() {
        fs::remove_dir_all(&asking.out)?;
    }
    let asked = thread::spawn(move || {
        let asked = asking.ask();
        // In any case: otherwise the guest runs until its time is over.
        let stopped = fs::write(asking.out.join("stop"), "");
        asked.and_then(|()| Ok(stopped?))
    });
    let end = rig.run(&kernel, &machine, &job, &mut guest::print_bytes)?;
    match asked.join() {
        Ok(asked) => asked?,
        Err(_) => bail!("the host's side panicked"),
    }
    ensure!(end == End::Exited(0), "the agent ended otherwise: {end:?}");
    Ok(Outcome::Passed)
}

/// The host's side.
struct Asking {
    command: PathBuf,
    socket: PathBuf,
    out: PathBuf,
}

impl Asking {
    fn ask(&self) -> Result<()> {
        let pages = self.pages()?;
        let pid = self.monitor()?;
        let agent = format!("unix:{}", self.socket.display());
        let mut command = Command::new(&self.command);
        command.args(["tier", "plan", "--json", "--fast", FAST, "--windows", "6"]);
        command.args(["--window", "1s", "--agent", &agent, "--guest"]);
        let output = command
            .arg(pid.to_string())
            .stderr(Stdio::inherit())
            .output()?;
        ensure!(output.status.success(), "no plan: {}", output.status);
        let plan: Value = serde_json::from_slice(&output.stdout)?;
        ensure!(
            plan["source"] == "agent (accesses)",
            "by another source: {}",
            plan["source"]
        );
        check(&plan, &pages, &guest_memory(pid)?)
    }

    /// The guest's program's pages, once it has said them all.
    fn pages(&self) -> Result<Vec<(bool, u64)>> {
        let deadline = Instant::now() + START_MAX;
        loop {
            let text = fs::read_to_string(self.out.join("pages")).unwrap_or_default();
            if let Some(lines) = text.strip_suffix("end\n") {
                let pages = lines.lines().map(|line| {
                    let (kind, frame) = line.split_once(' ')?;
                    Some((kind == "hot", frame.parse::<u64>().ok()? * PAGE))
                });
                let pages: Option<Vec<_>> = pages.collect();
                return pages.context("the program in the guest says something else");
            }
            ensure!(
                Instant::now() < deadline,
                "the program in the guest does not start"
            );
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// The process at the other end of the agent's socket.
    fn monitor(&self) -> Result<u32> {
        let connection = UnixStream::connect(&self.socket)?;
        let peer = rustix::net::sockopt::socket_peercred(&connection)?;
        Ok(peer.pid.as_raw_nonzero().get() as u32)
    }
}

/// Where the guest's memory lies in its process, of which the emulator is known to make two
/// mappings of half its size, in the order of their nodes: tried in both.
fn guest_memory(pid: u32) -> Result<[u64; 2]> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let half = u64::from(MEMORY_MIB) << 19;
    let starts = maps.lines().filter_map(|line| {
        let (range, _) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (start, end) = (number(start)?, number(end)?);
        (end - start == half).then_some(start)
    });
    let starts: Vec<u64> = starts.collect();
    starts
        .try_into()
        .map_err(|found| anyhow::anyhow!("not two mappings of half the guest: {found:x?}"))
}

/// The plan knows the program's hot pages from its cold ones, by the addresses of the guest's
/// process.
fn check(plan: &Value, pages: &[(bool, u64)], memory: &[u64; 2]) -> Result<()> {
    let mut degrees = BTreeMap::new();
    for part in plan["demote"].as_array().context("no list")? {
        let number = |key: &str| -> Result<u64> {
            let text = part[key].as_str().context("no address")?;
            Ok(u64::from_str_radix(text.trim_start_matches("0x"), 16)?)
        };
        let degree = part["degree"].as_u64().context("no degree")?;
        degrees.insert(number("start")?, (number("end")?, degree));
    }
    let degree = |address: u64| {
        let (_, (end, degree)) = degrees.range(..=address).next_back()?;
        (address < *end).then_some(*degree)
    };
    let half = u64::from(MEMORY_MIB) << 19;
    // Which part of the hot, or of the cold pages is taken for that, and of how many.
    let share = |order: [u64; 2], hot: bool| {
        let at = |physical: u64| {
            let offset = match physical < HOLE_END {
                true => physical,
                false => physical - HOLE_END + BELOW_HOLE,
            };
            order[(offset / half) as usize] + offset % half
        };
        // The host may have guest memory in huge pages, each of which is hot or cold as a whole.
        let mut cold_in = BTreeMap::new();
        for (_, physical) in pages.iter().filter(|(hot, _)| !hot) {
            *cold_in.entry(at(*physical) / HUGE).or_insert(0) += 1;
        }
        let of_kind = pages.iter().filter(|(kind, physical)| {
            let is_alone = || cold_in.get(&(at(*physical) / HUGE)) == Some(&(HUGE / PAGE));
            *kind == hot && (hot || is_alone())
        });
        let found: Vec<Option<u64>> = of_kind.map(|(_, physical)| degree(at(*physical))).collect();
        let right = found.iter().filter(|degree| match hot {
            true => degree.is_some_and(|degree| degree >= HOT_MIN),
            false => degree.is_some_and(|degree| degree <= COLD_MAX),
        });
        (right.count(), found.len())
    };
    let orders = [*memory, [memory[1], memory[0]]];
    let shares = orders.map(|order| [share(order, true), share(order, false)]);
    println!(
        "{} pages of the guest; of the program's, known as hot and as cold, by either order of \
         mappings: {shares:?}",
        plan["fast_bytes"].as_u64().unwrap_or(0) / PAGE,
    );
    let is_right = |(right, all): &(usize, usize)| *all >= ENOUGH && *right * 100 >= *all * 98;
    ensure!(
        shares.iter().any(|shares| shares.iter().all(is_right)),
        "the plan is not of the program's pages"
    );
    Ok(())
}
