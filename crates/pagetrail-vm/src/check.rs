//! Reports what KVM offers on this machine, and tries it with guests of a few instructions.

use std::fs;
use std::time::{Duration, Instant};

use pagetrail::{PageRange, PageSet};

pub use crate::report::Report;

use crate::best_log;
use crate::error::{Error, Result};
use crate::guest::Guest;
use crate::memory::PAGE;
use crate::memory::mapping::Mmap;
use crate::processor::cpuid;
use crate::rounds::unit_change::{Aliased, UnitChange};
use crate::sys::kvm::{self, Log, Vm};
use crate::trial::{DoneBy, begin, load, mapped, store};

/// Queries KVM and the processor, without running a guest.
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
            reported => reported,
        },
        ring_pages: kvm::ring_bytes_max(&kvm) / 16,
        memslots: kvm::slots_max(&kvm),
        physical_bits: cpuid::physical_bits(&vm.supported_cpuid()?),
    })
}

/// Whether KVM uses an AMD processor without nested paging.
pub(crate) fn has_shadow_paging_of_amd() -> bool {
    parameter("kvm_amd/parameters/npt") == Some(false)
}

fn parameter(name: &str) -> Option<bool> {
    let text = fs::read_to_string(format!("/sys/module/{name}")).ok()?;
    Some(matches!(text.trim(), "Y" | "1"))
}

/// Runs a guest that dirties a fixed set of pages in two rounds, and compares the rounds with it.
///
/// Returns how KVM reported the dirty pages: by `ring` or by `bitmap`.
pub fn try_guest() -> Result<&'static str> {
    let log = best_log()?;
    try_with(log)?;
    Ok(match log {
        Log::Ring(_) => "ring",
        Log::Bitmap | Log::Off => "bitmap",
    })
}

/// Like [`try_guest`], but with bitmaps, or with the largest dirty ring.
#[cfg(feature = "test-equipment")]
pub fn try_guest_by(bitmap: bool) -> Result<()> {
    try_with(if bitmap {
        Log::Bitmap
    } else {
        Log::Ring(crate::RING_BYTES)
    })
}

/// Runs a guest that reads and writes fixed sets of pages in several rounds, and compares the
/// accessed pages of each round with them.
///
/// A KVM without nested paging does not notice that an accessed bit was cleared, and sets it only
/// once.
pub fn try_accesses() -> Result<()> {
    try_accesses_with(DoneBy::Call)
}

/// Like [`try_accesses`], for a KVM that emulates instructions: the guest exits by exceptions, and
/// the processor flushes its TLB after each of them anyway.
#[cfg(feature = "test-equipment")]
pub fn try_accesses_by_exceptions() -> Result<()> {
    try_accesses_with(DoneBy::Exception)
}

fn try_accesses_with(sign: DoneBy) -> Result<()> {
    const PAGES: u64 = 16;
    // The pages read and the pages written in each round.
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
    // Pages that only the first round touches.
    let early = pages(&[1, 3, 7]);
    for (index, (read, written)) in rounds.iter().enumerate() {
        sign.wait_in(&mut guest)?;
        let round = guest.collect()?;
        let accessed = round.accessed.unwrap_or_default();
        // The processor may access more than the guest's instructions do, since it prefetches. A
        // page that was not touched for whole rounds must be absent.
        let missing = pages(read).union(&pages(written)).difference(&accessed);
        let stale = accessed.intersection(&early);
        if !missing.is_empty() || index > 0 && !stale.is_empty() || round.written != pages(written)
        {
            return Err(Error::Lacks(
                "accessed bits that show what a guest reads (nested paging, EPT or NPT, has them)",
            ));
        }
    }
    Ok(())
}

/// Merges and separates the two aliases of a guest's page, and compares the rounds with what it
/// writes.
///
/// A KVM without nested paging goes on to protect a page by the guest-physical address at which it
/// has found it first, and then misses writes.
pub fn try_units() -> Result<()> {
    let mut guest = Guest::new(best_log()?)?;
    let of = two_aliases(&mut guest)?;
    let second = of.page(1, 0);
    // The aliases that are merged before each round, and the pages that it then has.
    let rounds: [(u64, &[u64]); 4] = [(0, &[1]), (0b11, &[0, 1]), (0b11, &[0, 1]), (0, &[1])];
    let mut text = Vec::new();
    DoneBy::Call.emit(&mut text);
    for _ in rounds {
        store(&mut text, second);
        DoneBy::Call.emit(&mut text);
    }
    begin(&mut guest, &text)?;
    DoneBy::Call.wait_in(&mut guest)?;
    guest.collect()?;
    for (merged, expected) in rounds {
        let change = UnitChange {
            of,
            first: 0,
            pages: 1,
            merged,
        };
        if let Some(log) = guest.log() {
            log.change_units(&guest.vm, &mut guest.memory(), &[change], true, || false)?;
        }
        DoneBy::Call.wait_in(&mut guest)?;
        let pages = expected.iter().map(|alias| of.page(*alias as u32, 0));
        let expected: PageSet = pages
            .filter_map(|page| PageRange::new(page, page + PAGE))
            .collect();
        if guest.collect()?.written != expected {
            return Err(Error::Lacks(
                "page tables in which sub-pages can be merged (nested paging, EPT or NPT, has them)",
            ));
        }
    }
    Ok(())
}

/// What the first write to a page in a round costs a guest on this machine: an exit, or next to
/// nothing where the processor logs it.
///
/// # Errors
///
/// The trial guest cannot be run.
pub fn price_of_write() -> Result<Duration> {
    const PAGES: u64 = 256;
    const ROUNDS: usize = 5;
    let mut guest = Guest::new(best_log()?)?;
    let data = mapped(&guest, PAGES * PAGE, libc::PROT_READ | libc::PROT_WRITE)?;
    let mut text = Vec::new();
    (0..PAGES).for_each(|n| store(&mut text, data + n * PAGE));
    DoneBy::Call.emit(&mut text);
    text.push(0xe9); // jmp to the beginning
    text.extend((-(text.len() as i32 + 4)).to_le_bytes());
    begin(&mut guest, &text)?;
    // The first pass touches pages that do not exist yet.
    DoneBy::Call.wait_in(&mut guest)?;
    let mut least = [Duration::MAX; 2];
    for _ in 0..ROUNDS {
        guest.collect()?;
        // A pass that is logged, and the same again, which is not.
        for least in &mut least {
            let began = Instant::now();
            DoneBy::Call.wait_in(&mut guest)?;
            *least = began.elapsed().min(*least);
        }
    }
    let [logged, again] = least;
    Ok(logged.saturating_sub(again) / PAGES as u32)
}

/// A page that a guest has at two addresses.
fn two_aliases(guest: &mut Guest) -> Result<Aliased> {
    let base = mapped(guest, 2 * PAGE, libc::PROT_NONE)?;
    let mut memory = guest.memory();
    let fixed = (libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED) as u64;
    let first = Mmap {
        address: base,
        flags: fixed,
        ..Mmap::anonymous(PAGE, libc::PROT_READ | libc::PROT_WRITE)
    };
    let moves = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    // An old length of 0 maps the same memory once more.
    let second = [base, 0, PAGE, moves, base + PAGE, 0];
    for result in [memory.mmap(first)?, memory.mremap(second)?] {
        if result < 0 {
            let error = std::io::Error::from_raw_os_error(-result as i32);
            return Err(Error::system("map memory twice")(error));
        }
    }
    Ok(Aliased {
        base,
        alias_bytes: PAGE,
        aliases: 2,
    })
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
