//! The CPUID that the program sees: what KVM supports, less what the machine does not. Pure.

use kvm_bindings::{CpuId, kvm_cpuid_entry2};

/// x87, SSE, AVX, and the three parts of AVX-512.
const STATE_PARTS: u64 = 0b1110_0111;

/// The length of what `FXSAVE` writes. With a header after it, it is the least that `XSAVE` writes.
const FXSAVE_BYTES: u32 = 512;
const STATE_BYTES_MIN: u32 = 576;

/// The features that decide how a vCPU is set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Features {
    /// `WRFSBASE` and its like.
    pub(crate) fsgsbase: bool,
    /// `RDPID`, by which the vDSO finds the number of the CPU.
    pub(crate) rdpid: bool,
    /// The components of the extended state; 0 without `XSAVE`.
    pub(crate) xcr0: u64,
    /// The length of the extended state in the processor's standard format.
    pub(crate) state_bytes: usize,
}

/// Removes what the machine does not support from what KVM supports.
pub(crate) fn offered(supported: CpuId) -> CpuId {
    let mut entries: Vec<kvm_cpuid_entry2> = supported.as_slice().to_vec();
    entries.retain(|entry| !is_withheld(entry));
    entries.iter_mut().for_each(mask);
    CpuId::from_entries(&entries).unwrap_or(supported)
}

/// Whether a leaf is left out: those about hypervisors, tracing, and AMX, and those about
/// components of the extended state that XCR0 will not have.
fn is_withheld(entry: &kvm_cpuid_entry2) -> bool {
    match entry.function {
        0x14 | 0x1d | 0x1e | 0x4000_0000..=0x4fff_ffff => true,
        0xd => entry.index >= 2 && (entry.index > 63 || STATE_PARTS >> entry.index & 1 == 0),
        _ => false,
    }
}

fn mask(entry: &mut kvm_cpuid_entry2) {
    match (entry.function, entry.index) {
        // MONITOR, VMX, PCID, the deadline timer, "there is a hypervisor".
        (1, _) => entry.ecx &= !(1 << 3 | 1 << 5 | 1 << 17 | 1 << 24 | 1 << 31),
        (7, 0) => {
            // SGX, MPX, trace.
            entry.ebx &= !(1 << 2 | 1 << 14 | 1 << 25);
            // Protection keys, WAITPKG, shadow stacks, five levels of tables.
            entry.ecx &= !(1 << 3 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 16);
            // User interrupts, branch tracking, AMX.
            entry.edx &= !(1 << 5 | 1 << 20 | 1 << 22 | 1 << 24 | 1 << 25);
        }
        (7, 1) => {
            // AMX, and APX, whose registers are part of the extended state.
            entry.eax &= !(1 << 21);
            entry.edx &= !(1 << 8 | 1 << 21);
        }
        (0xd, 0) => {
            entry.eax &= STATE_PARTS as u32;
            entry.edx = 0;
        }
        (0xd, 1) => {
            entry.ecx = 0;
            entry.edx = 0;
        }
        // SVM, MWAITX.
        (0x8000_0001, _) => entry.ecx &= !(1 << 2 | 1 << 29),
        _ => {}
    }
}

/// Finds the features that decide how a vCPU is set up.
pub(crate) fn features(cpuid: &CpuId) -> Features {
    let find = |function, index| {
        let mut entries = cpuid.as_slice().iter();
        entries.find(|entry| entry.function == function && entry.index == index)
    };
    let has_xsave = find(1, 0).is_some_and(|entry| entry.ecx & 1 << 26 != 0);
    let parts = find(0xd, 0).map_or(0, |entry| u64::from(entry.eax));
    // Each component after the first two has a leaf with its length and offset.
    let ends = (2..64).filter_map(|part| find(0xd, part).map(|entry| entry.eax + entry.ebx));
    let state_bytes = if has_xsave {
        ends.max().unwrap_or(0).max(STATE_BYTES_MIN)
    } else {
        FXSAVE_BYTES
    };
    Features {
        fsgsbase: find(7, 0).is_some_and(|entry| entry.ebx & 1 != 0),
        rdpid: find(7, 0).is_some_and(|entry| entry.ecx & 1 << 22 != 0),
        xcr0: if has_xsave { parts } else { 0 },
        state_bytes: state_bytes as usize,
    }
}

/// The width of a guest-physical address in bits.
pub(crate) fn physical_bits(cpuid: &CpuId) -> u8 {
    let mut entries = cpuid.as_slice().iter();
    let entry = entries.find(|entry| entry.function == 0x8000_0008);
    entry.map_or(36, |entry| entry.eax as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(function: u32, index: u32, registers: [u32; 4]) -> kvm_cpuid_entry2 {
        let [eax, ebx, ecx, edx] = registers;
        kvm_cpuid_entry2 {
            function,
            index,
            eax,
            ebx,
            ecx,
            edx,
            ..Default::default()
        }
    }

    #[test]
    fn what_the_machine_does_not_do_is_not_offered() {
        let all = [u32::MAX; 4];
        let supported = CpuId::from_entries(&[
            entry(1, 0, all),
            entry(7, 0, all),
            entry(0xd, 0, all),
            entry(0xd, 2, [256, 576, 0, 0]),
            entry(0xd, 9, all),
            entry(0xd, 18, all),
            entry(0x4000_0000, 0, all),
            entry(0x8000_0001, 0, all),
            entry(0x8000_0008, 0, [40, 0, 0, 0]),
        ])
        .unwrap();
        let offered = offered(supported);
        let features = features(&offered);
        assert_eq!(features.xcr0, 0xe7);
        assert_eq!(features.state_bytes, 832);
        assert!(features.fsgsbase);
        assert_eq!(physical_bits(&offered), 40);
        let leaves: Vec<_> = offered
            .as_slice()
            .iter()
            .map(|e| (e.function, e.index))
            .collect();
        let expected = [
            (1, 0),
            (7, 0),
            (0xd, 0),
            (0xd, 2),
            (0x8000_0001, 0),
            (0x8000_0008, 0),
        ];
        assert_eq!(leaves, expected);
        let first = offered.as_slice()[0];
        assert_eq!(first.ecx & (1 << 5 | 1 << 31), 0);
    }
}
