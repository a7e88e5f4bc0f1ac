//! A watch on the heap of the own process, which contains the technique's own state: its fault
//! handlers must not fault on it.

use pagetrail::{Capabilities, PageRange, Target, Technique, Watch};

/// The mapping in which this thread's allocator allocates.
fn heap(probe: u64) -> PageRange {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    maps.lines()
        .find_map(|line| {
            let (start, end) = line.split_once(' ')?.0.split_once('-')?;
            let address = |text| u64::from_str_radix(text, 16).ok();
            PageRange::new(address(start)?, address(end)?).filter(|range| range.contains(probe))
        })
        .expect("a mapping around the value")
}

#[test]
fn a_process_can_track_its_own_heap() {
    // A handler that waits for itself would wait for ever.
    // SAFETY: a plain system call; the default action of SIGALRM ends this test program.
    unsafe { libc::alarm(120) };
    for technique in [
        Technique::PagemapScan,
        Technique::Userfaultfd,
        Technique::Mprotect,
    ] {
        if !Capabilities::probe().works(technique) {
            continue;
        }
        // Small allocations, between which the technique's own allocations lie.
        let mut pieces: Vec<Box<[u64; 32]>> = (0..1000).map(|i| Box::new([i; 32])).collect();
        let first = &raw const *pieces[0] as u64;
        let mut watch = Watch::builder()
            .target(Target::ranges([heap(first)]))
            .technique(technique)
            .start()
            .expect("a watch on the heap");
        for round in 0..3 {
            for piece in &mut pieces {
                piece[0] += 1;
            }
            let collected = watch.collect().expect("a round");
            for (i, piece) in pieces.iter().enumerate() {
                let address = &raw const **piece as u64;
                assert!(
                    collected.dirty().contains(address) || !heap(first).contains(address),
                    "{technique}, round {round}: piece {i} at {address:#x}"
                );
            }
            collected.commit();
        }
        drop(watch);
        for piece in &mut pieces {
            piece[0] += 1;
        }
    }
}
