//! What KVM offers on this machine, by looking, and by running a guest of a few instructions.

use std::fs;

use pagetrail::{PageRange, PageSet};

use crate::error::{Error, Result};
use crate::guest::{Guest, Needs};
use crate::memory::PAGE;
use crate::memory::mapping::Mmap;
use crate::processor::cpuid;
use crate::sys::kvm::{self, Log, Vm};
use crate::sys::program_memory;
use crate::{RING_BYTES, best_log};

/// What was found. What could not be told is `None`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// `VMX` or `SVM`, as the processor says.
    pub virtualization: Option<&'static str>,
    /// Whether guest-physical addresses are translated by the processor (EPT, NPT).
    pub nested_paging: Option<bool>,
    /// Whether the processor logs written pages itself.
    pub page_modification_logging: Option<bool>,
    /// The largest ring of dirty pages, in pages; 0 where KVM has none.
    pub ring_pages: usize,
    /// How many memslots a machine may have.
    pub memslots: u32,
    /// How many bits a guest-physical address has.
    pub physical_bits: u8,
}

/// Asks KVM.
pub fn report() -> Result<Report> {
    let kvm = kvm::open()?;
    let vm = Vm::create(Log::Off)?;
    let flags = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let has = |flag: &str| flags.split_whitespace().any(|word| word == flag);
    let virtualization = match () {
        () if has("vmx") => Some("VMX"),
        () if has("svm") => Some("SVM"),
        () => None,
    };
    Ok(Report {
        virtualization,
        nested_paging: parameter("kvm_intel/parameters/ept")
            .or(parameter("kvm_amd/parameters/npt")),
        page_modification_logging: match parameter("kvm_intel/parameters/pml") {
            None if fs::exists("/sys/module/kvm_amd").unwrap_or(false) => Some(false),
            told => told,
        },
        ring_pages: kvm::ring_bytes_max(&kvm) / 16,
        memslots: kvm::slots_max(&kvm),
        physical_bits: cpuid::physical_bits(&vm.supported_cpuid()?),
    })
}

fn parameter(name: &str) -> Option<bool> {
    let text = fs::read_to_string(format!("/sys/module/{name}")).ok()?;
    Some(matches!(text.trim(), "Y" | "1"))
}

/// Runs a guest that writes to pages that we know, in two rounds, and holds what KVM tells against that.
///
/// Says how the writes were told of: by `ring` or by `bitmap`.
pub fn try_guest() -> Result<&'static str> {
    let log = best_log()?;
    try_with(log)?;
    Ok(match log {
        Log::Ring(_) => "ring",
        Log::Bitmap | Log::Off => "bitmap",
    })
}

/// The same, with bitmaps instead of rings, or with the smallest ring that is enough.
#[doc(hidden)]
pub fn try_guest_by(bitmap: bool) -> Result<()> {
    try_with(if bitmap {
        Log::Bitmap
    } else {
        Log::Ring(RING_BYTES)
    })
}

fn try_with(log: Log) -> Result<()> {
    const PAGES: u64 = 16;
    let rounds: [&[u64]; 3] = [&[1, 2, 7], &[2, 15], &[]];
    let mut guest = Guest::new(log)?;
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    let data = mapped(&guest, PAGES * PAGE, writable)?;
    let code = mapped(&guest, PAGE, writable)?;
    let page = |n: u64| data + n * PAGE;
    let mut text = Vec::new();
    for round in rounds {
        round.iter().for_each(|n| store(&mut text, page(*n) + n));
        call(&mut text);
    }
    program_memory::write(code, &text)
        .map_err(|error| Error::system("write the guest's code")(error.into()))?;
    guest
        .memory()
        .mprotect(code, PAGE, (libc::PROT_READ | libc::PROT_EXEC) as u64)?;
    guest.begin_at(code, 0);
    for (index, round) in rounds.iter().enumerate() {
        match guest.run_on()? {
            Needs::Call(call) if call.number == NUMBER => guest.processor.return_from_call(0),
            other => {
                return Err(Error::Stopped(format!(
                    "the trial guest came back with {other:x?}"
                )));
            }
        }
        let expected: PageSet = round
            .iter()
            .filter_map(|n| PageRange::new(page(*n), page(n + 1)))
            .collect();
        let written = guest.collect()?.written;
        if written != expected {
            return Err(Error::Stopped(format!(
                "round {index} of the trial guest has {:?} instead of {:?}",
                written.ranges(),
                expected.ranges()
            )));
        }
    }
    Ok(())
}

pub(crate) fn mapped(guest: &Guest, bytes: u64, protection: libc::c_int) -> Result<u64> {
    let result = guest.memory().mmap(Mmap::anonymous(bytes, protection))?;
    u64::try_from(result).map_err(|_| {
        let error = std::io::Error::from_raw_os_error(-result as i32);
        Error::system("map memory")(error)
    })
}

/// A system call that nobody makes.
pub(crate) const NUMBER: u64 = 0x5ca1_ab1e;

/// `mov rax, ADDRESS; mov byte [rax], 1`
fn store(text: &mut Vec<u8>, address: u64) {
    text.extend([0x48, 0xb8]);
    text.extend(address.to_le_bytes());
    text.extend([0xc6, 0x00, 0x01]);
}

/// `mov eax, NUMBER; syscall`
pub(crate) fn call(text: &mut Vec<u8>) {
    text.push(0xb8);
    text.extend((NUMBER as u32).to_le_bytes());
    text.extend([0x0f, 0x05]);
}
