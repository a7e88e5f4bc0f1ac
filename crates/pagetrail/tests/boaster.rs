//! A target's description of its heaps costs the tracker only a bounded amount of memory.
//!
//! This test has a file of its own because it measures the memory of the process.

#![allow(clippy::print_stdout, reason = "tests print what they did")]

mod support;

use pagetrail::{Heaps, PageRange, PageSet, Permissions, Region};
use support::{Victim, row};

/// The peak memory of this process, in KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.unwrap().trim().split(' ').next();
    number.unwrap().parse().unwrap()
}

fn region(start: u64, bytes: u64, shared: bool, name: &str) -> Region {
    let permissions = Permissions {
        read: true,
        write: true,
        execute: false,
        shared,
    };
    let mut region = Region::new(PageRange::new(start, start + bytes).unwrap(), permissions);
    region.device = (0, 1);
    region.inode = 1;
    region.name = name.into();
    region
}

#[test]
fn descriptions_of_terabytes_do_not_fill_the_tracker() {
    let Some(victim) = Victim::start("boaster", &[]) else {
        return;
    };
    let name = "/memfd:pagetrail-heap (deleted)";
    let descriptions = victim.said.iter().map(|line| {
        let address = u64::from_str_radix(line, 16).unwrap();
        region(address, 65536, false, name)
    });
    let mut regions = vec![region(1 << 44, 1 << 48, true, "/memfd:windows (deleted)")];
    regions.extend(descriptions);
    assert_eq!(regions.len(), 81);
    let mut heaps = Heaps::new(victim.pid());
    let before = peak_kib();
    for _ in 0..4 {
        let mut written = PageSet::from_iter([regions[0].range]);
        let subpages = heaps.subpages_of(&regions, &mut written);
        // Everything is reported, as sub-pages or as pages.
        let subpages = subpages.expect("one of its descriptions makes sense");
        assert_eq!(subpages.pages().bytes(), 64 << 30);
        assert_eq!(written.bytes(), 1 << 48);
    }
    let taken = peak_kib() - before;
    println!("{taken} KiB for heaps of 160 TiB");
    assert!(taken < 256 << 10, "{taken} KiB");
    victim.finish();
    row("boaster", "any", "works", "");
}
