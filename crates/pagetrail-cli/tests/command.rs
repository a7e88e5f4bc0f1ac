//! The command line itself: help, wrong usage, and the small subcommands.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{error_line, pagetrail, run};
use serde_json::Value;

const ALL: &str = "pagemap-scan,adaptive,userfaultfd,soft-dirty,mprotect,compare,access-scan,none";

fn here() -> &'static Path {
    Path::new(".")
}

fn help(subcommand: &str) -> String {
    let mut command = pagetrail(here(), &[subcommand, "--help"]);
    let output = command.env("COLUMNS", "100").output().expect("it starts");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn help_of_record() {
    insta::assert_snapshot!(help("record"));
}

#[test]
fn help_of_top() {
    insta::assert_snapshot!(help("top"));
}

#[test]
fn wrong_usage_is_one_line() {
    let cases: &[&[&str]] = &[
        &["frobnicate"],
        &["record"],
        &["record", "-p", "1234", "--", "true"],
        &["record", "true"],
        &["record", "-p", "no-such-name"],
        &["record", "-p", "12x"],
        &["record", "-p", "12 13"],
        &["record", "-p", "12", "13"],
        &["record", "--rounds", "many", "--", "true"],
        &["checkpoint", "--store", "s", "--", "sleep", "1"],
        &["record", "--technique", "magic", "--", "true"],
        &["record", "--interval", "100", "--", "true"],
        &["record", "--interval", "0s", "--", "true"],
        &["record", "--duration", "1 parsec", "--", "true"],
        &["record", "--rounds", "0", "--", "true"],
        &["record", "--block-pages", "1000", "--", "true"],
        &["record", "--hmtl", "out.html", "--", "true"],
        &["record", "--technique", "mprotect", "--", "true"],
        &["top", "--output", "log", "-p", "1234"],
    ];
    let directory = tempfile::tempdir().expect("a temporary directory");
    let lines = cases.iter().map(|arguments| {
        let line = error_line(&run(directory.path(), arguments), 2);
        format!("$ pagetrail {}\n{line}", arguments.join(" "))
    });
    insta::assert_snapshot!(lines.collect::<String>());
    let left = fs::read_dir(directory.path()).expect("a directory");
    assert_eq!(left.count(), 0, "nothing is left behind");
}

#[test]
fn options_and_names_without_effect_are_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for (option, technique, says) in [
        (
            &["--block-pages", "3"][..],
            "compare",
            "it is for userfaultfd",
        ),
        (&["--exact"], "compare", "it is for adaptive"),
        (
            &["--false-positive-cost", "copied"],
            "compare",
            "it is for adaptive",
        ),
        (
            &["--huge-pages", "keep"],
            "compare",
            "it is for pagemap-scan",
        ),
    ] {
        let arguments = [
            &["record", "--technique", technique],
            option,
            &["--", "true"],
        ]
        .concat();
        let message = error_line(&run(directory.path(), &arguments), 2);
        assert!(message.contains(says), "{message}");
    }
    let mut misspelt = pagetrail(directory.path(), &["check"]);
    misspelt.env("PAGETRAIL_DISABLE", "compare,pagemapscan");
    let message = error_line(&misspelt.output().expect("it starts"), 2);
    assert!(
        message.contains("names pagemapscan, which is no technique"),
        "{message}"
    );
    assert!(message.contains("pagemap-scan, adaptive"), "{message}");
}

#[allow(clippy::print_stderr, reason = "what is not tested is said")]
fn not_here(what: &str) {
    eprintln!("not tested here: {what}");
}

#[test]
fn processes_that_cannot_be_watched() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let record = |pid: &str| run(directory.path(), &["record", "-p", pid]);
    assert!(error_line(&record("0"), 2).contains("no process 0"));
    // Greater than any PID: PID_MAX_LIMIT is 2^22.
    assert!(error_line(&record("4194305"), 2).contains("no process 4194305"));
    let own = Command::new("sh")
        .args([
            "-c",
            "exec \"$0\" record -p $$",
            env!("CARGO_BIN_EXE_pagetrail"),
        ])
        .current_dir(directory.path())
        .output()
        .expect("it starts");
    assert!(error_line(&own, 2).contains("pagetrail itself"));
    match fs::read_to_string("/proc/2/comm").as_deref() {
        Ok("kthreadd\n") => assert!(error_line(&record("2"), 2).contains("kernel thread")),
        _ => not_here("kernel threads: a container hides them"),
    }
    let first_namespace = fs::read_link("/proc/self/ns/pid");
    if first_namespace.is_ok_and(|link| link == Path::new("pid:[4026531836]")) {
        assert!(error_line(&record("1"), 2).contains("process 1"));
    } else {
        not_here("init: in a container PID 1 is a program like others");
    }
}

