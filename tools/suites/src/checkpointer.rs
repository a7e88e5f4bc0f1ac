//! CRIU, unmodified, on our soft-dirty bits: two pre-dumps, a dump and a restore of a program that
//! knows what its memory must hold (`tests/victims/checkpointed.c`), here and beside the kernel's
//! own bits in a guest (figures 7 to 9 of the OoH paper).

mod again;
mod answers;
mod engines;
mod programs;
mod restore;
mod stats;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use pagetrail_rig::{self as rig, criu};
use pagetrail_steps::products::{Product, Profile};
use pagetrail_steps::recordings::{self, Place};
use pagetrail_steps::repo::{Repo, program};
use pagetrail_steps::steps::{NotHere, Outcome};
use pagetrail_steps::{packages, victims};

use crate::ooh::recorded::Known;
use crate::ooh::spent::{self, Spent};

/// What CRIU wants in a guest.
const MODULES: &[&str] = &[
    "unix_diag",
    "tcp_diag",
    "udp_diag",
    "raw_diag",
    "netlink_diag",
    "af_packet_diag",
    "tun",
    "veth",
    "nf_tables",
];

/// Where the library says by what it answers, in a guest with a log.
const LOG: &str = "/tmp/softdirty.log";

/// How long the program may take to carry out a command.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Whose bits tell CRIU what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bits {
    Kernel,
    Ours,
    /// Ours, from a log of `/dev/ooh`, by the technique that reads it.
    Log(&'static str),
}

impl Bits {
    fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Ours => "ours",
            Self::Log(technique) => technique,
        }
    }
}

struct Kit {
    /// CRIU and its libraries.
    tree: PathBuf,
    victims: PathBuf,
    preload: PathBuf,
}

impl Kit {
    fn build(repo: &Repo, profile: Profile) -> Result<Self> {
        victims::build(repo)?;
        let preload = Product::SoftDirtyLibrary.build(repo, profile)?;
        Ok(Self {
            tree: criu::fetch()?,
            victims: repo.victims(),
            preload,
        })
    }

    /// This program's verb for a guest, with what it is given.
    fn command(&self, verb: &str) -> Result<Vec<String>> {
        let this = env::current_exe()?.display().to_string();
        let paths = [&self.tree, &self.victims, &self.preload];
        let paths = paths.map(|path| path.display().to_string());
        let words = [this, verb.to_owned()].into_iter().chain(paths);
        Ok(words.collect())
    }

    /// What a guest is given.
    fn given(args: &[String]) -> Result<Self> {
        let [tree, victims, preload] = args else {
            bail!("usage: TREE VICTIMS PRELOAD");
        };
        Ok(Self {
            tree: tree.into(),
            victims: victims.into(),
            preload: preload.into(),
        })
    }

    fn criu(&self, bits: Bits, args: &[&str]) -> Command {
        let libraries = self.tree.join("usr/lib/x86_64-linux-gnu");
        let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
        command.arg("--library-path").arg(&libraries);
        command.arg(self.tree.join("usr/sbin/criu")).args(args);
        if bits != Bits::Kernel {
            command
                .env("LD_PRELOAD", &self.preload)
                .env("PAGETRAIL_SOFTDIRTY", "always");
        }
        if let Bits::Log(technique) = bits {
            command
                .env("PAGETRAIL_SOFTDIRTY_TECHNIQUE", technique)
                .env("PAGETRAIL_SOFTDIRTY_LOG", LOG);
        }
        command.stdin(Stdio::null());
        command
    }
}

