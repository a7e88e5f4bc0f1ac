//! Measures what the library adds to the system calls of `pagemap-scan`, and to those of a handler
//! of write faults: each figure of the library is compared, in one run, with that of a loop that
//! makes only the system calls, on the same memory.
//!
//! `cargo run --release --example bare_loop [RUNS]`. Prints one JSON document; all figures are
//! medians.
#![allow(unsafe_code, reason = "it measures bare system calls")]
#![allow(clippy::print_stdout, reason = "that is what an example is for")]

mod fault;
mod kernel;

use kernel::{Memory, Outcome, ioctl};
use linux_raw_sys::general::{
    self as raw, page_region, pm_scan_arg, uffdio_api, uffdio_range, uffdio_register,
};
use pagetrail::{PageRange, Target, Technique, Watch, page_size};
use rustix::fd::OwnedFd;
use rustix::mm::MapFlags;
use std::fs::File;
use std::time::{Duration, Instant};

const GIB: u64 = 1 << 30;
/// `_IOWR('f', 16, struct pm_scan_arg)` in uapi/linux/fs.h.
const PAGEMAP_SCAN: u32 = rustix::ioctl::opcode::read_write::<pm_scan_arg>(b'f', 16);
/// The length of the scan's vector, which equals the library's.
const VECTOR_LEN: usize = 4096;
/// The number of written pages of the sparse mapping.
const FEW: u64 = 100;

fn main() -> Outcome<()> {
    let runs = match std::env::args().nth(1) {
        Some(runs) => runs.parse::<usize>()?.max(1),
        None => 21,
    };
    let memory = Memory::new(GIB, MapFlags::PRIVATE)?;
    memory.write(1);
    let (mut library, mut bare) = (Figures::default(), Figures::default());
    for run in 0..runs {
        // A mapping takes one userfaultfd, so the two run alternately; their order alternates as
        // well.
        for library_now in [run % 2 == 0, run % 2 == 1] {
            if library_now {
                measure(&memory, &mut ByLibrary::start(&memory)?, &mut library)?;
            } else {
                measure(&memory, &mut Bare::start(&memory)?, &mut bare)?;
            }
        }
    }
    let sparse = sparse(runs)?;
    let faults = fault::measure(runs)?;
    let written = memory.range.page_count() / 10;
    let compared = |figure: fn(&Figures) -> &Vec<Duration>| {
        let pair = (median(figure(&library)), median(figure(&bare)));
        let ratio = pair.0.as_secs_f64() / pair.1.as_secs_f64();
        let us = |time: Duration| time.as_nanos() as f64 / 1e3;
        format!(
            "{{\"library_us\": {:.1}, \"bare_us\": {:.1}, \"ratio\": {ratio:.3}}}",
            us(pair.0),
            us(pair.1)
        )
    };
    println!("{{");
    println!("  \"schema\": 1, \"runs\": {runs}, \"bytes\": {GIB}, \"pages_written\": {written},");
    println!("  \"untracked_pass\": {},", compared(|f| &f.untracked));
    println!("  \"tracked_pass\": {},", compared(|f| &f.tracked));
    println!("  \"collect_written\": {},", compared(|f| &f.written));
    println!("  \"collect_clean\": {},", compared(|f| &f.clean));
    println!(
        "  \"collect_sparse\": {{\"bytes\": {}, \"pages_written\": {FEW}, \"library_us\": {:.1}}},",
        64 * GIB,
        sparse.as_nanos() as f64 / 1e3
    );
    println!(
        "  \"handled_fault\": {{\"library_us\": {:.2}, \"bare_us\": {:.2}, \"ratio\": {:.3}}}",
        faults.library_us,
        faults.bare_us,
        faults.library_us / faults.bare_us
    );
    println!("}}");
    Ok(())
}

#[derive(Default)]
struct Figures {
    untracked: Vec<Duration>,
    tracked: Vec<Duration>,
    written: Vec<Duration>,
    clean: Vec<Duration>,
}

/// A way to collect the pages written since the last collect.
trait Collect {
    /// Collects, and returns the number of pages.
    fn collect(&mut self) -> Outcome<u64>;
}

/// Measures the second of two rounds: the first one finds page tables that were not scanned before.
fn measure(memory: &Memory, tracker: &mut dyn Collect, figures: &mut Figures) -> Outcome<()> {
    const EVERY: u64 = 10;
    let expected = memory.range.page_count().div_ceil(EVERY);
    memory.write(EVERY);
    tracker.collect()?;
    figures.tracked.push(memory.write(EVERY));
    // These pages are written already, so the same stores cause no faults.
    figures.untracked.push(memory.write(EVERY));
    let began = Instant::now();
    let pages = tracker.collect()?;
    figures.written.push(began.elapsed());
    if pages != expected {
        return Err(format!("{pages} pages instead of {expected}").into());
    }
    for _ in 0..5 {
        let began = Instant::now();
        let pages = tracker.collect()?;
        figures.clean.push(began.elapsed());
        if pages != 0 {
            return Err(format!("{pages} pages where none was written").into());
        }
    }
    Ok(())
}

