//! One suite for all techniques, against an oracle that knows every write.
//!
//! Each test runs every technique that can take part and names those that cannot. The seed of a
//! random test is in its failure message.

mod bench;

use std::collections::BTreeSet;

use bench::{Bench, KINDS, Random};
use pagetrail_model::machine::{Gva, PAGE_BYTES};
use pagetrail_model::technique::{Options, TechniqueKind};
use pagetrail_model::{Host, HostConfig, VmConfig};

#[test]
fn a_round_holds_the_writes_and_nothing_else() {
    for kind in KINDS {
        let mut bench = Bench::new(kind, 100);
        let technique = &mut *bench.start();
        bench.collect_exactly(technique);
        for page in [3, 7, 99] {
            bench.write_page(technique, page);
            bench.access(
                technique,
                bench.area.add_pages(page + 1 - page / 99 * 50),
                false,
            );
        }
        bench.collect_exactly(technique);
        bench.collect_exactly(technique);
        for _ in 0..3 {
            bench.write_page(technique, 7);
        }
        bench.collect_exactly(technique);
        bench.write_page(technique, 7);
        bench.collect_exactly(technique);
    }
}

#[test]
fn writes_before_the_start_are_not_reported_and_tracking_can_start_again() {
    for kind in KINDS {
        let mut bench = Bench::new(kind, 10);
        for _ in 0..2 {
            let technique = &mut *bench.start();
            bench.write_page(technique, 1);
            bench.collect_exactly(technique);
            bench.write_page(technique, 2);
            technique.disarm(&mut bench.host).unwrap();
            bench.written.clear();
            if kind == TechniqueKind::SoftDirty {
                continue;
            }
            for page in 0..10 {
                bench
                    .host
                    .access(bench.vcpu, bench.area.add_pages(page), true)
                    .unwrap();
            }
        }
    }
}

#[test]
fn random_programs_lose_no_write() {
    for kind in KINDS {
        for seed in 0..20 {
            let mut random = Random(seed);
            let pages = 1 + random.below(3000);
            let mut bench = Bench::backed(kind, pages, seed % 2 == 1);
            let technique = &mut *bench.start();
            bench.seed = seed;
            for _ in 0..6 {
                for _ in 0..random.below(2 * pages) {
                    let gva = bench.area.add(random.below(pages * PAGE_BYTES));
                    bench.access(technique, gva, random.below(3) > 0);
                }
                let merges = matches!(kind, TechniqueKind::Lu { dynamic: true, .. });
                if merges {
                    drop(bench.collect(technique))
                } else {
                    bench.collect_exactly(technique)
                }
            }
        }
    }
}

#[test]
fn nothing_is_lost_when_a_log_is_full() {
    // Sizes around the 512 entries of a log, and several times that.
    for kind in KINDS {
        for pages in [510, 511, 512, 513, 1024, 1025, 5000] {
            let mut bench = Bench::new(kind, pages);
            let technique = &mut *bench.start();
            for _ in 0..3 {
                for page in 0..pages {
                    bench.write_page(technique, page);
                }
                bench.collect_exactly(technique);
            }
            let events = bench.events();
            match kind {
                TechniqueKind::Spml if pages > 600 => {
                    assert!(events.pml_full_exits >= 3 * ((pages - 1) / 512))
                }
                TechniqueKind::Epml if pages > 600 => {
                    assert!(events.self_ipis >= 3 * (pages / 512));
                    assert_eq!(
                        events.pml_full_exits, 0,
                        "the hypervisor is not on the path"
                    );
                }
                _ => {}
            }
        }
    }
}

#[test]
fn a_ring_buffer_that_is_too_small_reports_too_much_but_never_too_little() {
    for kind in [TechniqueKind::Spml, TechniqueKind::Epml] {
        let mut bench = Bench::new(kind, 2000);
        let target = bench.target();
        let options = Options {
            ring_pages: 1,
            ..Options::default()
        };
        let technique = &mut *kind.start_with(&mut bench.host, target, options).unwrap();
        for page in 0..1500 {
            bench.write_page(technique, page);
        }
        assert_eq!(bench.collect(technique).len(), 2000);
        assert!(bench.events().ring_lost > 0);
        bench.write_page(technique, 1999);
        bench.collect_exactly(technique);
    }
}

