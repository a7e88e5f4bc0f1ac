//! Runs a program in the virtual machine whose reads and writes are known, and compares every round
//! with them: first rounds of writes alone, then of both.
//!
//! The program is the OoH paper's Listing 1: an array, one write to each page of it per pass;
//! passes that leave pages out; and passes without end, during which rounds are collected
//! ([`turning`]). All is one file, so that it can be the only program of a machine: linked
//! statically (`cargo rustc -p pagetrail-vm --example exact -- -C target-feature=+crt-static`), it
//! runs under `cargo xtask bochs`, where the processor logs dirty pages itself.
//!
//! Usage: `exact [pml|shadow]`. The exit status is 0 if every round is exact; with `pml` only if
//! page-modification logging is enabled as well, and pages were dirtied without an exit for each;
//! with `shadow` only if KVM has shadow page tables, which do not show accesses: rounds are of
//! writes alone then.
#![allow(unsafe_code, reason = "an array where both know it")]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it reports to the person who started it"
)]

mod turning;

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, ExitCode, Stdio};
use std::ptr;

use pagetrail::{PageRange, PageSet};
use pagetrail_vm::{GuestRound, Rounds, Settings, check};

const BASE: u64 = 0x1000_0000_0000;
const PAGE: u64 = 4096;
/// The pages of the array: eight times what a page-modification log holds.
const PAGES: u64 = 4096;
/// The counter of exits over all virtual machines, where debugfs is mounted.
const EXITS: &str = "/sys/kernel/debug/kvm/exits";
/// The pages that the program dirties apart from its array: the stack, the buffers of system calls,
/// the list of what to do.
const OTHERS_MAX: u64 = 128;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// One access of a pass: a page, and whether it is written.
type Step = (u64, bool);

/// A round's name, and what the program does in it.
type Pass = (&'static str, fn() -> Vec<Step>);

/// The rounds.
const PASSES: &[Pass] = &[
    ("first touch", all),
    ("nothing", Vec::new),
    ("listing 1", all),
    ("only reads", || {
        (0..PAGES).map(|page| (page, false)).collect()
    }),
    ("every third, reads between", || {
        (0..PAGES).map(|page| (page, page % 3 == 0)).collect()
    }),
    ("at random", at_random),
    ("listing 1, three times", || {
        (0..3).flat_map(|_| all()).collect()
    }),
    ("one page", || vec![(PAGES - 1, true)]),
    ("half, backwards", || {
        (0..PAGES / 2).rev().map(|page| (page, true)).collect()
    }),
];

fn all() -> Vec<Step> {
    (0..PAGES).map(|page| (page, true)).collect()
}

fn at_random() -> Vec<Step> {
    let mut state = 42u64;
    let mut below = |bound: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    (0..5000).map(|_| (below(PAGES), below(2) == 1)).collect()
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let word = |n: usize| arguments.get(n).and_then(|word| word.to_str());
    let result = match (word(0), word(1)) {
        (None, _) => judge(Needs::Any),
        (Some("pml"), None) => judge(Needs::Pml),
        (Some("shadow"), None) => judge(Needs::Shadow),
        (Some("write"), Some(shared)) => write(shared),
        (Some(how @ ("machine" | "machine-accesses")), Some(link)) => {
            machine(link, how != "machine", &arguments[2..])
        }
        _ => Err("usage: exact [pml|shadow]".into()),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("exact: {error}");
            ExitCode::from(2)
        }
    }
}

/// Becomes the program.
fn machine(link: &str, accesses: bool, command: &[OsString]) -> Result<bool> {
    let mut settings = Settings::default();
    settings.accesses = accesses;
    pagetrail_vm::recorded_guest(command, &settings, link.parse()?)?;
    Ok(false)
}

/// The program: makes a pass for each byte that it reads, and writes a byte after it; then passes
/// without end.
fn write(shared: &str) -> Result<bool> {
    let shared = turning::Shared::map(shared.parse()?)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: nothing else is mapped at this address, so that the new mapping replaces nothing.
    let at = unsafe {
        libc::mmap(
            BASE as *mut _,
            (PAGES * PAGE) as usize,
            protection,
            flags,
            -1,
            0,
        )
    };
    if at as u64 != BASE {
        return Err("there is no room for the array".into());
    }
    let array: *mut u8 = at.cast();
    let touch = |(page, writes): Step| {
        let offset = (page * PAGE) as usize;
        // SAFETY: `page` is below the number of pages of the array, which is mapped readable and
        // writable.
        unsafe {
            let byte = array.add(offset);
            let value = ptr::read_volatile(byte);
            if writes {
                ptr::write_volatile(byte, value.wrapping_add(1));
            }
        }
    };
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    for (_, steps) in PASSES {
        let steps = steps();
        input.read_exact(&mut [0])?;
        steps.into_iter().for_each(touch);
        output.write_all(&[1])?;
        output.flush()?;
    }
    turning::run_state(&shared, touch);
    Ok(true)
}