/// The short form, here: the chain works by our bits, whatever its kernel has, and only
/// what was written is dumped again.
pub fn test(repo: &Repo) -> Result<Outcome> {
    let kit = kit(repo)?;
    let check = kit.criu(Bits::Ours, &["check"]).output()?;
    if check.status.success() {
        for (bits, words) in [(Bits::Kernel, "without us"), (Bits::Ours, "with us")] {
            let mut check = kit.criu(bits, &["check", "--feature", "mem_dirty_track"]);
            let found = check.output()?.status.success();
            println!("CRIU finds soft-dirty bits {words}: {found}");
            ensure!(found || bits == Bits::Kernel, "CRIU does not see our bits");
        }
        println!(
            "{}",
            chain(&kit, Bits::Ours, 32, &repo.target.join("checkpointer"))?
        );
        back_again(repo, &kit, Profile::Dev)?;
        Ok(Outcome::Passed)
    } else {
        let said = String::from_utf8_lossy(&check.stderr);
        let reason = format!("CRIU does not run on this machine: {}", said.trim());
        Ok(Outcome::NotHere(reason))
    }
}

/// The short form in a guest: the chain by our bits, and by the kernel's.
pub fn test_in_guest(repo: &Repo) -> Result<Outcome> {
    let kit = kit(repo)?;
    for run in in_guest(repo, &kit, 1, &["32"])? {
        println!("{run}");
    }
    Ok(Outcome::Passed)
}

/// What the short forms need.
fn kit(repo: &Repo) -> Result<Kit> {
    if program("gcc").is_none() {
        return Err(NotHere::error("no gcc"));
    }
    if !packages::is_root() {
        return Err(NotHere::error("CRIU needs root"));
    }
    Kit::build(repo, Profile::Dev)
}

/// A process comes back from a store, on this machine.
fn back_again(repo: &Repo, kit: &Kit, profile: Profile) -> Result<()> {
    let dir = repo.target.join("restored");
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    fs::create_dir_all(&dir)?;
    let tools = restore::Tools::new(repo, kit, profile, &dir)?;
    restore::test(&tools, 16, &dir)?;
    again::test(&tools, 16, &dir)?;
    programs::test(&tools, &Scratch::new()?.0, None)?;
    println!(
        "dumped into a store and restored, in full and lazily, in chains and copies; killed in between"
    );
    Ok(())
}

