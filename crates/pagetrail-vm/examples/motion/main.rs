//! The Xen study's MemoryMotion as a guest of the virtual machine, under probes: processes that
//! map memory, write to each page of it, and unmap it, one after the other. And its content-based
//! page sharing (`sharing`): equal pages that the kernel merges, and then that all are written to.
//!
//! All is one program, so that it can be the only program of a machine: linked statically, it runs
//! under `cargo xtask bochs`, with nested paging or (`--shadow`) with shadow page tables, which is
//! what `cargo xtask shadow` does. Times are those of that machine's clock, which counts
//! instructions.
//!
//! Usage: `motion [SEED [INTERVAL [sharing]]]`. Each line of the output is an object of JSON; the
//! exit status is 0 if the program's result was right, natively and as a guest.
#![allow(unsafe_code, reason = "processes without a library's help")]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it reports to the person who started it"
)]

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::process::{Command, ExitCode};

use pagetrail_probes::{Error, Found, Interval, Probes, Settings};
use serde_json::{Value, json};

mod sharing;

/// How many processes there are, one after the other.
const PROCESSES: u32 = 4;
/// The pages of each.
const PAGES: usize = 2048;
const PAGE: usize = 4096;

/// Functions of KVM that have to do with page tables, exits, and pages that the host moves; those
/// that this kernel has are timed.
const FUNCTIONS: &[&str] = &[
    "vmx_handle_exit",
    "handle_exception_nmi",
    "handle_ept_violation",
    "handle_invlpg",
    "handle_cr",
    "kvm_handle_page_fault",
    "kvm_mmu_page_fault",
    "kvm_mmu_do_page_fault",
    "paging64_page_fault",
    "paging64_walk_addr_generic",
    "paging64_gva_to_gpa",
    "paging64_fetch",
    "paging64_sync_spte",
    "direct_page_fault",
    "kvm_tdp_page_fault",
    "kvm_tdp_mmu_map",
    "kvm_faultin_pfn",
    "mmu_set_spte",
    "make_spte",
    "mmu_spte_update",
    "kvm_mmu_get_page",
    "kvm_mmu_get_shadow_page",
    "mmu_sync_children",
    "kvm_mmu_sync_roots",
    "kvm_mmu_track_write",
    "kvm_mmu_load",
    "kvm_mmu_free_roots",
    "kvm_mmu_zap_all",
    "__kvm_mmu_prepare_zap_page",
    "kvm_mmu_commit_zap_page",
    "kvm_unmap_gfn_range",
    "kvm_tdp_mmu_unmap_gfn_range",
    "kvm_mmu_notifier_invalidate_range_start",
    "kvm_inject_emulated_page_fault",
    "x86_emulate_instruction",
];

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let word = |n: usize| arguments.get(n).and_then(|word| word.to_str());
    let result = match word(0) {
        Some("work") => match word(1) {
            Some("merged") => sharing::share(word(2).unwrap_or_default(), 0),
            Some("parted") => sharing::share(word(2).unwrap_or_default(), usize::MAX),
            _ => work(),
        },
        Some("machine") => become_guest(&arguments[1..]),
        seed => judge(seed.unwrap_or("1"), word(1), word(2) == Some("sharing")),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("motion: {error}");
            ExitCode::from(2)
        }
    }
}

fn become_guest(command: &[OsString]) -> Result<bool> {
    pagetrail_vm::become_guest(command, &pagetrail_vm::Settings::default())?;
    Ok(false)
}

/// The program.
fn work() -> Result<bool> {
    for _ in 0..PROCESSES {
        // SAFETY: this process has one thread, so that the child has all that it needs.
        let child = unsafe { libc::fork() };
        match child {
            -1 => return Err(std::io::Error::last_os_error().into()),
            0 => {
                let fine = move_memory();
                // SAFETY: this ends the process.
                unsafe { libc::_exit(if fine { 7 } else { 1 }) }
            }
            child => {
                let mut status = 0;
                // SAFETY: `status` is there for the kernel to write to.
                let waited = unsafe { libc::waitpid(child, &mut status, 0) };
                if waited != child || status != 7 << 8 {
                    return Ok(false);
                }
            }
        }
    }
    Ok(true)
}

/// Memory of this process alone, in small pages.
struct Memory {
    at: *mut libc::c_void,
    length: usize,
}

