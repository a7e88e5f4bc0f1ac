//! `restore --lazy` of checkpoints that were taken without CRIU: a program whose pager is killed,
//! or finds a damaged page, ends, and never sees zeros instead.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::print_stdout, reason = "tests print their seed")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::{error_line, pagetrail, run};

/// How often is looked whether something has happened.
const POLL: Duration = Duration::from_millis(1);
const PAGES: &str = "16384";

/// `tests/victims/lacking.c`, compiled; `None` where it cannot be, or nothing is restored lazily.
fn victim(here: &Path) -> Option<PathBuf> {
    compiled(here, "lacking")
}

/// One of `tests/victims`.
fn compiled(here: &Path, name: &str) -> Option<PathBuf> {
    if let Err(error) = pagetrail_restore::check_lazily() {
        pagetrail_skips::not_here(error.to_string());
        return None;
    }
    let victims = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/victims");
    let source = victims.join(format!("{name}.c"));
    let program = here.canonicalize().expect("a path").join(name);
    let mut compiler = Command::new("cc");
    compiler
        .args(["-O2", "-pthread", "-o"])
        .args([&program, &source]);
    match compiler.status() {
        Ok(status) if status.success() => Some(program),
        _ => {
            pagetrail_skips::not_here("no C compiler (cc) for tests/victims");
            None
        }
    }
}

/// A process that is ended with the test.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Takes a checkpoint of the program in `here`, and ends it.
fn saved(here: &Path, program: &Path) {
    saved_with(here, program, &[PAGES, "7"]);
}

/// As [`saved`], with these arguments after the directory.
fn saved_with(here: &Path, program: &Path, arguments: &[&str]) {
    let output = File::create(here.join("output")).expect("a file");
    let mut command = Command::new(program);
    command.arg(here).args(arguments).stdin(Stdio::null());
    command.stdout(output.try_clone().expect("a descriptor"));
    let child = command.stderr(output).spawn().expect("it starts");
    let started = Started(child);
    while text(here) != "ready\n" {
        std::thread::sleep(POLL);
    }
    let pid = started.0.id();
    let take = ["checkpoint", "--restorable=own", "--store", "s", "-p"];
    let taken = run(here, &[&take[..], &[&pid.to_string()]].concat());
    assert_eq!(taken.status.code(), Some(0), "{taken:?}");
}

/// Waits for the end of the program, which must have found all as it was.
fn assert_clean(here: &Path, program: &Path) {
    while lives(program) {
        std::thread::sleep(POLL);
    }
    assert!(text(here).ends_with("clean\n"), "{}", text(here));
}

fn text(here: &Path) -> String {
    fs::read_to_string(here.join("output")).unwrap_or_default()
}

/// Whether a process of the program lives; of one that has ended nobody says what it executed.
fn lives(program: &Path) -> bool {
    let processes = fs::read_dir("/proc").expect("/proc");
    let mut executables =
        processes.filter_map(|entry| fs::read_link(entry.ok()?.path().join("exe")).ok());
    executables.any(|executable| executable == program)
}

/// With any PID: who becomes the parent of a process whose pager was killed may never wait for
/// its end.
const RESTORE: [&str; 6] = [
    "restore",
    "s",
    "--any-pid",
    "--on-missing",
    "null",
    "--lazy",
];

#[test]
fn a_program_whose_pager_is_killed_ends() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let here = directory.path();
    let Some(program) = victim(here) else { return };
    saved(here, &program);
    let seed = std::env::var("PAGETRAIL_SEED").ok();
    let seed = seed
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| fastrand::u64(..));
    println!("PAGETRAIL_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    fs::write(here.join("go"), "").expect("a file");
    let (mut ended, rounds) = (0, 12);
    for _ in 0..rounds {
        fs::write(here.join("output"), "ready\n").expect("a file");
        let mut command = pagetrail(here, &RESTORE);
        command.arg("--allow-changed-files").stdout(Stdio::null());
        let mut pager = Started(command.spawn().expect("it starts"));
        std::thread::sleep(Duration::from_micros(random.u64(0..60_000)));
        let _ = pager.0.kill();
        pager.0.wait().expect("it ends");
        // It has all its pages by then, or it is ended.
        while lives(&program) {
            assert!(!text(here).contains("wrong"), "{}", text(here));
            std::thread::sleep(POLL);
        }
        let text = text(here);
        assert!(!text.contains("wrong"), "{text}");
        ended += u32::from(!text.contains("clean"));
    }
    println!("{ended} of {rounds} were ended");
    // None is left that waits for a page.
    let lost = run(
        here,
        &[&RESTORE[..], &["--wait", "--allow-changed-files"]].concat(),
    );
    assert_eq!(lost.status.code(), Some(0), "{lost:?}");
    assert!(text(here).ends_with("clean\n"), "{}", text(here));
}

