//! A process that comes back: CRIU's dumps into a store and out of it again, in full and lazily, by
//! our page server with CRIU's own commands and by `checkpoint --restorable` and `restore`. The
//! program checks every byte; the tracker is killed in between.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, WaitOptions, set_child_subreaper, waitpid};
use serde_json::{Value, json};

use pagetrail_steps::products::{Product, Profile};
use pagetrail_steps::repo::Repo;

use super::{Bits, Kit, Victim, kill, run};

/// The sizes of the program's memory in a measurement, in MiB.
const MEASURED_MIB: &[u64] = &[64, 512];
/// How often a checkpoint is killed.
const KILLS: u32 = 6;

/// CRIU and the command, as a user has them.
pub(super) struct Tools<'a> {
    pub(super) kit: &'a Kit,
    pagetrail: PathBuf,
    /// With a `criu` in it.
    programs: PathBuf,
}

impl<'a> Tools<'a> {
    /// Builds the command, and puts CRIU where it finds it. What restored processes leave is for
    /// this process to reap from now on: their PIDs are needed again.
    pub(super) fn new(repo: &Repo, kit: &'a Kit, profile: Profile, dir: &Path) -> Result<Self> {
        let pagetrail = Product::Command.build(repo, profile)?;
        let programs = dir.join("bin");
        fs::create_dir_all(&programs)?;
        let libraries = kit.tree.join("usr/lib/x86_64-linux-gnu");
        let script = format!(
            "#!/bin/sh\nexec '{loader}' --library-path '{libraries}' '{criu}' \"$@\"\n",
            loader = libraries.join("ld-linux-x86-64.so.2").display(),
            libraries = libraries.display(),
            criu = kit.tree.join("usr/sbin/criu").display(),
        );
        let criu = programs.join("criu");
        fs::write(&criu, script)?;
        fs::set_permissions(&criu, fs::Permissions::from_mode(0o755))?;
        set_child_subreaper(Some(Pid::INIT)).context("cannot reap restored processes")?;
        Ok(Self {
            kit,
            pagetrail,
            programs,
        })
    }

    pub(super) fn pagetrail(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.pagetrail);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.programs.display()));
        command.args(args).stdin(Stdio::null());
        command
    }

    pub(super) fn done(&self, args: &[&str]) -> Result<Output> {
        let output = self.pagetrail(args).output()?;
        ensure!(
            output.status.success(),
            "pagetrail {}: {}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(output)
    }

    pub(super) fn document(&self, args: &[&str]) -> Result<Value> {
        let output = self.done(args)?;
        serde_json::from_slice(&output.stdout).context("its document")
    }
}

/// Ends a process that was restored, and lets its PID be used again.
pub(super) fn end(pid: u32) -> Result<()> {
    kill(pid, "KILL")?;
    let pid = Pid::from_raw(pid as i32).context("a PID")?;
    waitpid(Some(pid), WaitOptions::empty()).context("cannot reap a restored process")?;
    Ok(())
}

/// The page server, which ends with this.
struct Server {
    child: Child,
    stderr: BufReader<ChildStderr>,
    port: String,
}