#[test]
fn what_this_machine_cannot_do_has_its_own_code() {
    let run = |disabled: &str, arguments: &[&str]| {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut command = pagetrail(directory.path(), arguments);
        command
            .env("PAGETRAIL_DISABLE", disabled)
            .output()
            .expect("it starts")
    };
    let one = run(
        "compare",
        &["record", "--technique", "compare", "--", "true"],
    );
    assert!(error_line(&one, 3).contains("PAGETRAIL_DISABLE"));
    let all = run(ALL, &["record", "--", "true"]);
    assert!(error_line(&all, 3).contains("no technique works"));
}

#[test]
fn accesses_need_a_technique_that_notices_them() {
    let record = |arguments: &[&str]| {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut command = pagetrail(directory.path(), arguments);
        command.env("PAGETRAIL_DISABLE", "access-scan");
        error_line(&command.output().expect("it starts"), 3)
    };
    let absent = record(&["record", "--access", "--", "true"]);
    assert!(absent.contains("access-scan: switched off"), "{absent}");
    let wrong = ["record", "--technique", "compare", "--access", "--", "true"];
    assert!(record(&wrong).contains("it tracks writes only: for accesses use access-scan"));
}

#[test]
fn check_says_what_works() {
    let check = |disabled: &str, arguments: &[&str]| {
        let mut command = pagetrail(here(), arguments);
        command
            .env("PAGETRAIL_DISABLE", disabled)
            .output()
            .expect("it starts")
    };
    let output = check("", &["check", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(document["schema"], 1);
    let techniques = document["techniques"].as_array().expect("a list");
    let names: Vec<_> = techniques
        .iter()
        .filter_map(|t| t["technique"].as_str())
        .collect();
    assert_eq!(names.join(","), ALL);
    for technique in techniques {
        match technique["status"].as_str() {
            Some("works") => assert!(technique["reason"].is_null()),
            Some("fails" | "absent") => assert!(technique["reason"].is_string()),
            other => panic!("status {other:?}"),
        }
    }
    // `none` notices nothing: it alone is not enough.
    let all_but_none = ALL.trim_end_matches(",none");
    assert_eq!(
        check(all_but_none, &["check", "--json"]).status.code(),
        Some(1)
    );
    let text = check(ALL, &["check"]);
    assert_eq!(text.status.code(), Some(1));
    insta::assert_snapshot!(String::from_utf8_lossy(&text.stdout));
}

#[test]
fn top_needs_a_terminal() {
    let output = run(here(), &["top", "--", "true"]);
    assert!(error_line(&output, 2).contains("terminal"));
}

#[test]
fn man_pages_and_completions() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let output = run(directory.path(), &["generate", "share"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let names = |part: &str| {
        let entries = fs::read_dir(directory.path().join("share").join(part)).expect(part);
        let names = entries.map(|entry| entry.expect(part).file_name().into_string());
        let mut names: Vec<_> = names.map(|name| name.expect("UTF-8")).collect();
        names.sort();
        names
    };
    assert_eq!(
        names("completions"),
        ["_pagetrail", "pagetrail.bash", "pagetrail.fish"]
    );
    let pages = names("man");
    assert!(pages.contains(&"pagetrail.1".into()) && pages.contains(&"pagetrail-record.1".into()));
    for page in pages {
        let text =
            fs::read_to_string(directory.path().join("share/man").join(&page)).expect("text");
        assert!(text.contains(".SH \"EXIT STATUS\""), "{page}");
        assert!(
            !text.contains("generate"),
            "{page} does not show what is hidden"
        );
    }
}
