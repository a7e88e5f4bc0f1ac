//! Checkpoints of CRIU that go on: chains by pre-dumps, a checkpoint restored twice, copies, and
//! stores that are full or damaged. The program checks every byte; what restores it is
//! killed in between.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::restore::{Tools, end, goes_on};
use super::{TIMEOUT, Victim, kill};

/// How many checkpoints a chain has that is taken while the program writes.
const CHAIN: u64 = 6;
/// How many copies are started.
const COPIES: usize = 3;
/// How often a restore is killed, and a store damaged.
const KILLS: u32 = 6;
const DAMAGES: u64 = 4;
/// How often is looked whether something has happened.
const POLL: Duration = Duration::from_millis(10);

/// All of it.
pub(super) fn test(tools: &Tools<'_>, mebibytes: u64, dir: &Path) -> Result<()> {
    branches(tools, mebibytes, dir).context("a checkpoint restored twice")?;
    chain(tools, mebibytes, dir).context("a chain while the program writes")?;
    full(tools, mebibytes, dir).context("a full disk")?;
    let store = dir.join("restored-often").display().to_string();
    let mut victim = Victim::start(tools.kit, mebibytes, dir)?;
    let pid = victim.pid.to_string();
    tools.done(&["checkpoint", "--restorable", "-p", &pid, "--store", &store])?;
    copies(tools, &store, &victim.report).context("copies")?;
    kill(victim.pid, "KILL")?;
    victim.reap()?;
    killed(tools, &store, &mut victim).context("a restore that is killed")?;
    damaged(tools, &store, &victim).context("a damaged store")
}

/// Waits until something is so.
fn until(what: &str, is_so: impl Fn() -> bool) -> Result<()> {
    let began = Instant::now();
    while !is_so() {
        ensure!(began.elapsed() < TIMEOUT, "{what}: not within {TIMEOUT:?}");
        thread::sleep(POLL);
    }
    Ok(())
}

/// Whether a process is there and has not ended.
fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
    !state.is_empty() && !state.starts_with(['Z', 'X'])
}

/// Lets a process check its memory whose steps are not known; tells which step that was.
fn checks(pid: u32, report: &Path) -> Result<u32> {
    let mut steps = 0;
    // The first answer may be to what it was doing.
    for _ in 0..2 {
        let _ = fs::remove_file(report);
        kill(pid, "USR2")?;
        until("the program answers", || report.exists() || !is_alive(pid))?;
        let said = fs::read_to_string(report).context("the program has ended")?;
        let (step, verdict) = said.trim().split_once(' ').context("what it says")?;
        ensure!(verdict == "done", "its memory is not what it was");
        steps = step.parse()?;
    }
    Ok(steps)
}

fn parent_of(document: &Value) -> Option<u64> {
    document["parent"].as_u64()
}

/// A-B-C; B is restored twice, goes on and is saved again, and all are what they were.
fn branches(tools: &Tools<'_>, mebibytes: u64, dir: &Path) -> Result<()> {
    let store = dir.join("branches").display().to_string();
    let mut victim = Victim::start(tools.kit, mebibytes, dir)?;
    let pid = victim.pid.to_string();
    let take = |parent: Option<u64>| -> Result<()> {
        let take = ["checkpoint", "--restorable", "-p", &pid];
        let taken = tools.document(&[&take[..], &["--store", &store, "--json"]].concat())?;
        ensure!(parent_of(&taken) == parent, "over {parent:?}: {taken}");
        Ok(())
    };
    let mut steps = Vec::new();
    for number in 1..=3 {
        victim.step("USR1")?;
        take((number > 1).then(|| number - 1))?;
        steps.push(victim.steps);
    }
    kill(victim.pid, "KILL")?;
    victim.reap()?;
    for writes in 1..=2 {
        tools.done(&["restore", &store, "--at", "2"])?;
        victim.steps = steps[1];
        (0..writes).try_for_each(|_| victim.step("USR1"))?;
        take(Some(2))?;
        steps.push(victim.steps);
        end(victim.pid)?;
    }
    let mut restored = |number: usize| -> Result<()> {
        tools.done(&["restore", &store, "--at", &number.to_string()])?;
        victim.steps = steps[number - 1];
        goes_on(&mut victim)?;
        end(victim.pid)
    };
    (1..=5).try_for_each(&mut restored)?;
    tools.done(&["diff", &store, "4", "5"])?;
    tools.done(&["squash", &store, "2", "4"])?;
    [1, 4, 5].into_iter().try_for_each(&mut restored)?;
    tools.done(&["prune", &store, "--keep", "2"])?;
    [4, 5].into_iter().try_for_each(&mut restored)?;
    let images = dir.join("branches-images").display().to_string();
    tools.done(&["export", &store, "--criu", &images])?;
    tools.done(&["verify", &store]).map(drop)
}

