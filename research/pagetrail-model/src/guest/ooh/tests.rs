//! Section V of the OoH paper as tests: no tracker sees an address of another process or machine,
//! no guest sees or reaches host-physical memory, and the two users of a log do not disturb each
//! other.

use std::collections::BTreeSet;

use super::*;
use crate::machine::PAGE_BYTES;
use crate::technique::{Target, TechniqueKind};
use crate::{Host, HostConfig, ProcessId, VcpuId, VmConfig, VmId};

const DESIGNS: [Design; 2] = [Design::Spml, Design::Epml];

struct Guest {
    vm: VmId,
    vcpu: VcpuId,
    tracked: ProcessId,
    other: ProcessId,
    /// Of the tracked process; the other's has the same address.
    area: Gva,
}

const PAGES: u64 = 700;

/// A machine with two processes of `PAGES` pages, all mapped.
fn guest(host: &mut Host) -> Guest {
    let vm = host.add_vm(&VmConfig::default()).unwrap();
    let vcpu = vm.vcpu(0);
    let [other, tracked] = [(); 2].map(|()| host.spawn(vm).unwrap());
    let mut area = Gva::default();
    for process in [other, tracked] {
        area = host.map(process, PAGES * PAGE_BYTES).unwrap();
        write(host, vcpu, process, area, 0..PAGES);
    }
    Guest {
        vm,
        vcpu,
        tracked,
        other,
        area,
    }
}

fn write(
    host: &mut Host,
    vcpu: VcpuId,
    process: ProcessId,
    area: Gva,
    pages: std::ops::Range<u64>,
) {
    host.schedule(process, vcpu).unwrap();
    for page in pages {
        host.access(vcpu, area.add_pages(page), true).unwrap();
    }
}

fn start(host: &mut Host, guest: &Guest, design: Design) {
    let pid = guest.tracked.pid();
    host.kernel(guest.vcpu, |kernel, platform| {
        kernel.ooh_start(platform, pid, pid, design, 16)
    })
    .unwrap();
}

fn fetch(host: &mut Host, guest: &Guest, tracker: Pid) -> Result<Fetched, Error> {
    host.kernel(guest.vcpu, |kernel, platform| {
        kernel.ooh_fetch(platform, tracker, guest.tracked.pid())
    })
}

fn gpas(host: &mut Host, process: ProcessId, area: Gva) -> BTreeSet<u64> {
    let page = |page| {
        host.guest_physical(process, area.add_pages(page))
            .unwrap()
            .unwrap()
            .get()
    };
    (0..PAGES).map(page).collect()
}

#[test]
fn a_ring_buffer_holds_no_address_of_another_process() {
    for design in DESIGNS {
        for by_hypervisor in [false, true] {
            let mut host = Host::new(&HostConfig::default()).unwrap();
            let guest = guest(&mut host);
            if by_hypervisor {
                // The log is on all the time, and holds the other's addresses at each switch.
                host.start_log_dirty(guest.vm).unwrap();
            }
            start(&mut host, &guest, design);
            for step in 0..10 {
                write(
                    &mut host,
                    guest.vcpu,
                    guest.tracked,
                    guest.area,
                    step * 7..step * 7 + 70,
                );
                write(
                    &mut host,
                    guest.vcpu,
                    guest.other,
                    guest.area,
                    step * 70..step * 70 + 70,
                );
            }
            let logged: BTreeSet<u64> = fetch(&mut host, &guest, guest.tracked.pid())
                .unwrap()
                .logged
                .into_iter()
                .collect();
            let others = gpas(&mut host, guest.other, guest.area);
            match design {
                Design::Spml => assert!(logged.is_disjoint(&others)),
                Design::Epml => {
                    let written = (0..9 * 7 + 70).map(|page| guest.area.add_pages(page).get());
                    assert_eq!(
                        logged,
                        written.collect(),
                        "the kernel's addresses are left out, too"
                    );
                }
            }
        }
    }
}

#[test]
fn the_kernels_own_writes_are_not_shown_to_a_tracker() {
    let mut host = Host::new(&HostConfig::default()).unwrap();
    let guest = guest(&mut host);
    start(&mut host, &guest, Design::Epml);
    // The kernel zeroes a page for each, and writes page tables.
    let area = host.map(guest.tracked, 50 * PAGE_BYTES).unwrap();
    write(&mut host, guest.vcpu, guest.tracked, area, 0..50);
    let Fetched { logged, fresh, .. } = fetch(&mut host, &guest, guest.tracked.pid()).unwrap();
    assert!(
        host.events(guest.vm).guest_pml_entries >= 50,
        "the processor logged them"
    );
    assert_eq!(logged, []);
    assert_eq!(fresh.len(), 50);
}

