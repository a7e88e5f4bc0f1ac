//! The memory that a child of a process sees as zeros (`MADV_WIPEONFORK`).

use pagetrail::{PageRange, PageSet};
use std::fs::File;
use std::io::{BufRead, BufReader};

/// Finds the memory that children of this thread's process see as zeros; nothing where its mappings
/// cannot be read.
pub(crate) fn of(thread: u32) -> PageSet {
    let file = File::open(format!("/proc/{thread}/smaps"));
    file.map_or_else(|_| PageSet::new(), |file| listed(BufReader::new(file)))
}

/// Finds it in the text of `proc_pid_smaps(5)`: mappings with the flag `wf`.
fn listed(mut text: impl BufRead) -> PageSet {
    let mut found = PageSet::new();
    let (mut mapping, mut line) = (None, Vec::new());
    while matches!(text.read_until(b'\n', &mut line), Ok(1..)) {
        if let Some(flags) = line.strip_prefix(b"VmFlags:") {
            let mut flags = flags.trim_ascii_end().split(|byte| *byte == b' ');
            if flags.any(|flag| flag == b"wf") {
                found.extend(mapping.take());
            }
        } else if line.first().is_some_and(|byte| !byte.is_ascii_uppercase()) {
            mapping = range(&line);
        }
        line.clear();
    }
    found
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
        assert_eq!(listed(text.as_bytes()).ranges(), expected);
    }
}