/// What KVM must have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Any,
    Pml,
    Shadow,
}

fn judge(needs: Needs) -> Result<bool> {
    let wants_pml = needs == Needs::Pml;
    let report = check::report()?;
    println!(
        "virtualization {}, page-modification logging {}, ring of {} pages",
        report.virtualization.unwrap_or("not known"),
        match report.page_modification_logging {
            Some(true) => "on",
            Some(false) => "off",
            None => "not known",
        },
        report.ring_pages
    );
    if wants_pml && report.page_modification_logging != Some(true) {
        return Err("this KVM does not use page-modification logging".into());
    }
    if needs == Needs::Shadow && report.nested_paging != Some(false) {
        return Err("this KVM uses nested paging".into());
    }
    let mut fine = true;
    let rounds: &[&str] = match needs {
        Needs::Shadow => &["machine"],
        _ => &["machine", "machine-accesses"],
    };
    for &how in rounds {
        println!("-- {how}");
        fine &= judge_one(how, wants_pml)?;
    }
    Ok(fine)
}

fn judge_one(how: &str, wants_pml: bool) -> Result<bool> {
    let this = std::env::current_exe()?;
    let (mut rounds, link) = pagetrail_vm::pair()?;
    let shared = turning::Shared::create()?;
    let mut program = Command::new(&this)
        .args([how, &link.as_raw_fd().to_string()])
        .arg(&this)
        .args(["write", &shared.as_raw_fd().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    drop(link);
    let mut fine = true;
    for (name, steps) in PASSES {
        let before = exits();
        next_pass(&mut program)?;
        let exits = before.and_then(|before| Some(exits()? - before));
        fine &= hold_against(name, &steps(), &mut rounds, exits)?;
        // Pages beyond the first log are logged without an exit for each: fewer exits than an
        // eighth of the log's entries.
        if wants_pml && *name == "listing 1" {
            let few = exits.is_some_and(|exits| exits < PAGES / 64);
            if !few {
                println!("  an exit for more than every 64th page");
            }
            fine &= few;
        }
    }
    fine &= turning::judge(&shared, &mut rounds)?;
    drop(rounds);
    let ended = program.wait()?;
    if !ended.success() {
        println!("the program has ended with {ended}");
    }
    Ok(fine && ended.success())
}

fn next_pass(program: &mut Child) -> Result<()> {
    let no_pipe = "the program has no pipe";
    program.stdin.as_mut().ok_or(no_pipe)?.write_all(&[1])?;
    let output = program.stdout.as_mut().ok_or(no_pipe)?;
    output
        .read_exact(&mut [0])
        .map_err(|_| "the program is gone")?;
    Ok(())
}

fn hold_against(
    name: &str,
    steps: &[Step],
    rounds: &mut Rounds,
    exits: Option<u64>,
) -> Result<bool> {
    // The final round arrives without a request when the program ends.
    let (GuestRound::Round(collected) | GuestRound::Final(collected)) = rounds.collect()? else {
        return Err("the program is gone".into());
    };
    let page_of = |page: &u64| PageRange::new(BASE + page * PAGE, BASE + (page + 1) * PAGE);
    let array: PageSet = PageRange::new(BASE, BASE + PAGES * PAGE)
        .into_iter()
        .collect();
    let mut fine = true;
    let mut compare = |what: &str, collected: &PageSet, expected: PageSet| {
        let of_array = collected.intersection(&array);
        let missing = expected.difference(&of_array).page_count();
        let extra = of_array.difference(&expected).page_count();
        fine &= missing == 0 && extra == 0;
        let pages = expected.page_count();
        format!("{pages} {what}, {missing} missing, {extra} too many; ")
    };
    let written = steps.iter().filter(|(_, writes)| *writes);
    let written = written.filter_map(|(page, _)| page_of(page)).collect();
    let mut line = compare("written", &collected.written, written);
    if let Some(accessed) = &collected.accessed {
        let touched = steps.iter().filter_map(|(page, _)| page_of(page));
        line += &compare("touched", accessed, touched.collect());
    }
    let others = collected.written.difference(&array).page_count();
    println!(
        "{name}: {line}{others} elsewhere; {} ring entries, {} exits",
        collected.ring_entries,
        exits.map_or("?".into(), |exits| exits.to_string())
    );
    // The first round contains the program's start.
    let few = others <= OTHERS_MAX || name == PASSES[0].0;
    Ok(fine && few)
}

fn exits() -> Option<u64> {
    fs::read_to_string(EXITS).ok()?.trim().parse().ok()
}
