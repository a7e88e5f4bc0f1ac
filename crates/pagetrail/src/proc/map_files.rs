//! The files that a process has mapped (`proc_pid_map_files(5)`).

use crate::page_set::{PageRange, PageSet, page_size};
use crate::proc::status::memory_id;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::fs::File;

/// The link to the file of a mapping of `pid` (`None`: the own process).
///
/// The link leads to the file itself, whatever its name. Only a privileged process can follow it,
/// and only as long as the process has a mapping with exactly these borders.
pub(crate) fn link(pid: Option<u32>, mapping: PageRange) -> String {
    let pid = memory_id(pid.unwrap_or_else(std::process::id));
    let (start, end) = (mapping.start(), mapping.end());
    format!("/proc/{pid}/map_files/{start:x}-{end:x}")
}

/// Adds to `found` the pages of `part` for which a file has data, of a mapping that begins at
/// address `start` and at `offset` in the file.
pub(crate) fn add_data(
    file: &File,
    start: u64,
    offset: u64,
    part: PageRange,
    found: &mut PageSet,
) -> Result<(), Errno> {
    let in_file = |address: u64| address - start + offset;
    let in_memory = |at: u64| at - offset + start;
    let (mut at, end) = (in_file(part.start()), in_file(part.end()));
    while at < end {
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) if data < end => data,
            // There is only a hole up to the end of the file.
            Ok(_) | Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno),
        };
        let hole = match seek(file, SeekFrom::Hole(data)) {
            Ok(hole) => hole.min(end),
            // Truncated meanwhile.
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno),
        };
        if let Some(pages) = PageRange::new(in_memory(data), in_memory(hole)) {
            let pages = pages.align_outwards(page_size()).intersection(&part);
            found.extend(pages);
        }
        at = hole.max(data + 1);
    }
    Ok(())
}
