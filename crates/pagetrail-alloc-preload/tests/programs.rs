//! Programs under the library: the malloc family as C knows it, what misuse ends with, and programs
//! of others.

#![allow(clippy::print_stdout, reason = "tests print what they did")]

mod common;

use common::under;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

fn program() -> Option<&'static Path> {
    common::victim("mallocs")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&*output.stdout, &*output.stderr].concat()).into_owned()
}

const ALL_PARTS: [&str; 7] = ["1", "2", "4", "8", "16", "32", "64"];
const SOME_PARTS: [&str; 3] = ["1", "8", "64"];

fn passes(case: &str, all_parts: &[&str]) {
    let Some(program) = program() else { return };
    for &parts in all_parts {
        let mut command = under(program, parts);
        let command = command.arg(case).args((case == "parts").then_some(parts));
        let output = command.output().unwrap();
        let said = text(&output);
        assert!(output.status.success(), "{case}, {parts} parts: {said}");
    }
}

macro_rules! cases {
    ($($test:ident: $case:literal with $parts:expr,)*) => {
        $(#[test] fn $test() { passes($case, &$parts); })*
    };
}

cases! {
    the_whole_family_does_what_it_says: "family" with SOME_PARTS,
    what_cannot_be_had_is_null_and_enomem: "impossible" with SOME_PARTS,
    out_of_addresses_nothing_is_lost: "limited" with SOME_PARTS,
    freed_memory_serves_smaller_objects: "freed" with SOME_PARTS,
    a_fork_without_memory_fails_in_the_parent: "mapped_out" with SOME_PARTS,
    neither_descriptors_nor_files_are_needed: "cut_off" with SOME_PARTS,
    threads_leave_nothing_behind: "threads" with SOME_PARTS,
    children_of_every_kind_do_no_harm: "children" with ALL_PARTS,
    objects_are_in_the_aliases_of_their_subpages: "parts" with ALL_PARTS,
}

#[test]
fn misuse_ends_with_a_line_that_says_what_happened() {
    let Some(program) = program() else { return };
    let cases = [
        ("double_free", "double free, the object was freed before"),
        (
            "double_free_pages",
            "no object begins there, or it was freed before",
        ),
        ("free_inside", "it is the inside of one or nothing"),
        ("free_stack", "not from this heap"),
        ("free_alias", "was handed out at another address"),
        ("realloc_freed", "double free, the object was freed before"),
        (
            "corrupted_metadata",
            "is corrupted: something wrote over it",
        ),
    ];
    for (case, expected) in cases {
        let output = under(program, "8").arg(case).output().unwrap();
        let said = text(&output);
        assert_eq!(
            output.status.signal(),
            Some(libc::SIGABRT),
            "{case}: {said}"
        );
        assert!(said.starts_with("pagetrail-alloc: "), "{case}: {said}");
        assert!(said.contains(expected), "{case}: {said}");
        assert_eq!(said.lines().count(), 1, "{case}: {said}");
    }
}

#[test]
fn a_bad_number_of_parts_gets_one_line_and_the_program_runs() {
    let Some(program) = program() else { return };
    for parts in ["", "0", "7", "128", "many", "-8"] {
        let output = under(program, parts).arg("impossible").output().unwrap();
        assert!(output.status.success());
        assert_eq!(
            text(&output),
            "pagetrail-alloc: PAGETRAIL_SUBPAGES must be 1, 2, 4, 8, 16, 32 or 64; taking 8\n",
            "{parts:?}"
        );
    }
}

#[test]
fn python_computes_the_same() {
    const SCRIPT: &str = r"
import json, os, re, subprocess, threading
words = [str(i * i) for i in range(20000)]
index = {w: [i] * (i % 50) for i, w in enumerate(words)}
def work():
    return sum(len(v) for v in json.loads(json.dumps(index)).values())
results = []
threads = [threading.Thread(target=lambda: results.append(work())) for _ in range(3)]
[t.start() for t in threads]; [t.join() for t in threads]
pid = os.fork()
if pid == 0:
    index.clear()
    os._exit(0 if work() == 0 else 1)
assert os.waitpid(pid, 0)[1] == 0
assert subprocess.run(['true']).returncode == 0
print(results, work(), len(re.findall('7', ''.join(words))))
";
    let run = |mut command: Command| {
        let output = command
            .env("PYTHONMALLOC", "malloc")
            .args(["-c", SCRIPT])
            .output();
        let output = output.ok()?;
        assert!(output.status.success(), "{}", text(&output));
        Some(text(&output))
    };
    let Some(right) = run(Command::new("python3")) else {
        pagetrail_skips::not_here("no python3");
        return;
    };
    for parts in ALL_PARTS {
        assert_eq!(
            run(under("python3", parts)),
            Some(right.clone()),
            "{parts} parts"
        );
    }
}