#[test]
fn switches_between_processes_lose_nothing_and_show_nothing_of_the_others() {
    for kind in KINDS {
        for seed in 0..5 {
            let mut random = Random(seed);
            let mut bench = Bench::new(kind, 1500);
            let other = bench.host.spawn(bench.vm).unwrap();
            // The same virtual addresses as the tracked process, and more of them.
            let other_area = bench.host.map(other, 4000 * PAGE_BYTES).unwrap();
            assert_eq!(other_area, bench.area);
            let technique = &mut *bench.start();
            bench.seed = seed;
            for _ in 0..3 {
                for _ in 0..40 {
                    bench.host.schedule(bench.tracked, bench.vcpu).unwrap();
                    for _ in 0..random.below(60) {
                        let page = random.below(1500);
                        bench.write_page(technique, page);
                    }
                    bench.host.schedule(other, bench.vcpu).unwrap();
                    for _ in 0..random.below(600) {
                        let gva = other_area.add_pages(random.below(4000));
                        bench.host.access(bench.vcpu, gva, true).unwrap();
                    }
                }
                let merges = matches!(kind, TechniqueKind::Lu { dynamic: true, .. });
                if merges {
                    drop(bench.collect(technique))
                } else {
                    bench.collect_exactly(technique)
                }
            }
        }
    }
}

#[test]
fn a_process_that_moves_between_vcpus_and_a_vcpu_that_moves_lose_nothing() {
    for kind in KINDS {
        let mut random = Random(7);
        let mut bench = Bench::new(kind, 2000);
        let technique = &mut *bench.start();
        for round in 0..12 {
            for step in 0..10 {
                for _ in 0..random.below(300) {
                    let page = random.below(2000);
                    bench.write_page(technique, page);
                }
                match (round + step) % 3 {
                    0 => {
                        bench.vcpu = bench.vm.vcpu(random.below(2) as usize);
                        bench.host.schedule(bench.tracked, bench.vcpu).unwrap();
                    }
                    1 => {
                        let cpu = random.below(bench.host.cpus() as u64) as usize;
                        bench.host.migrate(bench.vcpu, cpu).unwrap();
                    }
                    _ => {}
                }
            }
            let merges = matches!(kind, TechniqueKind::Lu { dynamic: true, .. });
            if merges {
                drop(bench.collect(technique))
            } else {
                bench.collect_exactly(technique)
            }
        }
        assert!(bench.events().vcpu_migrations > 5);
    }
}

#[test]
fn areas_that_come_and_go_lose_nothing() {
    for kind in KINDS {
        let mut random = Random(3);
        let mut bench = Bench::new(kind, 10);
        let technique = &mut *bench.start();
        let mut areas: Vec<(Gva, u64)> = Vec::new();
        for _ in 0..30 {
            for _ in 0..random.below(4) {
                let pages = 1 + random.below(700);
                areas.push((
                    bench.host.map(bench.tracked, pages * PAGE_BYTES).unwrap(),
                    pages,
                ));
            }
            for _ in 0..random.below(900) {
                let Some(&(start, pages)) =
                    areas.get(random.below(areas.len().max(1) as u64) as usize)
                else {
                    continue;
                };
                let write = random.below(2) == 0;
                bench.access(technique, start.add_pages(random.below(pages)), write);
            }
            if random.below(2) == 0 && !areas.is_empty() {
                let (start, pages) = areas.swap_remove(random.below(areas.len() as u64) as usize);
                bench.host.unmap(bench.tracked, start).unwrap();
                bench
                    .written
                    .retain(|gva| *gva < start || *gva >= start.add_pages(pages));
            }
            bench.collect(technique);
        }
    }
}

