//! [`Writing`]: the tracker's end of a [`super::writer`].

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pagetrail::{Memory, PageRange, PageSet, Target, page_size};

use super::definition::Workload;
use super::writer::{MARK_BYTES, WORDS, mark};

/// Between two looks at how far a writer is.
const LOOK_EVERY: Duration = Duration::from_micros(300);

/// A writer at work; it ends when this is dropped.
pub(crate) struct Writing {
    process: Child,
    memory: Memory,
    range: PageRange,
    words: u64,
    marks: u64,
    epoch: u64,
    buffer: Vec<u8>,
}

/// How far a writer has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// Operations.
    pub(crate) done: u64,
    /// Its processor time.
    pub(crate) cpu_ns: u64,
    /// Whether it does nothing for a while.
    pub(crate) idle: bool,
    /// Its page faults.
    pub(crate) faults: u64,
}

impl Writing {
    /// Starts it; it has populated its memory when this returns.
    pub(crate) fn start(workload: &Workload) -> Result<Self> {
        let mut process = Command::new("/proc/self/exe")
            .args(["bench", "--as-workload", &serde_json::to_string(workload)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the writer")?;
        let mut line = String::new();
        let output = process.stdout.take().context("the writer has no output")?;
        BufReader::new(output).read_line(&mut line)?;
        let numbers: Vec<u64> = line
            .split_whitespace()
            .filter_map(|word| u64::from_str_radix(word, 16).ok())
            .collect();
        let [start, end, words, marks] = numbers[..] else {
            anyhow::bail!("the writer says '{line}'");
        };
        Ok(Self {
            memory: Memory::of(process.id())?,
            process,
            range: PageRange::new(start, end).context("the writer has no memory")?,
            words,
            marks,
            epoch: 1,
            buffer: Vec::new(),
        })
    }

    pub(crate) fn target(&self) -> Result<Target> {
        Ok(Target::process(self.process.id())?)
    }

    /// The memory that the workload writes to.
    pub(crate) fn range(&self) -> PageRange {
        self.range
    }

    pub(crate) fn progress(&mut self) -> Result<Progress> {
        self.read(self.words, WORDS as u64 * 8)?;
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&self.buffer[at * 8..][..8]);
            u64::from_ne_bytes(bytes)
        };
        let (done, cpu_ns, idle) = (word(1), word(2), word(3) != 0);
        Ok(Progress {
            done,
            cpu_ns,
            idle,
            faults: minor_faults(self.process.id())?,
        })
    }

    /// Waits until so many operations are done, or until it has been idle for `timeout`.
    pub(crate) fn wait(&mut self, done: u64, timeout: Duration) -> Result<()> {
        let mut since = Instant::now();
        loop {
            let progress = self.progress()?;
            if progress.done >= done || (progress.idle && since.elapsed() >= timeout) {
                return Ok(());
            }
            if !progress.idle {
                since = Instant::now();
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Begins an epoch; gives the pages that were written in the one before.
    pub(crate) fn begin_epoch(&mut self) -> Result<PageSet> {
        let past = mark(self.epoch).to_ne_bytes();
        self.epoch += 1;
        self.memory.write(self.words, &self.epoch.to_ne_bytes())?;
        self.read(self.marks, self.range.page_count() * MARK_BYTES as u64)?;
        let pages = (self.range.start()..).step_by(page_size() as usize);
        let marks = self.buffer.chunks_exact(MARK_BYTES);
        let marked = pages.zip(marks).filter(|(_, mark)| *mark == past);
        let mut written = PageSet::new();
        for (start, _) in marked {
            if let Some(page) = PageRange::new(start, start + page_size()) {
                written.insert(page);
            }
        }
        Ok(written)
    }

    /// Copies so many bytes from an address to the front of the buffer.
    fn read(&mut self, address: u64, bytes: u64) -> Result<()> {
        let bytes_of_pages = PageRange::new(address, address + bytes)
            .context("nothing to read")?
            .align_outwards(page_size());
        self.buffer.resize(bytes_of_pages.bytes() as usize, 0);
        self.memory.read(&[bytes_of_pages], &mut self.buffer)?;
        let first = (address - bytes_of_pages.start()) as usize;
        self.buffer.copy_within(first..first + bytes as usize, 0);
        self.buffer.truncate(bytes as usize);
        Ok(())
    }
}

/// `minflt` of `proc_pid_stat(5)`.
pub(super) fn minor_faults(pid: u32) -> Result<u64> {
    let [faults] = stat(pid, [7])?;
    Ok(faults)
}

/// What children of a process took that have ended and were waited for, and theirs.
pub(super) struct Children {
    pub(super) faults: u64,
    pub(super) cpu: Duration,
}

/// `cminflt`, `cutime` and `cstime` of `proc_pid_stat(5)`.
pub(super) fn children_of(pid: u32) -> Result<Children> {
    let [faults, user, system] = stat(pid, [8, 13, 14])?;
    let ticks = rustix::param::clock_ticks_per_second();
    Ok(Children {
        faults,
        cpu: Duration::from_secs_f64((user + system) as f64 / ticks as f64),
    })
}

/// Numbers of `/proc/PID/stat`, counted from the state of the process on.
fn stat<const N: usize>(pid: u32, fields: [usize; N]) -> Result<[u64; N]> {
    let stat = std::fs::read(format!("/proc/{pid}/stat"))?;
    let stat = String::from_utf8_lossy(&stat);
    let after_name: Vec<&str> = match stat.rsplit_once(')') {
        Some((_, numbers)) => numbers.split_whitespace().collect(),
        None => Vec::new(),
    };
    let number = |field: usize| after_name.get(field).and_then(|text| text.parse().ok());
    let mut found = [0; N];
    for (at, field) in fields.into_iter().enumerate() {
        found[at] = number(field).context("the process has ended")?;
    }
    Ok(found)
}

impl Drop for Writing {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}
