//! [`Checkpointer`] and [`Snapshot`] in a program that is a guest of `pagetrail vm`: the virtual
//! machine finds their dirty pages without being asked for, and what survives is right, also by
//! `SIGKILL`.
//!
//! This program starts itself as the guest. Needs a KVM that runs guests. The machine with nested
//! virtualization that `cargo xtask test` starts has one.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "what a program found"
)]

use std::collections::BTreeSet;
use std::env;
use std::error::Error;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};

use libtest_mimic::{Arguments, Trial};
use pagetrail_checkpoint::{Arena, Checkpointer, Snapshot};

/// The first argument of the process that becomes a guest, which is this program again.
const GUEST: &str = "--as-guest";
/// The first argument of the program that checks itself.
const PROGRAM: &str = "--as-program";
const PAGE: usize = 4096;
/// What is left unwritten at the end of a region. QEMU emulates an instruction by which BLAKE3
/// reads the last 16 bytes of a page (`VINSERTF128`) as if it read 32, which faults where nothing
/// follows.
const UNWRITTEN: usize = PAGE;

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let texts: Vec<&str> = arguments.iter().filter_map(|text| text.to_str()).collect();
    match texts.split_first() {
        Some((&GUEST, rest)) => return become_guest(rest),
        Some((&PROGRAM, rest)) => return run(rest),
        _ => {}
    }
    let tests: [(&str, fn()); 3] = [
        ("a_checkpointer_uses_the_machine", checkpointers),
        ("a_snapshot_uses_the_machine", snapshots),
        ("checkpoints_survive_a_killed_guest", killed_guests),
    ];
    let tests = tests.map(|(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), tests.into()).exit_code()
}

