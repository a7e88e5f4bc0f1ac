//! What KVM offers on this machine, by looking, and by running a guest of a few instructions.

use std::fs;

use pagetrail::{PageRange, PageSet};

use crate::error::{Error, Result};
use crate::guest::Guest;
use crate::memory::PAGE;
use crate::processor::cpuid;
use crate::sys::kvm::{self, Log, Vm};
use crate::trial::{DoneBy, begin, load, mapped, store};
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

/// Runs a guest that reads and writes pages that we know, in rounds, and holds against that what the bits in page tables tell
/// of accesses.
///
/// A KVM without nested paging does not know when such a bit was cleared, and sets it once only.
pub fn try_accesses() -> Result<()> {
    try_accesses_with(DoneBy::Call)
}

/// The same on a KVM that emulates instructions: the guest comes back by exceptions, behind each of which the processor would
/// forget addresses anyway.
#[doc(hidden)]
pub fn try_accesses_by_exceptions() -> Result<()> {
    try_accesses_with(DoneBy::Exception)
}

fn try_accesses_with(sign: DoneBy) -> Result<()> {
    const PAGES: u64 = 16;
    // What is read and what is written in each round.
    let rounds: [(&[u64], &[u64]); 5] = [
        (&[1, 2, 7], &[3]),
        (&[2], &[]),
        (&[], &[]),
        (&[2, 15], &[2, 4]),
        (&[], &[4]),
    ];
    let mut guest = Guest::new(best_log()?)?;
    if let Some(log) = guest.log() {
        log.track_accesses(&mut guest.memory());
    }
    let data = mapped(&guest, PAGES * PAGE, libc::PROT_READ | libc::PROT_WRITE)?;
    let page = |n: u64| data + n * PAGE;
    let mut text = Vec::new();
    for (read, written) in rounds {
        read.iter().for_each(|n| load(&mut text, page(*n) + n));
        written.iter().for_each(|n| store(&mut text, page(*n) + n));
        sign.emit(&mut text);
    }
    begin(&mut guest, &text)?;
    let pages = |numbers: &[u64]| -> PageSet {
        let ranges = numbers.iter();
        ranges
            .filter_map(|n| PageRange::new(page(*n), page(n + 1)))
            .collect()
    };
    // Those of the first round alone.
    let early = pages(&[1, 3, 7]);
    for (index, (read, written)) in rounds.iter().enumerate() {
        sign.wait_in(&mut guest)?;
        let round = guest.collect()?;
        let told = round.accessed.unwrap_or_default();
        // A processor may tell more than it must: it reads ahead. But not what was left alone for whole rounds.
        let missing = pages(read).union(&pages(written)).difference(&told);
        let stale = told.intersection(&early);
        if !missing.is_empty() || index > 0 && !stale.is_empty() || round.written != pages(written)
        {
            return Err(Error::Lacks(
                "accessed bits that tell what a guest reads, as nested paging (EPT, NPT) has them",
            ));
        }
    }
    Ok(())
}

fn try_with(log: Log) -> Result<()> {
    const PAGES: u64 = 16;
    let rounds: [&[u64]; 3] = [&[1, 2, 7], &[2, 15], &[]];
    let mut guest = Guest::new(log)?;
    let data = mapped(&guest, PAGES * PAGE, libc::PROT_READ | libc::PROT_WRITE)?;
    let page = |n: u64| data + n * PAGE;
    let mut text = Vec::new();
    for round in rounds {
        round.iter().for_each(|n| store(&mut text, page(*n) + n));
        DoneBy::Call.emit(&mut text);
    }
    begin(&mut guest, &text)?;
    for (index, round) in rounds.iter().enumerate() {
        DoneBy::Call.wait_in(&mut guest)?;
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