/// A directory that other users reach, with a short name: sockets are in it. It goes with this.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self> {
        let name = format!("pagetrail-programs-{}", std::process::id());
        let dir = env::temp_dir().join(name);
        fs::create_dir_all(&dir)?;
        Ok(Self(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Measures how long real programs take to their first answer, restored and started anew, and
/// replaces the recorded results.
pub fn bench_answers(repo: &Repo, rounds: Option<&str>) -> Result<()> {
    let rounds = self::rounds(rounds)?;
    let kit = Kit::build(repo, Profile::Release)?;
    let dir = repo.target.join("restored");
    fs::create_dir_all(&dir)?;
    let tools = restore::Tools::new(repo, &kit, Profile::Release, &dir)?;
    let runs = answers::measure(&tools, rounds, &Scratch::new()?.0)?;
    let results = json!({"schema": 1, "rounds": rounds, "runs": runs});
    let text = format!("{results:#}\n");
    let command = "cargo xtask bench restore programs";
    recordings::keep(
        repo,
        "restore_programs.json",
        text.as_bytes(),
        Place::Here,
        command,
    )
}

/// Measures CRIU with image files and with a store on this machine, and replaces the recorded
/// results.
pub fn bench_restore(repo: &Repo, rounds: Option<&str>) -> Result<()> {
    let rounds = rounds.map_or(Ok(ROUNDS), str::parse);
    let rounds = rounds.context("the number of rounds")?;
    let kit = Kit::build(repo, Profile::Release)?;
    let dir = repo.target.join("restored");
    fs::create_dir_all(&dir)?;
    let tools = restore::Tools::new(repo, &kit, Profile::Release, &dir)?;
    let runs = restore::measure(&tools, rounds, &dir)?;
    let results = json!({"schema": 1, "rounds": rounds, "runs": runs});
    let path = repo.root.join("bench/results/restore.json");
    println!("{results:#}");
    fs::write(&path, format!("{results:#}\n"))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// The part of the test that has real programs come back, or one of them.
pub fn test_programs(repo: &Repo, only: Option<&str>) -> Result<Outcome> {
    let kit = kit(repo)?;
    let dir = repo.target.join("restored");
    fs::create_dir_all(&dir)?;
    let tools = restore::Tools::new(repo, &kit, Profile::Dev, &dir)?;
    programs::test(&tools, &Scratch::new()?.0, only)?;
    Ok(Outcome::Passed)
}

/// The part of the test that needs CRIU on this machine.
pub fn test_restore(repo: &Repo) -> Result<Outcome> {
    let kit = kit(repo)?;
    if !kit
        .criu(Bits::Kernel, &["check"])
        .output()?
        .status
        .success()
    {
        let reason = "CRIU does not run on this machine".to_owned();
        return Ok(Outcome::NotHere(reason));
    }
    back_again(repo, &kit, Profile::Dev)?;
    Ok(Outcome::Passed)
}

/// How often each chain is run for the recorded results, unless said otherwise.
const ROUNDS: usize = 3;

/// Measures 64 and 512 MiB in a guest, or tkrzw's engines on this machine, and replaces the
/// recorded results.
pub fn bench(repo: &Repo, asked: &[String]) -> Result<()> {
    let words: Vec<&str> = asked.iter().map(String::as_str).collect();
    if let ["engines", rest @ ..] = words.as_slice() {
        let rounds = rounds(rest.first().copied())?;
        let kit = Kit::build(repo, Profile::Release)?;
        return engines::bench(repo, &kit, rounds, rest.get(1..).unwrap_or_default());
    }
    let rounds = rounds(words.first().copied())?;
    let kit = Kit::build(repo, Profile::Release)?;
    let runs = stats::medians(&in_guest(repo, &kit, rounds, &["64", "512"])?);
    let results = json!({"schema": 2, "guest": "6.12", "rounds": rounds, "runs": runs});
    println!("{results:#}");
    let text = format!("{results:#}\n");
    let command = "cargo xtask bench checkpointer";
    let name = "checkpointer_guest.json";
    recordings::keep(repo, name, text.as_bytes(), Place::Guest, command)
}

/// How often everything is measured.
fn rounds(asked: Option<&str>) -> Result<usize> {
    let rounds = asked.map_or(Ok(ROUNDS), str::parse).ok();
    let rounds = rounds.filter(|&rounds| rounds > 0);
    rounds.with_context(|| format!("'{}' is no number of rounds", asked.unwrap_or_default()))
}

fn in_guest(repo: &Repo, kit: &Kit, rounds: usize, mebibytes: &[&str]) -> Result<Vec<Value>> {
    let this = env::current_exe()?.display().to_string();
    let paths = [&kit.tree, &kit.victims, &kit.preload].map(|path| path.display().to_string());
    let sizes = mebibytes.iter().map(|&size| size.to_owned());
    let mut command = vec![this, "measure-checkpointer".to_owned()];
    command.push(rounds.to_string());
    command.extend(paths.into_iter().chain(sizes));
    let machine = rig::Needs {
        timeout: Duration::from_secs(900),
        memory_mib: 4096,
        modules: MODULES,
        ..rig::Needs::default()
    };
    let output = rig::output(repo, "6.12", &machine, command)?;
    let lines = output
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    lines
        .map(|line| serde_json::from_slice(line).context("the guest's results"))
        .collect()
}

/// In a guest: the chain by the kernel's bits and by ours in turns, one line of JSON each.
pub fn measure_in_guest(args: &[String]) -> Result<()> {
    let [rounds, tree, victims, preload, sizes @ ..] = args else {
        bail!("usage: measure-checkpointer ROUNDS TREE VICTIMS PRELOAD MEBIBYTES ..");
    };
    let rounds: usize = rounds.parse()?;
    let kit = Kit {
        tree: tree.into(),
        victims: victims.into(),
        preload: preload.into(),
    };
    for size in sizes {
        for bits in [Bits::Kernel, Bits::Ours].repeat(rounds) {
            println!(
                "{}",
                chain(&kit, bits, size.parse()?, Path::new("/tmp/checkpointer"))?
            );
        }
    }
    Ok(())
}

/// In a guest with a log: the chain by it, one line of JSON for each technique.
pub fn chain_by_logs(args: &[String]) -> Result<()> {
    let kit = Kit::given(args)?;
    for technique in LOGS {
        fs::write(LOG, "")?;
        let run = chain(
            &kit,
            Bits::Log(technique),
            16,
            Path::new("/tmp/checkpointer"),
        )?;
        let said = fs::read_to_string(LOG)?;
        let is_answered = said.contains(&format!("is answered by {technique}"));
        ensure!(
            is_answered && !said.contains("counts as written"),
            "CRIU by {technique}: {said}"
        );
        println!("{run}");
    }
    Ok(())
}

/// The command that does it, for a guest, and what it needs there.
pub(crate) fn by_logs(repo: &Repo) -> Result<(Vec<String>, &'static [&'static str])> {
    Ok((kit(repo)?.command("chain-by-logs")?, MODULES))
}

/// The command that measures the chain by each kind of bits in such a guest, and what it needs
/// there.
pub(crate) fn measured_by_logs(repo: &Repo) -> Result<(Vec<String>, &'static [&'static str])> {
    let kit = Kit::build(repo, Profile::Release)?;
    Ok((kit.command("measure-checkpointer-logs")?, MODULES))
}

/// The command that measures tkrzw's engines by each kind of bits in such a guest, and what it
/// needs there.
pub(crate) fn engines_by_logs(repo: &Repo) -> Result<(Vec<String>, &'static [&'static str])> {
    engines::are_here()?;
    let kit = Kit::build(repo, Profile::Release)?;
    Ok((kit.command("measure-engines-logs")?, MODULES))
}