fn become_guest(rest: &[&str]) -> ExitCode {
    let this = env::current_exe().expect("this program");
    let mut command = vec![this.into_os_string(), PROGRAM.into()];
    command.extend(rest.iter().map(OsString::from));
    match pagetrail_vm::become_guest(&command, &pagetrail_vm::Settings::default()) {
        Ok(never) => match never {},
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether there are no guests here; says why.
fn no_guest() -> bool {
    match pagetrail_vm::check::try_guest().and_then(|_| pagetrail_vm::check::try_accesses()) {
        Ok(()) => false,
        Err(error) => {
            pagetrail_skips::not_here(error);
            true
        }
    }
}

fn this_program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs a program of [`run`] to its end, as a guest if that is so; checks what found its pages.
#[track_caller]
fn holds(arguments: &[&str]) {
    for start in [PROGRAM, GUEST] {
        if start == GUEST && no_guest() {
            continue;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let store = directory.path().join("store").display().to_string();
        let output = this_program(&[&[start], arguments, &[&store]].concat()).output();
        let output = output.expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout);
        println!("{} {}: {}", start, arguments.join(" "), text.trim_end());
        let found_by = text.split(' ').next().unwrap_or_default();
        assert!(
            output.status.success() && (found_by == "guest") == (start == GUEST),
            "{output:?}"
        );
    }
}

fn checkpointers() {
    for seed in ["1", "2", "3"] {
        holds(&["keep", seed]);
    }
}

fn snapshots() {
    for seed in ["1", "2", "3"] {
        holds(&["reset", seed]);
    }
}

/// The programs that check themselves. The first word that they print is what found the pages.
fn run(arguments: &[&str]) -> ExitCode {
    let seed = |text: &str| text.parse().map(fastrand::Rng::with_seed);
    let outcome = match arguments {
        ["keep", text, store] => seed(text)
            .map_err(Into::into)
            .and_then(|random| keep(random, Path::new(store))),
        ["reset", text, _] => seed(text).map_err(Into::into).and_then(reset),
        ["count", store] => count(Path::new(store)),
        _ => Err("keep, reset or count".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes a few bytes by the program or by the kernel, to memory and to what it is compared with;
/// adds the pages to `pages`.
fn write_somewhere(
    random: &mut fastrand::Rng,
    memory: &mut [u8],
    oracle: &mut [u8],
    pages: &mut BTreeSet<usize>,
) -> Outcome {
    let length = random.usize(1..200);
    let at = random.usize(..memory.len() - UNWRITTEN - length);
    let value = random.u8(..);
    let target = &mut memory[at..at + length];
    match random.bool() {
        true => target.fill(value),
        false => {
            let (mut from, mut to) = UnixStream::pair()?;
            from.write_all(&vec![value; length])?;
            to.read_exact(target)?;
        }
    }
    oracle[at..at + length].fill(value);
    pages.extend(at / PAGE..=(at + length - 1) / PAGE);
    Ok(())
}

/// Checks that hardly more pages were copied than written, where only stores of the program count:
/// natively, pages that the kernel moves meanwhile are copied too.
fn check_counts(found_by: &str, written: u64, copied: u64) -> Outcome {
    let is_exact = found_by == "guest";
    if written == 0 || is_exact && copied as f64 > 1.1 * written as f64 {
        return Err(format!("{copied} pages copied, and {written} written").into());
    }
    Ok(())
}

/// Random writes between checkpoints, some of which are published by a thread; now and then all is
/// lost since the last one, and restored.
fn keep(mut random: fastrand::Rng, store: &Path) -> Outcome {
    const BYTES: [usize; 2] = [300 * PAGE, 20 * PAGE];
    let open = || {
        let builder = Checkpointer::builder(store).region("large", BYTES[0]);
        builder.region("small", BYTES[1]).start()
    };
    let mut kept = open()?;
    let found_by = kept.technique_name().to_owned();
    let mut oracles = BYTES.map(|bytes| vec![0; bytes]);
    let (mut written, mut copied) = (0, 0);
    for round in 0..60 {
        let mut count = 0;
        for (name, oracle) in ["large", "small"].into_iter().zip(&mut oracles) {
            let mut pages = BTreeSet::new();
            for _ in 0..random.usize(..12) {
                write_somewhere(&mut random, kept.region_mut(name), oracle, &mut pages)?;
            }
            count += pages.len() as u64;
        }
        let manifest = match random.bool() {
            true => kept.checkpoint()?,
            false => kept.checkpoint_in_background()?.wait()?,
        };
        let copied_pages = manifest.cost.copied_pages;
        if copied_pages < count {
            return Err(format!("round {round}: {copied_pages} pages of {count}").into());
        }
        // A base has all pages.
        if manifest.parent.is_some() {
            written += count;
            copied += copied_pages;
        }
        if random.u8(..10) == 0 {
            kept.region_mut("large")[..250 * PAGE].fill(7);
            kept.region_mut("small")[..PAGE].fill(9);
            drop(kept);
            kept = open()?;
        }
        if kept.region("large") != oracles[0] || kept.region("small") != oracles[1] {
            return Err(format!("round {round}: what was kept is wrong").into());
        }
    }
    check_counts(&found_by, written, copied)?;
    println!("{found_by} found {copied} pages of {written} written");
    Ok(())
}

/// Random writes between resets.
fn reset(mut random: fastrand::Rng) -> Outcome {
    let mut arena = Arena::new(200 * PAGE)?;
    random.fill(&mut arena);
    let saved = arena.to_vec();
    let mut snapshot = Snapshot::take(arena)?;
    let found_by = snapshot.technique_name().unwrap_or_default().to_owned();
    let (mut written, mut copied) = (0, 0);
    for round in 0..100 {
        let mut pages = BTreeSet::new();
        let mut oracle = saved.clone();
        for _ in 0..random.usize(1..12) {
            write_somewhere(&mut random, &mut snapshot, &mut oracle, &mut pages)?;
        }
        if snapshot[..] != oracle {
            return Err(format!("round {round}: writes are lost").into());
        }
        let reset = snapshot.reset()?;
        if snapshot[..] != saved || reset.whole || reset.pages < pages.len() as u64 {
            return Err(format!("round {round}: {reset:?} for {} pages", pages.len()).into());
        }
        written += pages.len() as u64;
        copied += reset.pages;
    }
    check_counts(&found_by, written, copied)?;
    println!("{found_by} found {copied} pages of {written} written");
    Ok(())
}

/// The number of pages that [`count`] writes, one after the other.
const COUNTED_PAGES: u64 = 48;

/// Counts, a page a number, and says each number that is kept, until it is killed.
fn count(store: &Path) -> Outcome {
    let pages = COUNTED_PAGES as usize * PAGE + UNWRITTEN;
    let builder = Checkpointer::builder(store).region("pages", pages);
    let mut kept = builder.region("last", PAGE + UNWRITTEN).start()?;
    let word = |memory: &[u8]| memory[..8].try_into().map_or(0, u64::from_le_bytes);
    let last = word(kept.region("last"));
    for page in 0..COUNTED_PAGES {
        // The greatest number up to the last that leaves this remainder.
        let back = (last + COUNTED_PAGES - page) % COUNTED_PAGES;
        let expected = last.saturating_sub(back);
        let expected = if back > last { 0 } else { expected };
        let found = word(&kept.region("pages")[page as usize * PAGE..]);
        if found != expected {
            return Err(format!("page {page} has {found}, not {expected}, of {last}").into());
        }
    }
    println!("{} {last}", kept.technique_name());
    for number in last + 1.. {
        let at = (number % COUNTED_PAGES) as usize * PAGE;
        kept.region_mut("pages")[at..at + 8].copy_from_slice(&number.to_le_bytes());
        kept.region_mut("last")[..8].copy_from_slice(&number.to_le_bytes());
        kept.checkpoint()?;
        println!("kept {number}");
    }
    Ok(())
}

/// A program that counts; it ends with this value.
struct Counting {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Counting {
    fn start(start: &str, store: &Path) -> (Self, u64) {
        let store = store.display().to_string();
        let mut command = this_program(&[start, "count", &store]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let stdout = child.stdout.take().expect("a pipe");
        let lines = BufReader::new(stdout).lines();
        let mut counting = Self { child, lines };
        let (found_by, restored) = counting.next();
        assert_eq!(found_by == "guest", start == GUEST, "{found_by}");
        (counting, restored)
    }

    /// A word, and the number after it.
    fn next(&mut self) -> (String, u64) {
        let Some(Ok(line)) = self.lines.next() else {
            panic!("it ended, {:?}", self.child.wait());
        };
        let (word, number) = line.split_once(' ').expect("two words");
        (word.to_owned(), number.parse().expect("a number"))
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A guest goes on where another, or the program natively, was killed.
fn killed_guests() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let store = directory.path().join("store");
    let mut random = fastrand::Rng::with_seed(5);
    let mut kept = 0;
    for start in [GUEST, GUEST, PROGRAM, GUEST, PROGRAM] {
        let (mut counting, restored) = Counting::start(start, &store);
        // A checkpoint may be published whose line was not written any more.
        assert!(
            (kept..=kept + 1).contains(&restored),
            "{restored}, {kept} kept"
        );
        kept = restored;
        for _ in 0..random.usize(10..90) {
            kept = counting.next().1;
        }
        // Lines that were written before it was killed are read, too.
        let _ = counting.child.kill();
        while let Some(Ok(line)) = counting.lines.next() {
            if let Some(number) = line.strip_prefix("kept ").and_then(|it| it.parse().ok()) {
                kept = number;
            }
        }
    }
    assert!(kept > 50, "{kept}");
}