#[test]
fn only_the_tracker_of_a_process_may_fetch() {
    for design in DESIGNS {
        let mut host = Host::new(&HostConfig::default()).unwrap();
        let guest = guest(&mut host);
        start(&mut host, &guest, design);
        write(&mut host, guest.vcpu, guest.tracked, guest.area, 0..5);
        let refused = fetch(&mut host, &guest, guest.other.pid());
        assert_eq!(refused.unwrap_err(), Error::NotTheTracker);
        assert!(
            fetch(&mut host, &guest, guest.tracked.pid())
                .unwrap()
                .logged
                .len()
                >= 5
        );
    }
}

#[test]
fn machines_do_not_see_each_other() {
    for design in DESIGNS {
        let mut host = Host::new(&HostConfig::default()).unwrap();
        let guests = [guest(&mut host), guest(&mut host)];
        guests
            .iter()
            .for_each(|guest| start(&mut host, guest, design));
        write(
            &mut host,
            guests[0].vcpu,
            guests[0].tracked,
            guests[0].area,
            0..PAGES,
        );
        write(
            &mut host,
            guests[1].vcpu,
            guests[1].tracked,
            guests[1].area,
            0..3,
        );
        let mut seen = guests.iter().map(|guest| {
            let own = gpas(&mut host, guest.tracked, guest.area);
            let logged = fetch(&mut host, guest, guest.tracked.pid()).unwrap().logged;
            match design {
                Design::Spml => logged
                    .iter()
                    .filter(|address| own.contains(address))
                    .count(),
                Design::Epml => logged.len(),
            }
        });
        assert_eq!((seen.next(), seen.next()), (Some(PAGES as usize), Some(3)));
    }
}

#[test]
fn a_ring_number_means_nothing_to_another_machine_or_once_it_is_given_back() {
    let mut host = Host::new(&HostConfig::default()).unwrap();
    let guests = [guest(&mut host), guest(&mut host)];
    start(&mut host, &guests[0], Design::Spml);
    let number = |host: &mut Host| {
        let tracked = guests[0].tracked.pid();
        host.kernel(guests[0].vcpu, |kernel, _| {
            match kernel.ooh(tracked)?.map(|ooh| &ooh.log) {
                Some(&Log::Spml { ring }) => Ok(ring),
                _ => Err(Error::RingTooSmall),
            }
        })
    };
    let ring = number(&mut host).unwrap();
    let tracked = guests[0].tracked.pid();
    host.kernel(guests[0].vcpu, |kernel, platform| {
        kernel.ooh_stop(platform, tracked)
    })
    .unwrap();
    for guest in &guests {
        let enable = Hypercall::EnableLogging { ring };
        host.kernel(guest.vcpu, |_, platform| platform.hypercall(enable))
            .unwrap();
        let before = host.events(guest.vm).pml_entries;
        let area = host.map(guest.tracked, PAGES * PAGE_BYTES).unwrap();
        write(&mut host, guest.vcpu, guest.tracked, area, 0..PAGES);
        assert_eq!(
            host.events(guest.vm).pml_entries,
            before,
            "logging is still off"
        );
    }
}

#[test]
fn a_guest_can_point_its_log_only_at_its_own_memory_and_cannot_read_where_that_is() {
    let mut host = Host::new(&HostConfig::default()).unwrap();
    let guest = guest(&mut host);
    let outside = Gpa::new(VmConfig::default().memory_bytes + 0x1000);
    let vmwrite = |host: &mut Host, field, value| {
        host.kernel(guest.vcpu, |_, platform| platform.vmwrite(field, value))
    };
    assert_eq!(
        vmwrite(&mut host, Field::GuestPmlAddress, 0x1000),
        Ok(false),
        "shadowing is off"
    );
    start(&mut host, &guest, Design::Epml);
    assert_eq!(
        vmwrite(&mut host, Field::GuestPmlAddress, outside.get()),
        Err(Error::OutsideGuestMemory(outside))
    );
    let address = host.kernel(guest.vcpu, |_, platform| {
        Ok(platform.vmread(Field::GuestPmlAddress))
    });
    assert_eq!(address, Ok(None));
    // An index out of range must not lead the processor out of the page.
    write(&mut host, guest.vcpu, guest.tracked, guest.area, 0..1);
    for index in [512, 513, 0x7fff, 0xffff] {
        assert_eq!(vmwrite(&mut host, Field::GuestPmlIndex, index), Ok(true));
        let lost = host.events(guest.vm).guest_pml_lost;
        host.start_log_dirty(guest.vm).unwrap();
        host.access(guest.vcpu, guest.area, true).unwrap();
        assert_eq!(host.events(guest.vm).guest_pml_lost, lost + 1);
    }
}