#[test]
fn memory_that_comes_after_the_start_is_tracked_page_by_page() {
    // Even if the hypervisor backs memory with large pages, which have one dirty flag for 512.
    for kind in KINDS {
        let mut bench = Bench::backed(kind, 10, true);
        let technique = &mut *bench.start();
        let area = bench.host.map(bench.tracked, 1500 * PAGE_BYTES).unwrap();
        for page in 0..1500 {
            bench.access(technique, area.add_pages(page), true);
        }
        bench.collect(technique);
        for step in [1, 7, 100] {
            for page in (0..1500).step_by(step) {
                bench.access(technique, area.add_pages(page), true);
            }
            let merges = matches!(kind, TechniqueKind::Lu { dynamic: true, .. });
            if merges {
                drop(bench.collect(technique))
            } else {
                bench.collect_exactly(technique)
            }
        }
    }
}

#[test]
fn memory_that_another_process_has_dirtied_is_tracked_from_its_first_write() {
    // The frame comes with its dirty flags set: the first write of the new owner is not logged.
    for kind in KINDS {
        let mut bench = Bench::new(kind, 10);
        let technique = &mut *bench.start();
        for _ in 0..3 {
            let other = bench.host.spawn(bench.vm).unwrap();
            bench.host.schedule(other, bench.vcpu).unwrap();
            let area = bench.host.map(other, 600 * PAGE_BYTES).unwrap();
            for page in 0..600 {
                bench
                    .host
                    .access(bench.vcpu, area.add_pages(page), true)
                    .unwrap();
            }
            bench.host.exit(other).unwrap();
            bench.host.schedule(bench.tracked, bench.vcpu).unwrap();
            let area = bench.host.map(bench.tracked, 500 * PAGE_BYTES).unwrap();
            for round in 0..2 {
                for page in 0..500 {
                    bench.access(technique, area.add_pages(page), (page + round) % 3 > 0);
                }
                bench.collect(technique);
            }
        }
    }
}

#[test]
fn large_pages_are_reported_whole_or_by_their_parts() {
    use TechniqueKind::{Epml, Oracle, SoftDirty, Spml};
    for kind in [Oracle, SoftDirty, Spml, Epml] {
        let mut host = Host::new(&HostConfig::default()).unwrap();
        let vm = host
            .add_vm(&VmConfig {
                huge_backing: true,
                ..VmConfig::default()
            })
            .unwrap();
        let tracked = host.spawn(vm).unwrap();
        let vcpu = vm.vcpu(0);
        host.schedule(tracked, vcpu).unwrap();
        let area = host.map_huge(tracked, 8 << 20).unwrap();
        for page in 0..2048 {
            host.access(vcpu, area.add_pages(page), true).unwrap();
        }
        let mut bench = Bench {
            kind,
            host,
            vm,
            tracked,
            vcpu,
            area,
            written: BTreeSet::new(),
            seed: 0,
        };
        let technique = &mut *bench.start();
        for page in [0, 1, 513, 2047] {
            bench.write_page(technique, page);
        }
        let reported = bench.collect(technique);
        // The guest's entry has one bit for 512 pages; a log entry names one of them.
        assert_eq!(
            reported.len(),
            if kind == SoftDirty { 3 * 512 } else { 4 },
            "{kind}"
        );
    }
}

#[test]
fn subpages_are_distinguished_and_merging_costs_precision_not_writes() {
    let part_bytes = PAGE_BYTES / 4;
    for dynamic in [false, true] {
        let mut bench = Bench::new(TechniqueKind::Lu { parts: 4, dynamic }, 8);
        let technique = &mut *bench.start();
        let part = |bench: &Bench, n: u64| bench.area.add_pages(2).add(n * part_bytes);
        for n in [2, 3] {
            let at = part(&bench, n);
            bench.access(technique, at, true);
        }
        bench.collect_exactly(technique);
        // Parts 2 and 3 are one unit now, if merging is on.
        let violations = bench.events().ept_violations;
        for n in [2, 3] {
            let at = part(&bench, n);
            bench.access(technique, at, true);
        }
        let faults = bench.events().ept_violations - violations;
        assert_eq!(faults, if dynamic { 1 } else { 2 });
        bench.collect_exactly(technique);
        let at = part(&bench, 3);
        bench.access(technique, at, true);
        assert_eq!(bench.collect(technique).len(), if dynamic { 2 } else { 1 });
        // After as many rounds as there are parts, everything is split again.
        bench.collect_exactly(technique);
        bench.access(technique, at, true);
        bench.collect_exactly(technique);
    }
}
