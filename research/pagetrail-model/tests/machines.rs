//! Machines of other kinds than the usual one, and what they refuse.

use pagetrail_model::machine::PAGE_BYTES;
use pagetrail_model::technique::{Target, TechniqueKind};
use pagetrail_model::workload::{Op, Workload, WorkloadKind};
use pagetrail_model::{
    Error, Host, HostConfig, Paging, Report, RunConfig, RunErrorKind, VmConfig, run,
};

const PAGINGS: [Paging; 4] = [
    Paging::Native,
    Paging::Nested {
        accessed_dirty: false,
    },
    Paging::Nested {
        accessed_dirty: true,
    },
    Paging::Shadow,
];

fn config(technique: TechniqueKind, paging: Paging) -> RunConfig {
    let usual = RunConfig::new(technique);
    RunConfig {
        vm: VmConfig { paging, ..usual.vm },
        ..usual
    }
}

fn report(technique: TechniqueKind, paging: Paging) -> Report {
    let bytes = 3 << 20;
    let program = Workload {
        kind: WorkloadKind::Zipf,
        bytes,
        rounds: 3,
        seed: 2,
    };
    run(&config(technique, paging), program.ops()).unwrap()
}

#[test]
fn guest_kernels_see_the_same_faults_whatever_is_below_them() {
    for technique in [TechniqueKind::SoftDirty, TechniqueKind::Userfaultfd] {
        let faults = PAGINGS.map(|paging| {
            let report = report(technique, paging);
            assert!(
                report
                    .rounds
                    .iter()
                    .all(|round| round.missed == 0 && round.written > 0)
            );
            let all = report.total();
            (
                all.faults_demand,
                all.faults_soft_dirty,
                all.faults_userfaultfd,
                all.page_faults,
            )
        });
        assert!(
            faults.iter().all(|&counts| counts == faults[0]),
            "{technique}: {faults:?}"
        );
    }
}

#[test]
fn the_second_dimension_is_paid_only_where_there_is_one() {
    let [native, nested, _, shadow] =
        PAGINGS.map(|paging| report(TechniqueKind::Oracle, paging).total());
    assert_eq!((native.vm_exits, native.ept_walk_reads), (0, 0));
    assert_eq!((shadow.ept_walk_reads, nested.shadow_exits), (0, 0));
    // 4 reads of guest tables, each with 4 of the EPT's, and 4 for the page; some walks end early.
    assert!(nested.ept_walk_reads > nested.walk_reads * 4);
    assert!(shadow.sh_fixed > 0 && shadow.vm_exits > nested.vm_exits);
}

#[test]
fn techniques_refuse_machines_that_they_cannot_work_on() {
    for technique in TechniqueKind::ALL {
        for paging in PAGINGS {
            let works = match technique {
                TechniqueKind::Spml | TechniqueKind::Epml => {
                    paging
                        == Paging::Nested {
                            accessed_dirty: true,
                        }
                }
                TechniqueKind::Lu { .. } => matches!(paging, Paging::Nested { .. }),
                TechniqueKind::Shadow => paging == Paging::Shadow,
                _ => true,
            };
            let program = Workload {
                kind: WorkloadKind::KeyValue,
                bytes: 1 << 20,
                rounds: 2,
                seed: 0,
            };
            match run(&config(technique, paging), program.ops()) {
                Ok(report) => {
                    assert!(works, "{technique} on {paging:?}");
                    assert!(
                        report.rounds.iter().all(|round| round.missed == 0),
                        "{technique} on {paging:?}"
                    );
                }
                Err(error) => {
                    assert!(!works, "{technique} on {paging:?}: {error}");
                    assert!(matches!(
                        error.reason,
                        RunErrorKind::Machine(Error::Unsupported(_))
                    ));
                }
            }
        }
    }
}

#[test]
fn impossible_sizes_get_one_clear_line() {
    for kind in WorkloadKind::ALL {
        for bytes in [6 << 30, 1 << 50, u64::MAX] {
            let program = Workload {
                kind,
                bytes,
                rounds: 1,
                seed: 0,
            };
            let error = run(&RunConfig::new(TechniqueKind::Oracle), program.ops()).unwrap_err();
            assert_eq!(
                error.to_string(),
                "step 3: the memory of the modelled guest is used up"
            );
        }
    }
    let usual = VmConfig::default();
    let vms = [
        VmConfig {
            vcpus: 0,
            ..usual.clone()
        },
        VmConfig {
            vcpus: 1 << 40,
            ..usual.clone()
        },
        VmConfig {
            memory_bytes: 0,
            ..usual.clone()
        },
        VmConfig {
            memory_bytes: u64::MAX,
            ..usual
        },
    ];
    let mut host = Host::new(&HostConfig::default()).unwrap();
    assert!(vms.iter().all(|vm| host.add_vm(vm).is_err()));
    let small = HostConfig {
        memory_bytes: 8 << 20,
        ..HostConfig::default()
    };
    let config = RunConfig {
        host: small,
        ..RunConfig::new(TechniqueKind::Oracle)
    };
    let program = Workload {
        kind: WorkloadKind::Listing1,
        bytes: 16 << 20,
        rounds: 1,
        seed: 0,
    };
    let error = run(&config, program.ops()).unwrap_err();
    assert_eq!(error.reason, RunErrorKind::Machine(Error::OutOfMemory));
}

