//! The bench that the suite runs on: a machine, a tracked process, and a record of its writes.

use std::collections::BTreeSet;

use pagetrail_model::machine::{Gva, PAGE_BYTES};
use pagetrail_model::technique::{Target, Technique, TechniqueKind};
use pagetrail_model::{
    Events, Host, HostConfig, Paging, ProcessId, VcpuId, VmConfig, VmId, WriteSet,
};

pub(crate) const KINDS: [TechniqueKind; 9] = [
    TechniqueKind::Oracle,
    TechniqueKind::SoftDirty,
    TechniqueKind::Userfaultfd,
    TechniqueKind::Spml,
    TechniqueKind::Epml,
    TechniqueKind::Lu {
        parts: 1,
        dynamic: false,
    },
    TechniqueKind::Lu {
        parts: 4,
        dynamic: false,
    },
    TechniqueKind::Lu {
        parts: 4,
        dynamic: true,
    },
    TechniqueKind::Shadow,
];

/// A machine with two vCPUs, a tracked process with one area, and everything that it wrote.
pub(crate) struct Bench {
    pub(crate) kind: TechniqueKind,
    pub(crate) host: Host,
    pub(crate) vm: VmId,
    pub(crate) tracked: ProcessId,
    pub(crate) vcpu: VcpuId,
    pub(crate) area: Gva,
    pub(crate) written: BTreeSet<Gva>,
    /// Of a random test.
    pub(crate) seed: u64,
}

impl Bench {
    pub(crate) fn new(kind: TechniqueKind, pages: u64) -> Self {
        Self::backed(kind, pages, false)
    }

    pub(crate) fn backed(kind: TechniqueKind, pages: u64, huge_backing: bool) -> Self {
        let mut host = Host::new(&HostConfig::default()).unwrap();
        let paging = match kind {
            TechniqueKind::Shadow => Paging::Shadow,
            _ => Paging::Nested {
                accessed_dirty: true,
            },
        };
        let vm = host
            .add_vm(&VmConfig {
                vcpus: 2,
                paging,
                huge_backing,
                ..VmConfig::default()
            })
            .unwrap();
        let tracked = host.spawn(vm).unwrap();
        let vcpu = vm.vcpu(0);
        host.schedule(tracked, vcpu).unwrap();
        let area = host.map(tracked, pages * PAGE_BYTES).unwrap();
        for page in 0..pages {
            host.access(vcpu, area.add_pages(page), true).unwrap();
        }
        Self {
            kind,
            host,
            vm,
            tracked,
            vcpu,
            area,
            written: BTreeSet::new(),
            seed: 0,
        }
    }

    pub(crate) fn target(&self) -> Target {
        Target {
            tracked: self.tracked,
            tracker: self.tracked,
            tracker_vcpu: self.vm.vcpu(0),
        }
    }

    pub(crate) fn start(&mut self) -> Box<dyn Technique> {
        let target = self.target();
        self.kind.start(&mut self.host, target).unwrap()
    }

    pub(crate) fn access(&mut self, technique: &mut dyn Technique, gva: Gva, write: bool) {
        self.host
            .access(self.vcpu, technique.place(gva), write)
            .unwrap();
        if write {
            technique.observe_write(gva);
            self.written.insert(gva);
        }
    }

    pub(crate) fn write_page(&mut self, technique: &mut dyn Technique, page: u64) {
        self.access(technique, self.area.add_pages(page), true);
    }

    /// Collects, and holds the report to the promise.
    pub(crate) fn collect(&mut self, technique: &mut dyn Technique) -> WriteSet {
        let reported = technique.collect(&mut self.host).unwrap();
        for gva in std::mem::take(&mut self.written) {
            assert!(
                reported.contains(gva),
                "{}, seed {}: the write to {gva:?} is lost",
                self.kind,
                self.seed
            );
        }
        reported
    }

    /// Collects, and expects nothing but what was written.
    pub(crate) fn collect_exactly(&mut self, technique: &mut dyn Technique) {
        let written = self.written.clone();
        let reported = self.collect(technique);
        let expected = WriteSet::new(reported.unit_bytes(), written);
        assert_eq!(reported, expected, "{}, seed {}", self.kind, self.seed);
    }

    pub(crate) fn events(&self) -> Events {
        self.host.events(self.vm)
    }
}

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % bound
    }
}
