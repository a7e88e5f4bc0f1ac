//! Programs in C that expect soft-dirty bits, under the library, on whatever kernel this is.

#![allow(clippy::print_stdout, reason = "tests print what they did")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// The library, which cargo has built beside this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // Not the copy one directory up, which only `cargo build` renews.
    let library = test.with_file_name("libpagetrail_softdirty.so");
    assert!(library.exists(), "{} is missing", library.display());
    library
}

/// `tests/victims/softdirty.c`, compiled; `None` without a compiler.
fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let compile = || {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/victims/softdirty.c");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("softdirty");
        let fresh = program.with_extension(std::process::id().to_string());
        let status = Command::new("cc")
            .args(["-O2", "-Wall", "-Werror", "-pthread", "-o"])
            .args([&fresh, &source])
            .status();
        let Ok(status) = status else {
            pagetrail_skips::not_here("no C compiler (cc)");
            return None;
        };
        assert!(status.success());
        std::fs::rename(&fresh, &program).unwrap();
        Some(program)
    };
    PROGRAM.get_or_init(compile).as_deref()
}

/// Whether this kernel has what the library answers by.
fn can_answer() -> bool {
    let works = pagetrail::Capabilities::probe_one(pagetrail::Technique::PagemapScan);
    if *works != pagetrail::Status::Works {
        pagetrail_skips::not_here(format!("pagemap-scan {works}"));
    }
    *works == pagetrail::Status::Works
}

fn under(library: &Path, program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env("LD_PRELOAD", library)
        .env("PAGETRAIL_SOFTDIRTY", "always")
        .stdin(Stdio::null());
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&*output.stdout, &*output.stderr].concat()).into_owned()
}

fn passes(case: &str, reader: &str) {
    let Some(program) = program().filter(|_| can_answer()) else {
        return;
    };
    let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("softdirty-{case}-{reader}.log"));
    let _ = std::fs::remove_file(&log);
    let mut command = under(&library(), program);
    let output = command
        .env("PAGETRAIL_SOFTDIRTY_READER", reader)
        .env("PAGETRAIL_SOFTDIRTY_LOG", &log)
        .arg(case)
        .output()
        .unwrap();
    let log = std::fs::read_to_string(log).unwrap_or_default();
    assert!(
        output.status.success(),
        "{case}, for {reader}: {}: {}\nthe library said:\n{log}",
        output.status,
        text(&output)
    );
}

macro_rules! cases {
    ($($test:ident: $case:literal,)*) => {
        $(#[test] fn $test() {
            passes($case, "any");
            passes($case, "collector");
        })*
    };
}

cases! {
    own_memory: "own",
    mappings_come_go_and_move: "mappings",
    every_way_to_open_and_read: "paths",
    duplicates_and_reused_numbers: "dup",
    buffers_that_are_none: "bad-buffers",
    descriptors_that_come_by_other_ways: "passed",
    more_descriptors_than_there_is_room_for: "full",
    threads_that_are_cancelled: "cancelled",
    streams: "stream",
    pagemap_scan: "scan",
    scans_that_the_kernel_refuses: "scan-refusals",
    forked_children: "fork",
    another_process: "other",
    threads: "threads",
    signal_handlers: "signals",
    a_safepoint: "stopped",
    forks_in_the_middle: "fork-storm",
    pages_written_round_after_round: "habits",
    memory_that_the_program_watches_itself: "foreign",
}

/// Where the kernel has none and we answer nothing, there are none.
#[test]
fn switched_off_it_changes_nothing() {
    let Some(program) = program() else { return };
    let bare = Command::new(program).arg("absent").output().unwrap();
    if !bare.status.success() {
        pagetrail_skips::not_here("this kernel has soft-dirty bits");
        return;
    }
    for (name, value) in [
        ("PAGETRAIL_SOFTDIRTY", "off"),
        ("PAGETRAIL_DISABLE", "pagemap-scan"),
    ] {
        let output = under(&library(), program)
            .env(name, value)
            .arg("absent")
            .output()
            .unwrap();
        assert!(output.status.success(), "{name}={value}: {}", text(&output));
    }
}

#[test]
fn the_log_says_what_answers() {
    let Some(program) = program().filter(|_| can_answer()) else {
        return;
    };
    let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join("softdirty.log");
    let _ = std::fs::remove_file(&log);
    let output = under(&library(), program)
        .env("PAGETRAIL_SOFTDIRTY_LOG", &log)
        .arg("own")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(
        log.contains("soft-dirty is answered by pagemap-scan"),
        "{log}"
    );
}

/// Python opens, seeks and reads in its own way.
#[test]
fn a_program_that_is_not_ours() {
    if !can_answer() {
        return;
    }
    let script = "
import ctypes, mmap, struct
m = mmap.mmap(-1, 8 * 4096)
address = ctypes.addressof(ctypes.c_char.from_buffer(m))
pagemap = open('/proc/self/pagemap', 'rb', buffering=0)
def dirty():
    pagemap.seek(address // 4096 * 8)
    return [e >> 55 & 1 for e in struct.unpack('8Q', pagemap.read(64))]
assert dirty() == [1] * 8, dirty()
m[0:1] = b'x'
with open('/proc/self/clear_refs', 'w') as f: f.write('4')
assert dirty() == [0] * 8, dirty()
m[3 * 4096 : 3 * 4096 + 1] = b'x'
assert dirty() == [0, 0, 0, 1, 0, 0, 0, 0], dirty()
";
    let output = under(&library(), Path::new("python3"))
        .args(["-c", script])
        .output();
    match output {
        Ok(output) => assert!(output.status.success(), "{}", text(&output)),
        Err(_) => pagetrail_skips::not_here("no python3"),
    }
}