/// A chain by pre-dumps at any instants of a program that writes: each is what it was at one.
fn chain(tools: &Tools<'_>, mebibytes: u64, dir: &Path) -> Result<()> {
    let store = dir.join("chain").display().to_string();
    let mut victim = Victim::start(tools.kit, mebibytes, dir)?;
    let (pid, count) = (victim.pid.to_string(), CHAIN.to_string());
    let take = ["checkpoint", "--restorable", "-p", &pid, "--store", &store];
    let mut command = tools.pagetrail(&[&take[..], &["--count", &count, "--json"]].concat());
    let mut taking = command.stdout(Stdio::piped()).spawn()?;
    while taking.try_wait()?.is_none() {
        victim.step("USR1")?;
    }
    let output = taking.wait_with_output()?;
    ensure!(output.status.success(), "{output:?}");
    let lines = output.stdout.split(|byte| *byte == b'\n');
    let taken: Result<Vec<Value>, _> = lines
        .filter(|line| !line.is_empty())
        .map(serde_json::from_slice)
        .collect();
    let taken = taken?;
    ensure!(taken.len() as u64 == CHAIN, "{taken:?}");
    for document in &taken[1..] {
        let pages = |name: &str| document[name].as_u64().unwrap_or_default();
        ensure!(
            pages("copied_pages") < mebibytes << 7,
            "half of all pages came again: {document}"
        );
    }
    kill(victim.pid, "KILL")?;
    victim.reap()?;
    let mut restored = 0;
    for number in 1..=CHAIN {
        let at = number.to_string();
        let output = tools
            .pagetrail(&["restore", &store, "--at", &at])
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if said.contains("report.new open") {
            // Just then it was saying something, in a file that has another name by now.
            continue;
        }
        ensure!(output.status.success(), "checkpoint {number}: {said}");
        restored += 1;
        checks(victim.pid, &victim.report).with_context(|| format!("checkpoint {number}"))?;
        end(victim.pid)?;
    }
    ensure!(restored > 0, "each fell on an instant at which it spoke");
    tools.done(&["verify", &store]).map(drop)
}

/// A file system in memory, which goes with this.
struct Tmpfs(PathBuf);

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// No room for a checkpoint: it fails, the program goes on, and the store is whole.
fn full(tools: &Tools<'_>, mebibytes: u64, dir: &Path) -> Result<()> {
    let small = dir.join("small");
    fs::create_dir_all(&small)?;
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=1m,mode=0700", "none"]);
    if !mount.arg(&small).status()?.success() {
        println!("not here: no file system can be mounted, so none is full");
        return Ok(());
    }
    let _mounted = Tmpfs(small.clone());
    let mut victim = Victim::start(tools.kit, mebibytes, dir)?;
    let (pid, store) = (victim.pid.to_string(), small.join("store"));
    let store = store.display().to_string();
    for count in ["1", "2"] {
        let take = ["checkpoint", "--restorable", "-p", &pid, "--store", &store];
        let output = tools
            .pagetrail(&[&take[..], &["--count", count]].concat())
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.code() == Some(2), "{output:?}");
        ensure!(said.lines().count() == 1, "{said}");
        ensure!(said.contains("No space left"), "{said}");
        goes_on(&mut victim)?;
        let log = tools.done(&["log", &store])?;
        ensure!(log.stdout == b"no checkpoint\n", "{log:?}");
    }
    Ok(())
}

