//! Uses guests of KVM as other processes are used: the live view, plans of tiering, checkpoints.
//!
//! Needs a KVM that runs guests. The machine with nested virtualization that `cargo xtask test`
//! starts has one.

#![allow(clippy::print_stderr, reason = "a test that cannot run says so")]

mod common;

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::guest::{compiled, no_guest};

/// Far more than anything here takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(240);

/// `known_pages` writes the same 100 pages again and again; its memory is at this address.
const BASE: &str = "0x100000000000";

#[test]
fn the_live_view_shows_what_a_guest_writes_until_its_end() {
    if no_guest() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let program = compiled(directory.path(), "known_pages.c", &[]);
    let view = format!(
        "stty cols 120 rows 40; exec '{}' top --vm --interval 50ms -- '{}' 100",
        env!("CARGO_BIN_EXE_pagetrail"),
        program.display()
    );
    let script = Command::new("script")
        .args(["-qfec", &view, "screen"])
        .current_dir(directory.path())
        .env("SHELL", "/bin/sh")
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut script) = script else {
        return pagetrail_skips::not_here("top: there is no script(1)");
    };
    let began = Instant::now();
    let screen = || {
        let bytes = fs::read(directory.path().join("screen")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    // The program ends by itself, with its final round.
    while !screen().contains("exited with code 0") && began.elapsed() < TIMEOUT {
        sleep(Duration::from_millis(20));
    }
    let keys = script.stdin.take();
    let _ = keys.expect("it is piped").write_all(b"q");
    let status = script.wait().expect("it is ours");
    let screen = screen();
    assert!(screen.contains("exited with code 0"), "{screen}");
    assert!(screen.contains("kvm") && screen.contains(BASE), "{screen}");
    assert_eq!(status.code(), Some(0), "{screen}");
}
