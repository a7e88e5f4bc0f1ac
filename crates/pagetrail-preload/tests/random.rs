//! Random operations on memory: the library's answers cover what the program wrote, and what the
//! kernel's own soft-dirty bits say where it has them (Debian's kernels do: `cargo xtask vm`).
//!
//! `PAGETRAIL_SEED` repeats a run, `PAGETRAIL_STEPS` makes it longer.

#![allow(clippy::print_stdout, reason = "tests print their seed")]

use std::path::Path;
use std::process::{Command, Stdio};

const STEPS: u64 = 300;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn answers_cover_what_was_written_and_what_the_kernel_says() {
    let works = pagetrail::Capabilities::probe_one(pagetrail::Technique::PagemapScan);
    if *works != pagetrail::Status::Works || pagetrail::page_size() != 4096 {
        pagetrail_skips::not_here(format!("pagemap-scan {works}"));
        return;
    }
    let test = std::env::current_exe().unwrap();
    // Not the copy one directory up, which only `cargo build` renews.
    let library = test.with_file_name("libpagetrail_softdirty.so");
    assert!(library.exists(), "{} is missing", library.display());
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/victims/softdirty_random.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("softdirty_random-{}", std::process::id()));
    let compiled = Command::new("cc")
        .args(["-O2", "-Wall", "-Werror", "-o"])
        .args([&program, &source])
        .status();
    let Ok(compiled) = compiled else {
        pagetrail_skips::not_here("no C compiler (cc)");
        return;
    };
    assert!(compiled.success());
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let seed = variable("PAGETRAIL_SEED").unwrap_or(u64::from(now.subsec_nanos()));
    let steps = variable("PAGETRAIL_STEPS").unwrap_or(STEPS);
    println!("PAGETRAIL_SEED={seed} PAGETRAIL_STEPS={steps}");
    let outputs = ["any", "collector"].map(|reader| {
        let output = Command::new(&program)
            .args([seed.to_string(), steps.to_string()])
            .env("LD_PRELOAD", &library)
            .env("PAGETRAIL_SOFTDIRTY", "always")
            .env("PAGETRAIL_SOFTDIRTY_READER", reader)
            .stdin(Stdio::null())
            .output();
        (reader, output.unwrap())
    });
    std::fs::remove_file(&program).unwrap();
    for (reader, output) in outputs {
        let said = [&*output.stdout, &*output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        println!("for {reader}: {}", said.trim());
        assert!(
            output.status.success(),
            "for {reader}, seed {seed}, {steps} steps: {}: {said}",
            output.status
        );
    }
}