fn median(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    times[times.len() / 2]
}

struct ByLibrary(Watch);

impl ByLibrary {
    fn start(memory: &Memory) -> Outcome<Self> {
        let watch = Watch::builder().target(Target::ranges([memory.range]));
        Ok(Self(watch.technique(Technique::PagemapScan).start()?))
    }
}

impl Collect for ByLibrary {
    fn collect(&mut self) -> Outcome<u64> {
        let round = self.0.collect()?;
        let pages = round.dirty().page_count();
        round.commit();
        Ok(pages)
    }
}

/// Makes only the system calls; their results stay in the vector.
struct Bare {
    /// Dropping it ends tracking.
    _uffd: OwnedFd,
    pagemap: File,
    range: PageRange,
    vector: Vec<page_region>,
}

impl Bare {
    fn start(memory: &Memory) -> Outcome<Self> {
        let range = memory.range;
        let flags = (raw::O_CLOEXEC | raw::O_NONBLOCK | raw::UFFD_USER_MODE_ONLY) as i32;
        // SAFETY: the descriptor only write-protects asynchronously, which changes no contents.
        let uffd = unsafe {
            rustix::mm::userfaultfd(rustix::mm::UserfaultfdFlags::from_bits_retain(flags as u32))?
        };
        let mut api = uffdio_api {
            api: raw::UFFD_API.into(),
            features: (raw::UFFD_FEATURE_WP_ASYNC
                | raw::UFFD_FEATURE_WP_HUGETLBFS_SHMEM
                | raw::UFFD_FEATURE_PAGEFAULT_FLAG_WP)
                .into(),
            ioctls: 0,
        };
        let mut register = uffdio_register {
            range: uffdio_range {
                start: range.start(),
                len: range.bytes(),
            },
            mode: raw::UFFDIO_REGISTER_MODE_WP.into(),
            ioctls: 0,
        };
        ioctl(&uffd, linux_raw_sys::ioctl::UFFDIO_API, &mut api)?;
        ioctl(&uffd, linux_raw_sys::ioctl::UFFDIO_REGISTER, &mut register)?;
        let empty = page_region {
            start: 0,
            end: 0,
            categories: 0,
        };
        let mut bare = Self {
            _uffd: uffd,
            pagemap: File::open("/proc/self/pagemap")?,
            range,
            vector: vec![empty; VECTOR_LEN],
        };
        bare.collect()?; // This arms the memory.
        Ok(bare)
    }
}

impl Collect for Bare {
    fn collect(&mut self) -> Outcome<u64> {
        let mut pages = 0;
        let mut start = self.range.start();
        while start < self.range.end() {
            let mut arg = pm_scan_arg {
                size: size_of::<pm_scan_arg>() as u64,
                flags: (raw::PM_SCAN_WP_MATCHING | raw::PM_SCAN_CHECK_WPASYNC).into(),
                start,
                end: self.range.end(),
                walk_end: 0,
                vec: self.vector.as_mut_ptr() as u64,
                vec_len: VECTOR_LEN as u64,
                max_pages: 0,
                category_inverted: 0,
                category_mask: raw::PAGE_IS_WRITTEN.into(),
                category_anyof_mask: 0,
                return_mask: raw::PAGE_IS_WRITTEN.into(),
            };
            let found = ioctl(&self.pagemap, PAGEMAP_SCAN, &mut arg)?;
            for region in &self.vector[..found] {
                pages += (region.end - region.start) / page_size();
            }
            start = arg.walk_end;
        }
        Ok(pages)
    }
}

/// Measures the library's collect of a large mapping with few pages, scattered over all of it.
fn sparse(runs: usize) -> Outcome<Duration> {
    let memory = Memory::new(64 * GIB, MapFlags::PRIVATE | MapFlags::NORESERVE)?;
    let mut watch = ByLibrary::start(&memory)?;
    let every = memory.range.page_count() / FEW;
    let mut times = Vec::new();
    for _ in 0..runs {
        memory.write(every + 1);
        let began = Instant::now();
        let pages = watch.collect()?;
        times.push(began.elapsed());
        if pages != FEW {
            return Err(format!("{pages} pages instead of {FEW}").into());
        }
    }
    Ok(median(&times))
}
