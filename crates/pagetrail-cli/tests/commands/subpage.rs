//! `pagetrail record --subpages` and `report`: a program with many small objects, recorded by
//! sub-pages, from its start and while it runs.

#![allow(clippy::print_stderr, reason = "a test that cannot run says so")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::common::subpage::{PLACE, bytes, compile_nodes, library};
use crate::common::{error_line, pagetrail, report, run};
use pagetrail::{Capabilities, Technique};

#[test]
fn units_stand_beside_pages() {
    if !Capabilities::probe().works(Technique::PagemapScan) {
        let status = Capabilities::probe().status(Technique::PagemapScan);
        pagetrail_skips::not_here(format!("pagemap-scan {status}"));
        return;
    }
    let temporary = tempfile::tempdir().expect("a directory");
    let here = temporary.path();
    let library = library();
    compile_nodes(here);
    for parts in [1, 16] {
        let (count, words) = (parts.to_string(), format!("with {parts} sub-pages a page"));
        let arguments = [
            "record",
            "--interval",
            "5ms",
            "--subpages",
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
        .env("PAGETRAIL_SUBPAGES", "8");
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
    let mut command = pagetrail(
        temporary.path(),
        &["record", "--subpages", "8", "--", "true"],
    );
    let nowhere = "/nowhere/libpagetrail_alloc.so";
    let output = command.env(PLACE, nowhere).output().expect("it starts");
    let said = error_line(&output, 2);
    assert!(
        said.contains(&format!("there is no file {nowhere}")),
        "{said}"
    );
}