#[test]
fn programs_that_make_no_sense_are_refused_at_their_step() {
    let spawn = Op::Spawn { process: 0 };
    let switch = Op::Switch { process: 0 };
    let map = Op::Map {
        area: 1,
        bytes: 100,
    };
    let cases: [(&[Op], &str); 9] = [
        (&[switch], "step 1: there is no such process: 0"),
        (&[spawn, spawn], "step 2: the process lives already: 0"),
        (&[map], "step 1: no process runs"),
        (
            &[spawn, switch, Op::Map { area: 1, bytes: 0 }],
            "step 3: not possible on this virtual machine: an area of that size",
        ),
        (
            &[spawn, switch, map, map],
            "step 4: the area exists already: 1",
        ),
        (
            &[
                spawn,
                switch,
                map,
                Op::Write {
                    area: 1,
                    offset: 100,
                },
            ],
            "step 4: offset 0x64 lies outside of area 1",
        ),
        (
            &[spawn, switch, Op::Read { area: 9, offset: 0 }],
            "step 3: the running process has no such area: 9",
        ),
        (
            &[spawn, Op::Round],
            "step 2: a round ends before tracking has started",
        ),
        (
            &[spawn, Op::Start, Op::Exit { process: 0 }],
            "step 3: the tracked process ends",
        ),
    ];
    for (ops, expected) in cases {
        let error = run(
            &RunConfig::new(TechniqueKind::SoftDirty),
            ops.iter().copied(),
        )
        .unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn devices_are_emulated_under_either_kind_of_paging() {
    for paging in [
        Paging::Nested {
            accessed_dirty: true,
        },
        Paging::Shadow,
    ] {
        let mut host = Host::new(&HostConfig::default()).unwrap();
        let vm = host
            .add_vm(&VmConfig {
                paging,
                ..VmConfig::default()
            })
            .unwrap();
        let process = host.spawn(vm).unwrap();
        host.schedule(process, vm.vcpu(0)).unwrap();
        let device = host.map_device(process, 2 * PAGE_BYTES).unwrap();
        let frames = host.memory().frames_in_use();
        host.access(vm.vcpu(0), device, false).unwrap();
        let before = host.events(vm);
        for _ in 0..5 {
            host.access(vm.vcpu(0), device, true).unwrap();
        }
        let events = host.events(vm) - before;
        assert_eq!(events.vm_exits, 5, "each access exits: {paging:?}");
        assert_eq!(events.sh_mmio, if paging == Paging::Shadow { 5 } else { 0 });
        assert!(
            host.memory().frames_in_use() - frames < 10,
            "page tables only"
        );
    }
}

#[test]
fn a_process_gives_back_all_that_it_had() {
    // Without a hypervisor the guest hands out the frames itself.
    for paging in PAGINGS.into_iter().skip(1) {
        let mut host = Host::new(&HostConfig::default()).unwrap();
        let vm = host
            .add_vm(&VmConfig {
                paging,
                ..VmConfig::default()
            })
            .unwrap();
        let mut in_use = Vec::new();
        for _ in 0..4 {
            let process = host.spawn(vm).unwrap();
            let vcpu = vm.vcpu(0);
            host.schedule(process, vcpu).unwrap();
            let area = host.map(process, 3000 * PAGE_BYTES).unwrap();
            for page in 0..3000 {
                host.access(vcpu, area.add_pages(page), page % 3 > 0)
                    .unwrap();
            }
            let target = Target {
                tracked: process,
                tracker: process,
                tracker_vcpu: vcpu,
            };
            if let Ok(mut technique) = TechniqueKind::Epml.start(&mut host, target) {
                technique.collect(&mut host).unwrap();
            }
            host.exit(process).unwrap();
            in_use.push(host.memory().frames_in_use());
        }
        assert!(
            in_use[1..].iter().all(|&frames| frames == in_use[1]),
            "{paging:?}: {in_use:?}"
        );
    }
}
