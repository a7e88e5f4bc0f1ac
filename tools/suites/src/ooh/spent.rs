//! What some work has cost in a guest whose clock advances by a nanosecond for each instruction:
//! instructions, entries of the log, and bytes that were read and written.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// What the module of `/dev/ooh` counts.
const COUNTERS: &str = "/sys/module/ooh/parameters";
const ENTRY_BYTES: u64 = 8;

/// What had been spent when some work began.
pub(crate) struct Spent {
    log: Counters,
    io: [u64; 2],
    began: Instant,
}

impl Spent {
    pub(crate) fn begin() -> Result<Self> {
        Ok(Self {
            log: Counters::read()?,
            io: io()?,
            began: Instant::now(),
        })
    }

    /// What was spent since. Of processes, those that have ended and been waited for.
    pub(crate) fn end(self) -> Result<Value> {
        let nanoseconds = self.began.elapsed().as_nanos() as u64;
        let (io, log) = (io()?, Counters::read()?);
        let entries: Vec<u64> = (0..3)
            .map(|at| log.entries[at] - self.log.entries[at])
            .collect();
        Ok(json!({
            "instructions": nanoseconds,
            "read_bytes": io[0] - self.io[0],
            "written_bytes": io[1] - self.io[1],
            "rounds": log.rounds - self.log.rounds,
            "entries_by_address": entries[0],
            "entries_by_frame": entries[1],
            "entries_of_kernel": entries[2],
            "log_bytes": entries.iter().sum::<u64>() * ENTRY_BYTES,
            "foreign": log.foreign - self.log.foreign,
        }))
    }
}

/// Adds the fields of one object to another one.
pub(crate) fn add(to: &mut Value, from: Value) {
    if let (Value::Object(to), Value::Object(from)) = (to, from) {
        to.extend(from);
    }
}

/// Bytes of read(2) and write(2) by this process and its children that have ended (`rchar`, `wchar`
/// in proc_pid_io(5)): among them all that is read of `pagemap`.
fn io() -> Result<[u64; 2]> {
    let text = fs::read_to_string("/proc/self/io").context("/proc/self/io")?;
    let number = |name: &str| {
        let mut lines = text.lines();
        let number = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        number.and_then(|number| number.trim().parse().ok())
    };
    number("rchar")
        .zip(number("wchar"))
        .map(|(read, written)| [read, written])
        .context("/proc/self/io has no bytes")
}

/// Of all sessions since the module was loaded.
struct Counters {
    rounds: u64,
    foreign: u64,
    /// By virtual address, by page frame, and of the kernel's stores.
    entries: [u64; 3],
}

impl Counters {
    fn read() -> Result<Self> {
        let read = |name: &str| -> Result<Vec<u64>> {
            let path = Path::new(COUNTERS).join(name);
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let numbers = text.trim().split(',').map(str::parse);
            Ok(numbers.collect::<Result<_, _>>()?)
        };
        let one = |name: &str| read(name)?.first().copied().context("no number");
        Ok(Self {
            rounds: one("rounds")?,
            foreign: one("foreign")?,
            entries: read("entries")?
                .try_into()
                .map_err(|found| anyhow::anyhow!("entries are {found:?}"))?,
        })
    }
}
