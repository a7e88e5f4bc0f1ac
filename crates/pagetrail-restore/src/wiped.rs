//! The memory that a child of a process sees as zeros (`MADV_WIPEONFORK`).

use pagetrail::{PageRange, PageSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};

/// Threads by which the memory of a process can be looked at. Each may have ended, the main thread
/// as well: then it has no memory any more, while the others go on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Threads {
    process: Option<u32>,
    last: Option<u32>,
}

impl Threads {
    /// The threads of a process.
    pub(crate) fn of(process: u32) -> Self {
        Self {
            process: Some(process),
            last: None,
        }
    }

    /// Notes a thread that waits for a page just now.
    pub(crate) fn waits(&mut self, thread: u32) {
        if self.process.is_none() {
            self.process = process_of(thread);
        }
        self.last = Some(thread);
    }

    /// Finds the memory that children of the process see as zeros; nothing where nobody can be
    /// asked.
    pub(crate) fn wiped(self) -> PageSet {
        self.found().unwrap_or_default()
    }

    /// Finds it; `None` where nobody can be asked.
    fn found(self) -> Option<PageSet> {
        let first = self.last.into_iter().chain(self.process);
        let mut looked_at = first.map(|thread| of(&format!("/proc/{thread}/smaps")));
        if let Some(found) = looked_at.find_map(|found| found) {
            return Some(found);
        }
        let tasks = self.process.map(|process| format!("/proc/{process}/task"));
        let tasks = tasks.and_then(|tasks| fs::read_dir(tasks).ok());
        let tasks = tasks.into_iter().flatten().flatten();
        let mut found = tasks.map(|task| of(&format!("{}/smaps", task.path().display())));
        found.find_map(|found| found)
    }
}

/// The process of a thread.
fn process_of(thread: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

/// Finds it by a thread; `None` where that has no memory.
fn of(path: &str) -> Option<PageSet> {
    listed(BufReader::new(File::open(path).ok()?))
}

/// Finds it in the text of `proc_pid_smaps(5)`: mappings with the flag `wf`; `None` where there is
/// no mapping at all.
fn listed(mut text: impl BufRead) -> Option<PageSet> {
    let (mut found, mut is_any) = (PageSet::new(), false);
    let (mut mapping, mut line) = (None, Vec::new());
    while matches!(text.read_until(b'\n', &mut line), Ok(1..)) {
        if let Some(flags) = line.strip_prefix(b"VmFlags:") {
            let mut flags = flags.trim_ascii_end().split(|byte| *byte == b' ');
            if flags.any(|flag| flag == b"wf") {
                found.extend(mapping.take());
            }
        } else if line.first().is_some_and(|byte| !byte.is_ascii_uppercase()) {
            mapping = range(&line);
            is_any = true;
        }
        line.clear();
    }
    is_any.then_some(found)
}

/// Parses the addresses with which the first line of a mapping begins.
fn range(line: &[u8]) -> Option<PageRange> {
    let end = line.iter().position(|byte| *byte == b' ')?;
    let (start, end) = std::str::from_utf8(&line[..end]).ok()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    PageRange::new(number(start)?, number(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_that_are_wiped_are_found() {
        let text = "7f0000000000-7f0000004000 rw-p 00000000 00:00 0 \n\
                    Size:                 16 kB\n\
                    VmFlags: rd wr mr mw me wf ac sd \n\
                    7f0000004000-7f0000008000 rw-p 00000000 00:00 0  /a wf\n\
                    Rss:                   0 kB\n\
                    VmFlags: rd wr mr mw me ac sd \n\
                    7f0000008000-7f0000009000 rw-p 00000000 00:00 0 \n\
                    VmFlags: rd wr wf\n";
        let expected = [
            (0x7f00_0000_0000, 0x7f00_0000_4000),
            (0x7f00_0000_8000, 0x7f00_0000_9000),
        ];
        let expected = expected.map(|(start, end)| PageRange::new(start, end).unwrap());
        assert_eq!(listed(text.as_bytes()).unwrap().ranges(), expected);
        assert_eq!(listed(&b""[..]), None);
    }

    #[test]
    fn the_memory_is_found_by_any_thread_that_lives() {
        assert_eq!(Threads::default().found(), None);
        let ended = std::thread::spawn(rustix::thread::gettid);
        let ended = ended.join().unwrap().as_raw_nonzero().get() as u32;
        let mut threads = Threads::default();
        threads.waits(rustix::thread::gettid().as_raw_nonzero().get() as u32);
        assert_eq!(threads.process, Some(std::process::id()));
        threads.waits(ended);
        assert!(threads.found().is_some());
        // As of a process whose main thread has ended.
        let alone = Threads::of(ended);
        assert_eq!(alone.found(), None);
    }
}