/// In such a guest: tkrzw's engines by each kind of bits, one line of JSON each, but for what is
/// known.
pub fn measure_engines_by_logs(args: &[String]) -> Result<()> {
    let (kit, known) = given_with_known(args)?;
    engines::by_logs(&kit, &known)
}

/// In a guest with a log and a clock that counts instructions: the chain by each kind of bits, one
/// line of JSON each, but for what is known.
pub fn measure_by_logs(args: &[String]) -> Result<()> {
    let (kit, known) = given_with_known(args)?;
    for bits in ALL_BITS {
        if known.has(&json!({"bits": bits.name()})) {
            continue;
        }
        println!("{}", chain(&kit, bits, 16, Path::new("/tmp/checkpointer"))?);
    }
    Ok(())
}

/// What a guest is given, the last of it a file of what is recorded.
fn given_with_known(args: &[String]) -> Result<(Kit, Known)> {
    let (known, kit) = args.split_last().context("nothing is given")?;
    Ok((Kit::given(kit)?, Known::read(known)?))
}

/// The techniques that read a log.
const LOGS: [&str; 3] = ["epml", "spml", "spml-search"];

/// All that CRIU can have in a guest with a log.
const ALL_BITS: [Bits; 5] = [
    Bits::Kernel,
    Bits::Ours,
    Bits::Log(LOGS[0]),
    Bits::Log(LOGS[1]),
    Bits::Log(LOGS[2]),
];

