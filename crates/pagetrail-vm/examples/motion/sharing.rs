//! Pages with equal contents that the kernel merges (KSM), and the writes that part them again: the
//! study's content-based page sharing.
//!
//! Whose page tables lead to a page is what the kernel has to know for both. A guest's are KVM's,
//! so that each page that is merged, and each write to it, costs there, too.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Memory, PAGE, Result, faults};

/// Pages with equal contents.
const PAGES: usize = 2048;
/// Each byte of them, and what the first one of each is then.
const EQUAL: u8 = 0x5a;
const WRITTEN: u8 = 1;
/// The kernel looks at all pages twice before it merges any.
const MERGED_MAX: Duration = Duration::from_secs(600);
/// Where the kernel's scanner is switched on, how it has gone, and what it found in this process.
const KNOBS: &str = "/sys/kernel/mm/ksm";
const RUN: &str = "run";

/// The kernel's scanner, which is as it was before once this is dropped.
pub(crate) struct Scanner(Vec<(&'static str, String)>);

impl Scanner {
    /// Starts it, at a pace for short runs.
    pub(crate) fn start() -> Result<Self> {
        let mut scanner = Self(Vec::new());
        let settings = [
            ("sleep_millisecs", "1"),
            ("pages_to_scan", "2000"),
            (RUN, "1"),
        ];
        for (name, value) in settings {
            let path = format!("{KNOBS}/{name}");
            scanner.0.push((name, fs::read_to_string(&path)?));
            fs::write(path, value)?;
        }
        Ok(scanner)
    }
}

impl Drop for Scanner {
    fn drop(&mut self) {
        for (name, value) in &self.0 {
            // Nobody would hear of it.
            let _ = fs::write(format!("{KNOBS}/{name}"), value);
        }
    }
}

/// The kernel's thread that merges pages.
pub(crate) fn threads() -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if name.trim() == "ksmd" {
            found.extend(entry.file_name().to_string_lossy().parse::<u32>());
        }
    }
    Ok(found)
}

/// Pages of this process that are merged.
fn merged() -> Result<usize> {
    let text = fs::read_to_string("/proc/self/ksm_merging_pages")?;
    Ok(text.trim().parse()?)
}

/// Has equal pages merged, and writes to `parted` of them; says what that took.
pub(crate) fn share(place: &str, parted: usize) -> Result<bool> {
    let parted = parted.min(PAGES);
    let run = format!("{KNOBS}/{RUN}");
    fs::write(&run, "1")?;
    let mut memory = Memory::map(PAGES)?;
    memory.pages().for_each(|page| page.fill(EQUAL));
    memory.may_be_merged()?;
    let began = Instant::now();
    // One of many equal pages is the one that all have then.
    while merged()? < PAGES - PAGES / 64 {
        if began.elapsed() > MERGED_MAX {
            return Err(format!("only {} of {PAGES} pages are merged", merged()?).into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let merging = began.elapsed();
    // What is merged stays so, and what is parted stays so, too.
    fs::write(&run, "0")?;
    let before = (merged()?, faults());
    let began = Instant::now();
    memory
        .pages()
        .take(parted)
        .for_each(|page| page[0] = WRITTEN);
    let parting = began.elapsed();
    let after = (merged()?, faults());
    println!(
        "{}",
        json!({"what": "sharing", "work": if parted == 0 { "merged" } else { "parted" }, "in": place, "pages": PAGES, "parted": parted,
               "merged": before.0, "merged_after": after.0, "faults": after.1 - before.1,
               "merging_ns": merging.as_nanos() as u64, "parting_ns": parting.as_nanos() as u64})
    );
    let right = |(number, page): (usize, &mut [u8])| {
        let first = if number < parted { WRITTEN } else { EQUAL };
        page[0] == first && page[1..].iter().all(|byte| *byte == EQUAL)
    };
    Ok(memory.pages().enumerate().all(right) && memory.length() == PAGES * PAGE)
}
