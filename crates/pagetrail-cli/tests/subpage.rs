//! `pagetrail record --parts` and `report`: a program with many small objects, recorded by parts of pages, from its start and
//! while it runs.

#![allow(clippy::print_stderr, reason = "a test that cannot run says so")]

mod common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{error_line, pagetrail, report, run};
use pagetrail::{Capabilities, Technique};
use serde_json::Value;

/// Where the library is named.
const PLACE: &str = "PAGETRAIL_ALLOC_LIBRARY";

/// The library. Cargo builds for a test what it can link, and this it cannot.
fn library() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_pagetrail"));
    let profile = program.parent().expect("a directory of its profile");
    let name = match profile.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let target = profile.parent().expect("the target directory");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", "pagetrail-alloc-preload"]);
    cargo.args(["--profile", name, "--target-dir"]).arg(target);
    assert!(
        cargo.status().expect("cargo").success(),
        "it does not build"
    );
    profile.join("libpagetrail_alloc.so")
}

/// `tests/victims/nodes.c`: 20,000 objects, of which it changes 2,000 a millisecond, 8 bytes of each.
fn compile_nodes(directory: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/victims/nodes.c");
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-pthread", "-o"])
        .arg(directory.join("nodes"));
    let status = cc.arg(source).status();
    assert!(status.is_ok_and(|status| status.success()), "cc failed");
}

/// Bytes of pages and of units that a recording has, by parts.
fn bytes(report: &Value, parts: u32) -> (u64, u64) {
    let units = &report["units"];
    assert_eq!(units["parts"], parts);
    let of = |key: &str| units[key].as_u64().expect("a number");
    assert!(of("unit_writes") >= of("page_writes") && of("page_writes") > 0);
    (of("page_bytes"), of("unit_bytes"))
}

#[test]
fn units_stand_beside_pages() {
    if !Capabilities::probe().works(Technique::PagemapScan) {
        let status = Capabilities::probe().status(Technique::PagemapScan);
        eprintln!("not here: pagemap-scan {status}");
        return;
    }
    let temporary = tempfile::tempdir().expect("a directory");
    let here = temporary.path();
    let library = library();
    compile_nodes(here);
    for parts in [1, 16] {
        let (count, words) = (parts.to_string(), format!("with {parts} parts a page"));
        let arguments = [
            "record",
            "--interval",
            "5ms",
            "--parts",
            &count,
            "--",
            "./nodes",
            "1",
        ];
        let output = pagetrail(here, &arguments).env(PLACE, &library).output();
        let output = output.expect("the command starts");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let (pages, units) = bytes(&report(here, "pagetrail.trail"), parts);
        match parts {
            1 => assert_eq!(pages, units),
            _ => assert!(units < pages * 3 / 4, "{units} of {pages}"),
        }
        let text = String::from_utf8_lossy(&run(here, &["report"]).stdout).into_owned();
        // It is wrapped where the terminal ends.
        let flat: Vec<&str> = text.split_whitespace().collect();
        assert!(flat.join(" ").contains(&words), "{text}");
    }
    // The same from outside.
    let mut program = Command::new(here.join("nodes"));
    program.arg("60").stdout(Stdio::piped());
    program
        .env("LD_PRELOAD", &library)
        .env("PAGETRAIL_PARTS", "8");
    let mut running = program.spawn().expect("it starts");
    let stdout = running.stdout.take().expect("it is piped");
    let mut line = String::new();
    BufReader::new(stdout)
        .read_line(&mut line)
        .expect("its first line");
    let pid = running.id().to_string();
    let arguments = ["record", "--interval", "5ms", "--rounds", "20", "-p", &pid];
    let output = run(here, &arguments);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let (pages, units) = bytes(&report(here, "pagetrail.trail"), 8);
    assert!(units < pages * 3 / 4, "{units} of {pages}");
    running.kill().expect("it runs");
    running.wait().expect("it ends");
}

#[test]
fn a_library_that_is_not_there_is_named() {
    let temporary = tempfile::tempdir().expect("a directory");
    let mut command = pagetrail(temporary.path(), &["record", "--parts", "8", "--", "true"]);
    let nowhere = "/nowhere/libpagetrail_alloc.so";
    let output = command.env(PLACE, nowhere).output().expect("it starts");
    let said = error_line(&output, 2);
    assert!(
        said.contains(&format!("there is no file {nowhere}")),
        "{said}"
    );
}