impl Server {
    fn start(tools: &Tools<'_>, store: &str) -> Result<Self> {
        let mut command = tools.pagetrail(&["page-server", "--listen", "127.0.0.1:0", "--store"]);
        let command = command.arg(store).stdout(Stdio::null());
        let mut child = command.stderr(Stdio::piped()).spawn()?;
        let stderr = child.stderr.take().context("its messages")?;
        let mut server = Self {
            child,
            stderr: BufReader::new(stderr),
            port: String::new(),
        };
        let mut line = String::new();
        server.stderr.read_line(&mut line)?;
        let port = line.trim().rsplit_once(':').map(|(_, port)| port);
        server.port = port.context("the page server's port")?.to_owned();
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program checks its memory, writes, and checks again.
pub(super) fn goes_on(victim: &mut Victim) -> Result<()> {
    for signal in ["USR2", "USR1", "USR2"] {
        victim.step(signal)?;
    }
    Ok(())
}

/// CRIU's own commands with our page server: dumped, ended, restored; twice for both ways.
fn by_page_server(tools: &Tools<'_>, mebibytes: u64, dir: &Path) -> Result<()> {
    let store = dir.join("served").display().to_string();
    for lazy in [false, true] {
        let images = dir.join(format!("served-{lazy}"));
        fs::create_dir_all(&images)?;
        let mut victim = Victim::start(tools.kit, mebibytes, dir)?;
        let server = Server::start(tools, &store)?;
        let images = images.display().to_string();
        let remote = [
            "--page-server",
            "--address",
            "127.0.0.1",
            "--port",
            &server.port,
        ];
        let pid = victim.pid.to_string();
        let dump = [
            &["dump", "-t", &pid, "-D", &images, "-o", "log"][..],
            &remote,
        ]
        .concat();
        run(
            tools.kit.criu(Bits::Kernel, &dump),
            &Path::new(&images).join("log"),
        )?;
        victim.reap()?;
        let mut export = vec!["export", &store, "--criu", &images];
        export.extend(lazy.then_some("--lazy"));
        tools.done(&export)?;
        let mut restore = vec!["restore", "-D", &images, "-d", "-o", "restored"];
        let mut pages = None;
        if lazy {
            let args = [&["lazy-pages", "-D", &images, "-o", "pages"][..], &remote].concat();
            pages = Some(tools.kit.criu(Bits::Kernel, &args).spawn()?);
            restore.push("--lazy-pages");
            let began = Instant::now();
            while !Path::new(&images).join("lazy-pages.socket").exists() {
                ensure!(
                    began.elapsed() < super::TIMEOUT,
                    "criu lazy-pages does not start"
                );
                thread::sleep(Duration::from_millis(5));
            }
        }
        let restored = run(
            tools.kit.criu(Bits::Kernel, &restore),
            &Path::new(&images).join("restored"),
        );
        let outcome = restored.and_then(|()| goes_on(&mut victim));
        if let Some(mut pages) = pages {
            if outcome.is_err() {
                let _ = pages.kill();
            }
            let status = pages.wait()?;
            ensure!(
                outcome.is_err() || status.success(),
                "criu lazy-pages: {status}"
            );
        }
        outcome?;
        end(victim.pid)?;
    }
    tools.done(&["verify", &store]).map(drop)
}

/// `checkpoint --restorable` and `restore`: a chain, of which each is restored in both ways.
fn by_commands(tools: &Tools<'_>, mebibytes: u64, dir: &Path) -> Result<()> {
    let store = dir.join("restorable").display().to_string();
    let mut victim = Victim::start(tools.kit, mebibytes, dir)?;
    let pid = victim.pid.to_string();
    let take = [
        "checkpoint",
        "--restorable",
        "-p",
        &pid,
        "--store",
        &store,
        "--json",
    ];
    let mut steps = Vec::new();
    for number in 1..=3 {
        victim.step("USR1")?;
        let taken = tools.document(&take)?;
        ensure!(taken["number"] == number, "{taken}");
        steps.push(victim.steps);
    }
    // It goes on as if nothing had been.
    goes_on(&mut victim)?;
    let taken = tools.pagetrail(&["restore", &store]).output()?;
    let said = String::from_utf8_lossy(&taken.stderr).into_owned();
    ensure!(
        taken.status.code() == Some(2) && said.contains(&format!("needs PID {pid}")),
        "a PID that is taken: {said}"
    );
    kill(victim.pid, "KILL")?;
    victim.reap()?;
    for (number, steps) in (1..).zip(steps) {
        for lazy in [false, true] {
            let at = number.to_string();
            let mut restore = vec!["restore", &store, "--json", "--at", &at];
            restore.extend(lazy.then_some("--lazy"));
            let restored = tools.document(&restore)?;
            ensure!(restored["pid"] == victim.pid, "{restored}");
            ensure!((restored["given_pages"] != 0) == lazy, "{restored}");
            victim.steps = steps;
            goes_on(&mut victim)?;
            end(victim.pid)?;
        }
    }
    tools.done(&["verify", &store]).map(drop)
}

/// `checkpoint --restorable` killed in between: the program goes on, and the store is whole.
fn killed(tools: &Tools<'_>, mebibytes: u64, dir: &Path) -> Result<()> {
    let store = dir.join("killed").display().to_string();
    let mut victim = Victim::start(tools.kit, mebibytes, dir)?;
    let pid = victim.pid.to_string();
    let take = ["checkpoint", "--restorable", "-p", &pid, "--store", &store];
    let began = Instant::now();
    tools.done(&take)?;
    let whole = began.elapsed();
    for number in 1..=KILLS {
        let mut child = tools.pagetrail(&take).stdout(Stdio::null()).spawn()?;
        thread::sleep(whole * number / (KILLS + 1));
        child.kill()?;
        child.wait()?;
        // CRIU undoes what it did by itself, and then the program answers.
        goes_on(&mut victim).with_context(|| format!("killed at {number}/{}", KILLS + 1))?;
        tools.done(&["verify", &store])?;
    }
    let began = Instant::now();
    // The CRIU that was left alone may still be at it.
    while let Err(error) = tools.done(&take) {
        ensure!(began.elapsed() < super::TIMEOUT, error);
        thread::sleep(Duration::from_millis(50));
    }
    goes_on(&mut victim)
}

/// The short form.
pub(super) fn test(tools: &Tools<'_>, mebibytes: u64, dir: &Path) -> Result<()> {
    by_page_server(tools, mebibytes, dir).context("by page-server")?;
    by_commands(tools, mebibytes, dir).context("by checkpoint --restorable")?;
    killed(tools, mebibytes, dir).context("killed")
}

/// What each way takes, in turns; medians.
pub(super) fn measure(tools: &Tools<'_>, rounds: usize, dir: &Path) -> Result<Vec<Value>> {
    let mut found = Vec::new();
    for &mebibytes in MEASURED_MIB {
        for way in ["criu", "pagetrail"] {
            found.push((mebibytes, way, Vec::new()));
        }
        for _ in 0..rounds {
            for (_, way, runs) in found.iter_mut().filter(|(size, ..)| *size == mebibytes) {
                let _ = fs::remove_dir_all(dir.join("measured"));
                let dir = dir.join("measured");
                fs::create_dir_all(&dir)?;
                runs.push(match *way {
                    "criu" => alone(tools, mebibytes, &dir)?,
                    _ => ours(tools, mebibytes, &dir)?,
                });
            }
        }
    }
    let runs = found.into_iter().map(|(mebibytes, way, runs)| {
        let mut median = json!({"way": way, "mebibytes": mebibytes});
        for name in [
            "dump_ms",
            "frozen_ms",
            "bytes",
            "chain_bytes",
            "full_ms",
            "lazy_ms",
        ] {
            let mut all: Vec<u64> = runs.iter().filter_map(|run| run[name].as_u64()).collect();
            all.sort_unstable();
            median[name] = json!(all[all.len() / 2]);
        }
        median
    });
    Ok(runs.collect())
}

/// How many checkpoints the chain has whose bytes are counted.
const CHAIN: u32 = 20;

fn bytes_in(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        bytes += match entry.file_type()?.is_dir() {
            true => bytes_in(&entry.path())?,
            false => entry.metadata()?.len(),
        };
    }
    Ok(bytes)
}

/// CRIU with image files, as it is used without us: a directory for each dump.
fn alone(tools: &Tools<'_>, mebibytes: u64, dir: &Path) -> Result<Value> {
    let mut victim = Victim::start(tools.kit, mebibytes, dir)?;
    let pid = victim.pid.to_string();
    let images = |number: u32| dir.join(number.to_string()).display().to_string();
    let (mut result, mut chain) = (json!({}), 0);
    for number in 1..=CHAIN {
        victim.step("USR1")?;
        let images = images(number);
        fs::create_dir(&images)?;
        let args = [
            "dump",
            "--leave-running",
            "-t",
            &pid,
            "-D",
            &images,
            "-o",
            "log",
        ];
        let began = Instant::now();
        run(
            tools.kit.criu(Bits::Kernel, &args),
            &Path::new(&images).join("log"),
        )?;
        if number == 1 {
            result["dump_ms"] = json!(began.elapsed().as_millis() as u64);
            let stats = super::stats::read(&Path::new(&images).join("stats-dump"))?;
            result["frozen_ms"] = json!(stats["frozen_us"].as_u64().unwrap_or_default() / 1000);
            result["bytes"] = json!(bytes_in(Path::new(&images))?);
        }
        chain += bytes_in(Path::new(&images))?;
        if number < CHAIN {
            fs::remove_dir_all(&images)?;
        }
    }
    result["chain_bytes"] = json!(chain);
    kill(victim.pid, "KILL")?;
    victim.reap()?;
    let images = images(CHAIN);
    for (name, lazy) in [("full_ms", false), ("lazy_ms", true)] {
        let mut args = vec!["restore", "-D", &images, "-d", "-o", "restored"];
        let mut pages = None;
        let began = Instant::now();
        if lazy {
            let lazy = ["lazy-pages", "-D", &images, "-o", "pages"];
            pages = Some(tools.kit.criu(Bits::Kernel, &lazy).spawn()?);
            args.push("--lazy-pages");
            while !Path::new(&images).join("lazy-pages.socket").exists() {
                ensure!(
                    began.elapsed() < super::TIMEOUT,
                    "criu lazy-pages does not start"
                );
                thread::sleep(Duration::from_millis(1));
            }
        }
        run(
            tools.kit.criu(Bits::Kernel, &args),
            &Path::new(&images).join("restored"),
        )?;
        result[name] = json!(began.elapsed().as_millis() as u64);
        if let Some(mut pages) = pages {
            pages.wait()?;
        }
        end(victim.pid)?;
    }
    Ok(result)
}

/// Our commands, with CRIU beneath.
fn ours(tools: &Tools<'_>, mebibytes: u64, dir: &Path) -> Result<Value> {
    let mut victim = Victim::start(tools.kit, mebibytes, dir)?;
    let (pid, path) = (victim.pid.to_string(), dir.join("store"));
    let store = path.display().to_string();
    let take = [
        "checkpoint",
        "--restorable",
        "-p",
        &pid,
        "--store",
        &store,
        "--json",
    ];
    let mut result = json!({});
    for number in 1..=CHAIN {
        victim.step("USR1")?;
        let began = Instant::now();
        let taken = tools.document(&take)?;
        if number == 1 {
            result["dump_ms"] = json!(began.elapsed().as_millis() as u64);
            result["frozen_ms"] = json!(taken["pause_ns"].as_u64().unwrap_or_default() / 1_000_000);
            result["bytes"] = json!(bytes_in(&path)?);
        }
    }
    result["chain_bytes"] = json!(bytes_in(&path)?);
    kill(victim.pid, "KILL")?;
    victim.reap()?;
    for (name, lazy) in [("full_ms", false), ("lazy_ms", true)] {
        let mut restore = vec!["restore", &store, "--json"];
        restore.extend(lazy.then_some("--lazy"));
        let restored = tools.document(&restore)?;
        let Some(running) = restored["running_ns"].as_u64() else {
            bail!("{restored}");
        };
        result[name] = json!(running / 1_000_000);
        end(victim.pid)?;
    }
    Ok(result)
}