/// Copies beside the original, each with memory of its own; they end together, and by a kill of
/// what keeps them.
fn copies(tools: &Tools<'_>, store: &str, report: &Path) -> Result<()> {
    let count = COPIES.to_string();
    for lazy in [false, true] {
        let mut restore = vec!["restore", store, "--json", "--count", &count];
        restore.extend(lazy.then_some("--lazy"));
        let restored = tools.document(&restore)?;
        let number_of = |copy: &Value, name: &str| copy[name].as_u64().unwrap_or_default() as u32;
        let copies = restored["copies"].as_array().context("copies")?;
        ensure!(copies.len() == COPIES, "{restored}");
        for (copy, writes) in copies.iter().zip(0..) {
            let pid = number_of(copy, "pid");
            for _ in 0..writes {
                kill(pid, "USR1")?;
                thread::sleep(POLL);
            }
            checks(pid, report)?;
        }
        for copy in copies {
            let (first, pid) = (number_of(copy, "first_pid"), number_of(copy, "pid"));
            checks(pid, report)?;
            kill(first, "TERM")?;
            until("a copy ends", || !is_alive(pid) && !is_alive(first))?;
        }
    }
    for number in 0..KILLS {
        let mut restore = tools.pagetrail(&["restore", store, "--count", &count, "--wait"]);
        let mut keeper = restore.stdout(Stdio::null()).spawn()?;
        thread::sleep(Duration::from_millis(150) * number);
        let below = descendants(keeper.id());
        keeper.kill()?;
        keeper.wait()?;
        until("all copies end", || !below.iter().any(|pid| is_alive(*pid)))?;
    }
    Ok(())
}

/// All processes below one.
pub(super) fn descendants(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = text.unwrap_or_default();
    let children = children.split_whitespace().flat_map(str::parse::<u32>);
    let mut all = Vec::new();
    for child in children {
        all.push(child);
        all.extend(descendants(child));
    }
    all
}

/// A restore that is killed: the process is there as it was, or it is not there.
fn killed(tools: &Tools<'_>, store: &str, victim: &mut Victim) -> Result<()> {
    for number in 0..KILLS {
        let lazy = number % 2 == 1;
        let mut restore = vec!["restore", store];
        restore.extend(lazy.then_some("--lazy"));
        let mut command = tools.pagetrail(&restore);
        let mut child: Child = command.stdout(Stdio::null()).spawn()?;
        thread::sleep(Duration::from_millis(40) * number);
        let below = descendants(child.id());
        child.kill()?;
        child.wait()?;
        let is_other = |pid: &&u32| **pid != victim.pid;
        until("CRIU ends", || {
            !below.iter().filter(is_other).any(|pid| is_alive(*pid))
        })?;
        let outcome = checks(victim.pid, &victim.report);
        if !is_alive(victim.pid) {
            // It has not come to be, or lacked pages.
            let _ = end(victim.pid);
            continue;
        }
        outcome.with_context(|| format!("killed at {number}"))?;
        end(victim.pid)?;
    }
    Ok(())
}

/// A changed byte: the program does not run, or, started lazily, ends; and why is said.
fn damaged(tools: &Tools<'_>, store: &str, victim: &Victim) -> Result<()> {
    let packs = fs::read_dir(store)?.map(|entry| Ok(entry?.path()));
    let packs: Vec<PathBuf> = packs.collect::<Result<_>>()?;
    let is_pack = |path: &&PathBuf| path.extension().is_some_and(|it| it == "pack");
    let pack = packs.iter().find(is_pack).context("a pack")?;
    let bytes = fs::read(pack)?;
    let mut refused = 0;
    for at in 1..=DAMAGES {
        let mut changed = bytes.clone();
        changed[(bytes.len() as u64 * at / (DAMAGES + 2)) as usize] ^= 1;
        fs::write(pack, changed)?;
        for lazy in [false, true] {
            let mut restore = vec!["restore", store];
            restore.extend(lazy.then_some("--lazy"));
            let output = tools.pagetrail(&restore).output()?;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            ensure!(output.status.code() == Some(2), "{output:?}");
            ensure!(said.contains("damaged"), "{said}");
            refused += u32::from(output.stdout.is_empty());
            until("the program ends", || {
                // It ends when it touches what it lacks.
                let _ = kill(victim.pid, "USR2");
                !is_alive(victim.pid)
            })?;
            let _ = end(victim.pid);
        }
    }
    ensure!(refused >= DAMAGES as u32, "it ran with damaged pages");
    fs::write(pack, bytes)?;
    tools.done(&["verify", store]).map(drop)
}
