//! Whether a process lacks pages that a pager is to bring: its memory cannot be read whole then.

use crate::error::{Error, Result};
use std::fs::File;
use std::io::{BufRead, BufReader};

/// Refuses a process of which some memory is filled on demand by a `userfaultfd`. Page tables do
/// not distinguish a page that it lacks from one of zeros.
pub(super) fn refuse(pid: u32) -> Result<()> {
    // Where `smaps` cannot be read, the process has ended or may not be traced, which is said by
    // what comes next.
    let lacks = File::open(format!("/proc/{pid}/smaps"))
        .is_ok_and(|file| is_filled_on_demand(BufReader::new(file)));
    match lacks {
        true => Err(Error::NotNow(format!(
            "process {pid} gets its memory on demand (userfaultfd) and may lack some of it: take \
             the checkpoint when its pager has brought all pages"
        ))),
        false => Ok(()),
    }
}

/// Whether a text like that of `proc_pid_smaps(5)` has a mapping that is registered for missing
/// pages (`um`, `VM_UFFD_MISSING`).
fn is_filled_on_demand(mut text: impl BufRead) -> bool {
    let mut line = Vec::new();
    while matches!(text.read_until(b'\n', &mut line), Ok(1..)) {
        if let Some(flags) = line.strip_prefix(b"VmFlags:")
            && flags
                .split(u8::is_ascii_whitespace)
                .any(|flag| flag == b"um")
        {
            return true;
        }
        line.clear();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_of_missing_pages_is_found() {
        let mapping = "7f0000000000-7f0000001000 rw-p 00000000 00:00 0    um\nVmFlags: rd wr";
        let text = |flags: &str| format!("{mapping} mr{flags} \n");
        assert!(is_filled_on_demand(text(" um").as_bytes()));
        assert!(is_filled_on_demand(
            format!("{}{}", text(""), text(" um ac")).as_bytes()
        ));
        assert!(!is_filled_on_demand(text(" uw").as_bytes()));
        assert!(!is_filled_on_demand(text("").as_bytes()));
    }
}