impl Memory {
    fn map(pages: usize) -> Result<Self> {
        let (length, protection) = (pages * PAGE, libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the kernel chooses an address where nothing is.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().into());
        }
        let memory = Self { at, length };
        // Huge pages would make one fault of 512.
        memory.advise(libc::MADV_NOHUGEPAGE)?;
        Ok(memory)
    }

    fn may_be_merged(&self) -> Result<()> {
        self.advise(libc::MADV_MERGEABLE)
    }

    fn advise(&self, advice: libc::c_int) -> Result<()> {
        // SAFETY: the mapping is this value's, and neither advice changes what is in it.
        match unsafe { libc::madvise(self.at, self.length, advice) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error().into()),
        }
    }

    fn length(&self) -> usize {
        self.length
    }

    fn pages(&mut self) -> std::slice::ChunksMut<'_, u8> {
        // SAFETY: the mapping has this length, is readable, writable and zeroed, and only this
        // value refers to it.
        let memory = unsafe { std::slice::from_raw_parts_mut(self.at.cast::<u8>(), self.length) };
        memory.chunks_mut(PAGE)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more.
        unsafe { libc::munmap(self.at, self.length) };
    }
}

/// Maps memory, writes to each page, finds what it has written, and unmaps it.
fn move_memory() -> bool {
    let Ok(mut memory) = Memory::map(PAGES) else {
        return false;
    };
    for (number, page) in memory.pages().enumerate() {
        page[0] = number as u8 | 1;
    }
    let mut pages = memory.pages().enumerate();
    pages.all(|(number, page)| page[0] == number as u8 | 1)
}

/// Page faults of this process that took no input or output.
fn faults() -> u64 {
    // SAFETY: all bytes 0 are a value of this type.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is there for the kernel to write to.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    usage.ru_minflt as u64
}

fn judge(seed: &str, interval: Option<&str>, is_sharing: bool) -> Result<bool> {
    let seed: u64 = seed.parse()?;
    let interval = interval.map_or(Ok(Interval::SHORT_RUNS), str::parse)?;
    let parameter = |name: &str| {
        let text = fs::read_to_string(format!("/sys/module/{name}"));
        text.is_ok_and(|text| matches!(text.trim(), "Y" | "1"))
    };
    let nested = parameter("kvm_intel/parameters/ept") || parameter("kvm_amd/parameters/npt");
    let paging = if nested { "nested" } else { "shadow" };
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    println!(
        "{}",
        json!({"what": "machine", "paging": paging, "kernel": kernel.trim(), "seed": seed,
               "interval": interval.to_string(), "processes": PROCESSES, "pages": PAGES})
    );
    let mut probes = attach(seed, interval)?;
    let this = std::env::current_exe()?;
    let mut fine = true;
    let scanner = is_sharing.then(sharing::Scanner::start).transpose()?;
    let works: &[&str] = match scanner {
        Some(_) => &["motion", "merged", "parted"],
        None => &["motion"],
    };
    let places = [("native", None), ("guest", Some("machine"))];
    let runs = works
        .iter()
        .flat_map(|&work| places.map(|place| (work, place)));
    for (work, (place, machine)) in runs {
        let mut command = Command::new(&this);
        if let Some(machine) = machine {
            command.arg(machine).arg(&this);
        }
        probes.begin()?;
        if work != "motion" {
            probes.follow(&sharing::threads()?)?;
        }
        let status = command.args(["work", work, place]).status()?;
        report(work, place, &probes.found()?);
        if !status.success() {
            println!(
                "{}",
                json!({"what": "failure", "work": work, "in": place, "end": status.to_string()})
            );
            fine = false;
        }
    }
    Ok(fine)
}

/// Attaches probes to those of the functions that this kernel has, and says which it has not.
fn attach(seed: u64, interval: Interval) -> Result<Probes> {
    let absent = |name: &str, reason: &str| {
        println!(
            "{}",
            json!({"what": "absent", "name": name, "reason": reason})
        );
    };
    // To attach takes long on an emulated processor, and each that is refused takes it again.
    let symbols = fs::read_to_string("/proc/kallsyms")?;
    let symbols = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2));
    let symbols: HashSet<&str> = symbols.collect();
    let mut functions = Vec::new();
    for &name in FUNCTIONS {
        match symbols.contains(name) {
            true => functions.push(name.to_owned()),
            false => absent(name, "this kernel has no such symbol"),
        }
    }
    loop {
        let settings = Settings {
            functions: functions.clone(),
            interval,
            seed,
        };
        match Probes::attach(&settings) {
            Err(Error::Function { name, reason }) => {
                absent(&name, &reason);
                functions.retain(|other| *other != name);
            }
            attached => return Ok(attached?),
        }
    }
}

fn report(work: &str, place: &str, found: &Found) {
    let line = |what: &str, mut value: Value| {
        for (key, said) in [("what", what), ("work", work), ("in", place)] {
            value[key] = said.into();
        }
        println!("{value}");
    };
    for exit in &found.exits {
        line("exit", json!(exit));
    }
    for event in &found.events {
        line("event", json!(event));
    }
    for function in found.functions.iter().filter(|function| function.calls > 0) {
        line("function", json!(function));
    }
    line("timer", json!({"mean_ns": found.timer_ns}));
}