#[test]
fn a_program_with_more_children_than_its_pager_has_descriptors_has_its_pages() {
    // All of them one after the other, and more at a time than there are descriptors.
    for arguments in [["16384", "150", "1"], ["2048", "90", "45"]] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let here = directory.path();
        let Some(program) = compiled(here, "brood") else {
            return;
        };
        saved_with(here, &program, &arguments);
        fs::write(here.join("go"), "").expect("a file");
        let restore = pagetrail(here, &RESTORE);
        let mut limited = Command::new("sh");
        limited
            .current_dir(here)
            .args(["-c", "ulimit -n 40; exec \"$0\" \"$@\""])
            .arg(restore.get_program())
            .args(restore.get_args())
            .args(["--allow-changed-files", "--wait"]);
        let output = limited.output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{said}{}", text(here));
        assert!(text(here).ends_with("clean\n"), "{}", text(here));
        println!("{said}");
    }
}

#[test]
fn copies_run_beside_each_other_and_are_waited_for() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let here = directory.path();
    let Some(program) = compiled(here, "brood") else {
        return;
    };
    saved_with(here, &program, &["4096", "2", "1"]);
    let all = ["restore", "s", "--on-missing", "null", "--count", "3"];
    let line = error_line(&run(here, &[&all[..], &["--lazy"]].concat()), 2);
    assert!(line.contains("its copies share their pages"), "{line}");
    fs::write(here.join("go"), "").expect("a file");
    let more = ["--wait", "--json", "--allow-changed-files"];
    let output = run(here, &[&all[..], &more].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(document["copies"].as_array().map(Vec::len), Some(3));
    // They have ended by then.
    assert!(!lives(&program));
    assert!(text(here).ends_with("clean\n"), "{}", text(here));
}

#[test]
fn a_program_has_its_pages_though_nobody_reads_what_is_said() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let here = directory.path();
    let Some(program) = victim(here) else { return };
    saved(here, &program);
    fs::write(here.join("go"), "").expect("a file");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = pagetrail(here, &RESTORE);
    command.arg("--allow-changed-files").stdout(writer);
    let said = command.output().expect("it starts");
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    assert_clean(here, &program);
}

#[test]
fn a_program_with_a_damaged_page_ends_and_the_page_is_named() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let here = directory.path();
    let Some(program) = victim(here) else { return };
    saved(here, &program);
    let packs = fs::read_dir(here.join("s")).expect("a store");
    let paths = packs.flat_map(|entry| {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => fs::read_dir(path)
                .expect("a folder")
                .map(|e| e.expect("an entry").path())
                .collect(),
            false => vec![path],
        }
    });
    let largest = paths.max_by_key(|path| fs::metadata(path).map_or(0, |data| data.len()));
    let largest = largest.expect("a pack");
    let mut bytes = fs::read(&largest).expect("a pack");
    let middle = bytes.len() / 3;
    bytes[middle] ^= 1;
    fs::write(&largest, bytes).expect("a pack");
    fs::write(here.join("go"), "").expect("a file");
    let output = run(here, &[&RESTORE[..], &["--allow-changed-files"]].concat());
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    let last = message.lines().last().unwrap_or_default();
    assert!(
        last.contains("lacked pages, and was ended") && last.contains("has changed"),
        "{message}"
    );
    assert!(!lives(&program));
    assert!(!text(here).contains("wrong"), "{}", text(here));
    // Without --lazy it is found before anything runs.
    let whole = [
        &RESTORE[..2],
        &["--on-missing", "null", "--allow-changed-files"],
    ]
    .concat();
    let line = error_line(&run(here, &whole), 2);
    assert!(line.contains("has changed"), "{line}");
}
