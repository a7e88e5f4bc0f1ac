//! The target: this program again, with so much of something.
#![allow(unsafe_code, reason = "the target writes its memory by address")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::str::FromStr;

use pagetrail::page_size;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};

use crate::Outcome;

/// Pages that are written in each round.
pub(crate) const WRITTEN: u64 = 100;
/// Mappings that a process has besides.
const MAPPINGS_OF_ITS_OWN: u64 = 200;

/// What there is so much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Resident,
    Sparse,
    Mappings,
    Threads,
    Processes,
}

impl Kind {
    const ALL: [Self; 5] = [
        Self::Resident,
        Self::Sparse,
        Self::Mappings,
        Self::Threads,
        Self::Processes,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Resident => "memory in use",
            Self::Sparse => "memory that is reserved",
            Self::Mappings => "mappings",
            Self::Threads => "threads",
            Self::Processes => "processes",
        }
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| format!("nothing is called {text}"))
    }
}

/// Why this machine has no target of a size.
pub(crate) fn lacks(kind: Kind, size: u64) -> Option<String> {
    let number = |path: &str| -> Option<u64> {
        let text = std::fs::read_to_string(path).ok()?;
        text.split_whitespace().find_map(|word| word.parse().ok())
    };
    match kind {
        Kind::Mappings => {
            let most = number("/proc/sys/vm/max_map_count")?;
            (2 * size + MAPPINGS_OF_ITS_OWN > most)
                .then(|| format!("vm.max_map_count is {most}, and two are needed for each"))
        }
        Kind::Resident => {
            let total = number("/proc/meminfo")?;
            (size * 1024 * 2 > total).then(|| "more than half of this machine's memory".into())
        }
        Kind::Sparse | Kind::Threads | Kind::Processes => None,
    }
}

/// A target that runs; it is killed when dropped.
pub(crate) struct Victim {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    pages: Vec<u64>,
}

impl Victim {
    pub(crate) fn start(kind: Kind, size: u64) -> Outcome<Self> {
        let mut child = Command::new("/proc/self/exe")
            .args(["target", kind.name(), &size.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take().ok_or("no input")?;
        let stdout = child.stdout.take().ok_or("no output")?;
        let mut victim = Self {
            child,
            stdin,
            stdout: BufReader::new(stdout),
            pages: Vec::new(),
        };
        let addresses = victim.line()?;
        let addresses = addresses.split_whitespace();
        let pages: Result<Vec<u64>, _> = addresses.map(str::parse).collect();
        victim.pages = pages?;
        Ok(victim)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        match self.stdout.read_line(&mut line)? {
            0 => Err("the target has ended".into()),
            _ => Ok(line),
        }
    }

    /// Has it write its pages; which they are.
    pub(crate) fn write(&mut self) -> Outcome<&[u64]> {
        self.stdin.write_all(b"\n")?;
        self.line()?;
        Ok(&self.pages)
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Does nothing until its parent is gone.
pub(crate) fn idle() -> Outcome<()> {
    std::io::stdin().read_line(&mut String::new())?;
    Ok(())
}

/// Makes so much of something, and writes its pages whenever a line comes.
pub(crate) fn run(kind: Kind, size: u64) -> Outcome<()> {
    let mut children = Vec::new();
    let places = match kind {
        Kind::Resident | Kind::Sparse => memory(size << 20, kind == Kind::Resident)?,
        Kind::Mappings => mappings(size)?,
        Kind::Threads => {
            for _ in 1..size {
                // They end with the process.
                std::thread::Builder::new()
                    .stack_size(64 << 10)
                    .spawn(std::thread::park)?;
            }
            memory(1 << 20, false)?
        }
        Kind::Processes => {
            for _ in 1..size {
                let mut command = Command::new("/proc/self/exe");
                children.push(command.arg("idle").stdin(Stdio::piped()).spawn()?);
            }
            memory(1 << 20, false)?
        }
    };
    let mut out = std::io::stdout();
    let addresses = places.iter().map(|place| (*place as u64).to_string());
    writeln!(out, "{}", addresses.collect::<Vec<_>>().join(" "))?;
    let mut value = 1;
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line)? > 0 {
        value += 1;
        for place in &places {
            // SAFETY: a place is in memory that is mapped writable for the life of the process,
            // and this thread alone accesses it.
            unsafe { place.write_volatile(value) };
        }
        writeln!(out, "done")?;
    }
    // Their input ends with this process.
    drop(children);
    Ok(())
}

/// Places in memory of a size, spread evenly; all of it is touched if it is to be in use.
fn memory(bytes: u64, in_use: bool) -> Outcome<Vec<*mut u64>> {
    let page = page_size();
    let base = mapped(bytes, MapFlags::PRIVATE | MapFlags::NORESERVE)?;
    let pages = bytes / page;
    let at = |index: u64| base.wrapping_byte_add((index * page) as usize);
    if in_use {
        for index in 0..pages {
            // SAFETY: within the mapping, which nobody else knows of.
            unsafe { at(index).write_volatile(1) };
        }
    }
    let count = WRITTEN.min(pages);
    Ok((0..count)
        .map(|index| at(index * (pages / count)))
        .collect())
}

/// A place in each of so many mappings, which differ from their neighbours so that they cannot
/// merge.
fn mappings(count: u64) -> Outcome<Vec<*mut u64>> {
    let page = page_size();
    let base = mapped(2 * count * page, MapFlags::PRIVATE)?;
    let at = |index: u64| base.wrapping_byte_add((index * page) as usize);
    for index in 0..count {
        // SAFETY: the second page of each pair is in the mapping and is never accessed.
        unsafe { mprotect(at(2 * index + 1).cast(), page as usize, MprotectFlags::READ)? };
        // SAFETY: the first one is writable.
        unsafe { at(2 * index).write_volatile(1) };
    }
    let written = WRITTEN.min(count);
    let step = count / written;
    Ok((0..written).map(|index| at(2 * index * step)).collect())
}

fn mapped(bytes: u64, flags: MapFlags) -> Outcome<*mut u64> {
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice overlaps no existing memory.
    let base = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes as usize, rights, flags)? };
    Ok(base.cast())
}
