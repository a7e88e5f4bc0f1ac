//! The writer as another process: this program, started again, which makes a pass for each line
//! that it is sent.
//!
//! Lines from the child: first `START END`, the addresses of its memory in hex, and why it is not
//! locked, if it is not; then, for each pass, its nanoseconds. It ends with its standard input.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pagetrail::{PageRange, Target};

use super::workload::{Memory, Writer};
use pagetrail_report::size::Size;

/// Is the child.
pub fn serve(size: Size) -> Result<()> {
    let mut memory = Memory::new(size)?;
    let mut out = io::stdout().lock();
    let range = memory.range();
    let unlocked = memory.unlocked().unwrap_or_default();
    writeln!(out, "{:x} {:x} {unlocked}", range.start(), range.end())?;
    for line in io::stdin().lock().lines() {
        line?;
        writeln!(out, "{}", memory.write().as_nanos())?;
    }
    Ok(())
}

/// The parent's end of it.
pub(crate) struct ChildWriter {
    process: Child,
    /// `None` only while it is being dropped.
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    range: PageRange,
    unlocked: Option<String>,
}

impl ChildWriter {
    /// Starts it; it has populated its memory when this returns.
    pub(crate) fn start(size: Size) -> Result<Self> {
        let mut process = Command::new("/proc/self/exe")
            .args(["bench", "--as-writer", &format!("{}K", size.bytes() >> 10)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the writer")?;
        let to = process.stdin.take();
        let from = process.stdout.take().context("the writer has no output")?;
        let mut from = BufReader::new(from);
        let line = answer(&mut from)?;
        let mut words = line.splitn(3, ' ');
        let mut address = || u64::from_str_radix(words.next()?, 16).ok();
        let range = address().zip(address());
        let range = range.and_then(|(start, end)| PageRange::new(start, end));
        Ok(Self {
            process,
            to,
            from,
            range: range.with_context(|| format!("the writer says '{line}'"))?,
            unlocked: words.next().filter(|why| !why.is_empty()).map(Into::into),
        })
    }
}

fn answer(from: &mut BufReader<ChildStdout>) -> Result<String> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        bail!("the writer has ended");
    }
    Ok(line.trim_end_matches('\n').to_owned())
}

impl Writer for ChildWriter {
    fn range(&self) -> PageRange {
        self.range
    }

    fn pass(&mut self) -> Result<Duration> {
        let to = self.to.as_mut().context("the writer has ended")?;
        to.write_all(b"\n").context("cannot ask the writer")?;
        let line = answer(&mut self.from)?;
        let ns = line.parse();
        ns.map(Duration::from_nanos)
            .with_context(|| format!("the writer says '{line}'"))
    }

    fn target(&self) -> Result<Target> {
        Ok(Target::process(self.process.id())?)
    }

    fn unlocked(&self) -> Option<&str> {
        self.unlocked.as_deref()
    }
}

impl Drop for ChildWriter {
    fn drop(&mut self) {
        drop(self.to.take());
        let _ = self.process.wait();
    }
}
