//! What shadow tables must do that no program of the conformance suite asks for.

use crate::guest::Backing;
use crate::machine::PAGE_BYTES;
use crate::{Host, HostConfig, Paging, VmConfig};

#[test]
fn the_guests_dirty_flag_is_kept_by_withholding_the_right_to_write() {
    let mut host = Host::new(&HostConfig::default()).unwrap();
    let vm = host
        .add_vm(&VmConfig {
            paging: Paging::Shadow,
            ..VmConfig::default()
        })
        .unwrap();
    let process = host.spawn(vm).unwrap();
    let (vcpu, pid) = (vm.vcpu(0), process.pid());
    host.schedule(process, vcpu).unwrap();
    let gva = host
        .map_backed(process, PAGE_BYTES, Backing::OwnTables)
        .unwrap();
    // Writable, but neither accessed nor dirty yet.
    host.kernel(vcpu, |kernel, platform| {
        let gpa = kernel.own_memory(1)?;
        kernel.own_map(platform, pid, gva, gpa)
    })
    .unwrap();
    let mut after = |write: bool| {
        let before = host.events(vm);
        host.access(vcpu, gva, write).unwrap();
        let leaf = host.kernel(vcpu, |kernel, platform| {
            kernel.process(pid)?.space.leaf(platform, gva)
        });
        let entry = leaf.unwrap().unwrap().entry;
        let events = host.events(vm) - before;
        (
            entry == entry.with_accessed(true),
            entry.dirty(),
            events.sh_fixed,
            events.page_faults,
        )
    };
    assert_eq!(after(false), (true, false, 1, 0));
    assert_eq!(after(false), (true, false, 0, 0));
    assert_eq!(
        after(true),
        (true, true, 1, 0),
        "the first write faults, and the guest does not notice"
    );
    assert_eq!(after(true), (true, true, 0, 0));
}

#[test]
fn a_table_that_is_used_anew_loses_its_shadow() {
    let mut host = Host::new(&HostConfig::default()).unwrap();
    let vm = host
        .add_vm(&VmConfig {
            paging: Paging::Shadow,
            ..VmConfig::default()
        })
        .unwrap();
    let vcpu = vm.vcpu(0);
    let mut shadows = Vec::new();
    for _ in 0..5 {
        let process = host.spawn(vm).unwrap();
        host.schedule(process, vcpu).unwrap();
        let area = host.map(process, 600 * PAGE_BYTES).unwrap();
        for page in 0..600 {
            host.access(vcpu, area.add_pages(page), true).unwrap();
        }
        host.exit(process).unwrap();
        shadows.push(
            host.kernel(vcpu, |_, platform| {
                Ok(platform.hypervisor.pager().shadows.len())
            })
            .unwrap(),
        );
    }
    assert_eq!(shadows[1..], [shadows[1]; 4], "no shadow is left behind");
    assert_eq!(
        host.events(vm).sh_make_shadow % 5,
        0,
        "each process has the same number of tables"
    );
}
