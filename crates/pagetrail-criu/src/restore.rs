//! [`Restored`]: a process that CRIU has started anew from a checkpoint of its own.
//!
//! What CRIU would fail at is found out first: a file that has changed, a PID that somebody has.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use pagetrail_checkpoint::criu::{
    LazyPages, SocketAddress, Written, regular_files, socket_addresses,
};
use pagetrail_checkpoint::{Image, Store};

use crate::engine::{Engine, reason};
use crate::error::{Error, Result};
use crate::lazy::Lazy;
use crate::lineage;
use crate::scratch::Scratch;

/// CRIU's command.
const VERB: &str = "restore";
/// The file in which CRIU says the process that it started.
const PID_FILE: &str = "pagetrail.pid";
/// The PID of the first process of a namespace, with which all others end.
const FIRST_PID: u32 = 1;
/// Without this a checkpoint cannot be restored from the store alone.
const INVENTORY: &str = "inventory.img";
/// Images of files that have no name any more, and of mounts of their own: paths say nothing then.
const NAMELESS: &[&str] = &["remap-fpath", "mountpoints-", "ghost-file"];

/// How a process is restored.
#[derive(Clone, Copy, Debug, Default)]
pub struct RestoreOptions<'a> {
    /// Start the process at once, and give it its pages as it touches them.
    pub lazy: bool,
    /// Arguments for CRIU, as they are.
    pub passed_on: &'a [String],
}

/// A process that runs, and what it still needs. Dropped before it has that, the process ends.
#[derive(Debug)]
pub struct Restored {
    pid: u32,
    written: Written,
    began: Instant,
    running: Duration,
    lazy: Option<Lazy>,
    scratch: Scratch,
}

/// What it took to give a process all its pages.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Given {
    /// Pages that it was given after it was started.
    pub pages: u64,
    /// The time from the beginning of the restore.
    pub elapsed: Duration,
}

impl Restored {
    /// Starts the process of a checkpoint of `store`, once all is there that it needs.
    pub fn start(
        engine: &Engine,
        store: &Store,
        mut image: Image,
        options: RestoreOptions<'_>,
    ) -> Result<Self> {
        let names = check_kind(&mut image)?;
        check_pids(&image)?;
        let began = Instant::now();
        let number = image.manifest().number;
        let scratch = Scratch::new()?;
        let pages = match options.lazy {
            true => LazyPages::LeftToServer,
            false => LazyPages::Written,
        };
        let written = image.export_criu(scratch.path(), pages)?;
        if !names.iter().any(|name| is_nameless(name)) {
            check_files(scratch.path())?;
        }
        let mut pids = image.criu_processes();
        let has_namespace = pids.contains(&FIRST_PID);
        if has_namespace {
            pids.clear();
        }
        let mut lazy = match options.lazy {
            true => Some(Lazy::start(engine, scratch.path(), store, number, &pids)?),
            false => None,
        };
        let mut command = engine.command(VERB, scratch.path());
        command.args(["--restore-detached", "--pidfile", PID_FILE]);
        command.args(options.lazy.then_some("--lazy-pages"));
        command.args(options.passed_on);
        let status = command.status().map_err(Error::io("cannot run CRIU"))?;
        if !status.success() {
            return Err(Error::Failed {
                what: format!("CRIU cannot restore checkpoint {number}"),
                reason: reason(VERB, scratch.path()),
            });
        }
        let running = began.elapsed();
        let pid = fs::read_to_string(scratch.path().join(PID_FILE)).unwrap_or_default();
        let pid: u32 = pid.trim().parse().unwrap_or(0);
        if let Some(lazy) = &mut lazy {
            if has_namespace {
                pids.push(pid);
            }
            lazy.watch(&pids)?;
        }
        lineage::note(pid, image.manifest().number, image.manifest().id);
        Ok(Self {
            pid,
            written,
            began,
            running,
            lazy,
            scratch,
        })
    }

    /// The process, by its PID here.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// What was handed to CRIU.
    pub fn written(&self) -> Written {
        self.written
    }

    /// The time from the beginning of the restore until the process ran.
    pub fn running(&self) -> Duration {
        self.running
    }

    /// Waits until the process has all its pages. Where it cannot get them it is ended.
    pub fn finish(self) -> Result<Given> {
        let pages = match self.lazy {
            Some(lazy) => lazy.finish(self.scratch.path())?,
            None => 0,
        };
        Ok(Given {
            pages,
            elapsed: self.began.elapsed(),
        })
    }
}

fn is_nameless(name: &str) -> bool {
    NAMELESS.iter().any(|prefix| name.starts_with(prefix))
}

/// Refuses checkpoints that hold no more than pages; gives the names of the other files.
pub fn check_kind(image: &mut Image) -> Result<Vec<String>> {
    let number = image.manifest().number;
    match image.criu_files()? {
        None => Err(Error::NotRestorable { number }),
        Some(names) if !names.iter().any(|name| name == INVENTORY) => {
            Err(Error::PagesAlone { number })
        }
        Some(names) => Ok(names),
    }
}

/// Refuses to make several copies of a program with an address that the first would take from the
/// others; gives the paths of sockets, which the last copy gets.
pub fn check_addresses(image: &mut Image) -> Result<Vec<SocketAddress>> {
    let files = image.criu_file("files.img")?;
    let addresses = socket_addresses(&files.unwrap_or_default()).unwrap_or_default();
    let is_path = |address: &SocketAddress| matches!(address, SocketAddress::Path(_));
    match addresses.iter().find(|address| !is_path(address)) {
        Some(address) => Err(Error::Address {
            address: address.clone(),
        }),
        None => Ok(addresses),
    }
}

/// Refuses to restore processes whose PIDs are taken.
fn check_pids(image: &Image) -> Result<()> {
    let pids = image.criu_processes();
    if pids.contains(&FIRST_PID) {
        // They have a PID namespace of their own.
        return Ok(());
    }
    let is_taken = |pid: &&u32| Path::new(&format!("/proc/{pid}")).exists();
    match pids.iter().find(is_taken) {
        None => Ok(()),
        Some(&pid) => Err(Error::PidTaken {
            number: image.manifest().number,
            pid,
            holder: holder(pid),
        }),
    }
}

/// Who has a PID.
fn holder(pid: u32) -> &'static str {
    // The state follows the name, which may hold anything (`proc_pid_stat(5)`).
    let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat).into_owned();
    let rest = stat.rsplit(')').next().unwrap_or_default();
    match rest.trim_start().starts_with('Z') {
        true => "a process that has ended, for which its parent has not waited,",
        false => "another process",
    }
}

/// Refuses files that are not what they were: CRIU compares their sizes.
fn check_files(directory: &Path) -> Result<()> {
    let image = fs::read(directory.join("files.img")).unwrap_or_default();
    for file in regular_files(&image).unwrap_or_default() {
        let reason = match fs::metadata(&file.name) {
            Err(error) => format!("which cannot be opened now: {error}"),
            Ok(now) => match file.bytes {
                Some(then) if now.len() != then => format!(
                    "which has changed since: it has {} bytes now and had {then}",
                    now.len()
                ),
                _ => continue,
            },
        };
        let name = file.name;
        return Err(Error::File { name, reason });
    }
    Ok(())
}