#[test]
fn hypervisor_and_guest_share_the_log_without_loss_on_either_side() {
    for kind in [TechniqueKind::Spml, TechniqueKind::Epml] {
        let mut host = Host::new(&HostConfig::default()).unwrap();
        let guest = guest(&mut host);
        let target = Target {
            tracked: guest.tracked,
            tracker: guest.tracked,
            tracker_vcpu: guest.vcpu,
        };
        host.start_log_dirty(guest.vm).unwrap();
        let mut technique = kind.start(&mut host, target).unwrap();
        host.take_log_dirty(guest.vm).unwrap();
        let own = |host: &mut Host, process, pages: std::ops::Range<u64>| -> Vec<Gpa> {
            let page = |page| {
                host.guest_physical(process, guest.area.add_pages(page))
                    .unwrap()
                    .unwrap()
            };
            pages.map(page).collect()
        };
        for round in 0..4 {
            write(
                &mut host,
                guest.vcpu,
                guest.tracked,
                guest.area,
                round..600 + round,
            );
            write(&mut host, guest.vcpu, guest.other, guest.area, 0..650);
            // The two collect at different times, in either order.
            let mut dirty = if round % 2 == 0 {
                host.take_log_dirty(guest.vm).unwrap()
            } else {
                Vec::new()
            };
            let reported = technique.collect(&mut host).unwrap();
            let expected: Vec<Gva> = (round..600 + round)
                .map(|page| guest.area.add_pages(page))
                .collect();
            assert_eq!(reported.units(), expected, "{kind}");
            dirty.extend(host.take_log_dirty(guest.vm).unwrap());
            let dirty: BTreeSet<Gpa> = dirty.into_iter().collect();
            let tracked_pages = own(&mut host, guest.tracked, round..600 + round);
            let other_pages = own(&mut host, guest.other, 0..650);
            assert!(
                tracked_pages
                    .iter()
                    .chain(&other_pages)
                    .all(|gpa| dirty.contains(gpa)),
                "{kind}"
            );
        }
        // Each leaves the log on for the other.
        technique.disarm(&mut host).unwrap();
        write(&mut host, guest.vcpu, guest.tracked, guest.area, 0..10);
        let dirty: BTreeSet<Gpa> = host.take_log_dirty(guest.vm).unwrap().into_iter().collect();
        assert!(
            own(&mut host, guest.tracked, 0..10)
                .iter()
                .all(|gpa| dirty.contains(gpa))
        );
        let mut technique = kind.start(&mut host, target).unwrap();
        host.stop_log_dirty(guest.vm).unwrap();
        write(&mut host, guest.vcpu, guest.tracked, guest.area, 0..10);
        assert_eq!(technique.collect(&mut host).unwrap().len(), 10);
        technique.disarm(&mut host).unwrap();
        let entries = host.events(guest.vm).pml_entries;
        write(&mut host, guest.vcpu, guest.tracked, guest.area, 0..PAGES);
        assert_eq!(
            host.events(guest.vm).pml_entries,
            entries,
            "nobody wants the log any more"
        );
    }
}

#[test]
fn what_the_hypervisor_writes_into_a_ring_buffer_is_in_its_own_log() {
    // The processor does not see that write, and a migrated machine would miss the page.
    let mut host = Host::new(&HostConfig::default()).unwrap();
    let guest = guest(&mut host);
    start(&mut host, &guest, Design::Spml);
    host.start_log_dirty(guest.vm).unwrap();
    host.take_log_dirty(guest.vm).unwrap();
    write(&mut host, guest.vcpu, guest.tracked, guest.area, 0..10);
    host.schedule(guest.other, guest.vcpu).unwrap();
    let dirty = host.take_log_dirty(guest.vm).unwrap();
    let first_entries = host.kernel(guest.vcpu, |kernel, _| {
        Ok(kernel
            .ooh(guest.tracked.pid())?
            .and_then(|ooh| ooh.ring.pages().nth(1)))
    });
    assert!(dirty.contains(&first_entries.unwrap().unwrap()));
}

#[test]
fn a_log_that_fills_up_just_before_a_switch_is_not_lost() {
    // The interrupt for it is then taken while another process runs.
    let mut host = Host::new(&HostConfig::default()).unwrap();
    let guest = guest(&mut host);
    start(&mut host, &guest, Design::Epml);
    for _ in 0..3 {
        write(&mut host, guest.vcpu, guest.tracked, guest.area, 0..512);
        write(&mut host, guest.vcpu, guest.other, guest.area, 0..10);
        write(&mut host, guest.vcpu, guest.tracked, guest.area, 512..600);
        let logged = fetch(&mut host, &guest, guest.tracked.pid())
            .unwrap()
            .logged;
        assert_eq!(BTreeSet::from_iter(logged).len(), 600);
    }
    assert!(host.events(guest.vm).self_ipis >= 3);
}