/// Takes the program through all phases; what each took. Fails when it is not what it was
/// afterwards.
fn chain(kit: &Kit, bits: Bits, mebibytes: u64, dir: &Path) -> Result<Value> {
    if dir.exists() {
        fs::remove_dir_all(dir)?;
    }
    fs::create_dir_all(dir)?;
    let mut victim = Victim::start(kit, mebibytes, dir)?;
    let mut phases = Vec::new();
    for (number, verb) in ["pre-dump", "pre-dump", "dump"].into_iter().enumerate() {
        if number > 0 {
            victim.step("USR1")?;
        }
        let images = dir.join(number.to_string());
        fs::create_dir(&images)?;
        let (pid, path) = (victim.pid.to_string(), images.display().to_string());
        let mut args = vec![verb, "-t", &pid, "--track-mem", "-D", &path, "-o", "log"];
        let previous = format!("../{}", number.wrapping_sub(1));
        if number > 0 {
            args.extend(["--prev-images-dir", &previous]);
        }
        phases.push(phase(kit, bits, &args, &images)?);
    }
    // Its number is needed again.
    victim.reap()?;
    let images = dir.join("2");
    let path = images.display().to_string();
    let before = Instant::now();
    run(
        kit.criu(bits, &["restore", "-D", &path, "-d", "-o", "restored"]),
        &images.join("restored"),
    )?;
    phases.push(json!({"phase": "restore", "ms": before.elapsed().as_millis() as u64}));
    victim.step("USR2")?;
    victim.step("USR1")?;
    victim.step("USR2")?;
    let pages = mebibytes << 8;
    for phase in &phases[1..3] {
        let written = phase["pages_written"].as_u64().unwrap_or_default();
        ensure!(
            written >= pages / 200 && written <= pages / 10 + 1000,
            "{bits:?}: {written} pages dumped again, of {pages} of which 1% were written: {phase}"
        );
    }
    Ok(json!({"bits": bits.name(), "mebibytes": mebibytes, "phases": phases}))
}

/// One run of CRIU: what it says of itself, and, where a log is, what it has cost.
fn phase(kit: &Kit, bits: Bits, args: &[&str], images: &Path) -> Result<Value> {
    let spent = Spent::begin().ok();
    let before = Instant::now();
    run(kit.criu(bits, args), &images.join("log"))?;
    let ms = before.elapsed().as_millis() as u64;
    let mut phase = stats::read(&images.join("stats-dump"))?;
    phase["phase"] = json!(args[0]);
    phase["ms"] = json!(ms);
    if let Some(spent) = spent {
        spent::add(&mut phase, spent.end()?);
    }
    Ok(phase)
}

fn run(mut criu: Command, log: &Path) -> Result<()> {
    let output = criu.output()?;
    if output.status.success() {
        return Ok(());
    }
    let log = fs::read_to_string(log).unwrap_or_default();
    let errors: Vec<&str> = log.lines().filter(|line| line.contains("Error")).collect();
    bail!("{criu:?}: {}: {}", output.status, errors.join("; "))
}

/// The program that is checkpointed. It is killed in the end, restored or not.
struct Victim {
    child: Child,
    pid: u32,
    report: PathBuf,
    steps: u32,
}

impl Victim {
    fn start(kit: &Kit, mebibytes: u64, dir: &Path) -> Result<Self> {
        let report = dir.join("report");
        // A session of its own, without a terminal.
        let mut command = Command::new("setsid");
        command.arg(kit.victims.join("checkpointed")).arg(&report);
        command.arg(mebibytes.to_string()).stdin(Stdio::null());
        command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/");
        let child = command.spawn().context("cannot run setsid")?;
        let mut victim = Self {
            pid: child.id(),
            child,
            report,
            steps: 0,
        };
        victim.wait()?;
        Ok(victim)
    }

    /// Tells it to do something, and waits until it has.
    fn step(&mut self, signal: &str) -> Result<()> {
        kill(self.pid, signal)?;
        self.wait()
    }

    fn wait(&mut self) -> Result<()> {
        self.steps += 1;
        let begin = Instant::now();
        let wanted = format!("{} ", self.steps);
        loop {
            let said = fs::read_to_string(&self.report).unwrap_or_default();
            if let Some(verdict) = said.strip_prefix(&wanted) {
                ensure!(verdict.trim() == "done", "its memory is not what it was");
                return Ok(());
            }
            ensure!(
                begin.elapsed() < TIMEOUT,
                "the program does not get to step {wanted}: '{said}'"
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn reap(&mut self) -> Result<()> {
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = kill(self.pid, "KILL");
        let _ = self.child.wait();
    }
}

fn kill(pid: u32, signal: &str) -> Result<()> {
    let signal = format!("-{signal}");
    let status = Command::new("kill")
        .args([&signal, &pid.to_string()])
        .stderr(Stdio::null())
        .status();
    ensure!(
        status.context("cannot run kill")?.success(),
        "the program has gone"
    );
    Ok(())
}
