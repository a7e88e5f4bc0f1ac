//! The command line itself: help, wrong usage, and the small subcommands.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{error_line, pagetrail, run};
use serde_json::Value;

const ALL: &str = "pagemap-scan,adaptive,userfaultfd,soft-dirty,mprotect,compare,access-scan,epml,spml,\
                   spml-search,none";

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

/// Nothing is started, so that no KVM is needed.
#[test]
fn what_does_not_follow_guests_says_what_to_do() {
    let checkpoint = [
        "checkpoint",
        "--vm",
        "--follow",
        "--store",
        "saved",
        "--",
        "true",
    ];
    let said = error_line(&run(here(), &checkpoint), 2);
    assert!(said.contains("--tree -p PID"), "{said}");
    let plan = [
        "tier", "plan", "--vm", "--follow", "--fast", "64M", "--", "true",
    ];
    let said = error_line(&run(here(), &plan), 2);
    assert!(said.contains("record --vm --follow"), "{said}");
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
        &["rewind", "-p", "1234", "saved", "--at", "2"],
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
fn help_names_a_subcommand() {
    let output = run(here(), &["help", "record"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let output = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(
        output,
        String::from_utf8(run(here(), &["record", "--help"]).stdout).expect("UTF-8")
    );
    assert_eq!(run(here(), &["help", "vm", "run"]).status.code(), Some(0));
    error_line(&run(here(), &["help", "frobnicate"]), 2);
}

#[test]
fn completions_of_one_shell() {
    for (shell, start) in [
        ("bash", "_pagetrail() {"),
        ("zsh", "#compdef pagetrail"),
        ("fish", "# Print an optspec"),
    ] {
        let output = run(here(), &["completions", shell]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(text.starts_with(start), "{shell}: {:.80}", text);
        assert!(text.contains("record"), "{shell}");
    }
    let message = error_line(&run(here(), &["completions", "cmd"]), 2);
    assert!(message.contains("bash, zsh, fish"), "{message}");
    // A reader that wants the first line only.
    let script = "\"$0\" completions zsh | head -n 1";
    let mut head = Command::new("sh");
    let head = head.args(["-c", script, env!("CARGO_BIN_EXE_pagetrail")]);
    let head = head.output().expect("it starts");
    assert!(head.stderr.is_empty(), "{head:?}");
}

#[test]
fn versions_name_commit_and_features() {
    let output = run(here(), &["--version"]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[0],
        concat!("pagetrail ", env!("CARGO_PKG_VERSION")),
        "{text}"
    );
    let commit = lines[1].strip_prefix("commit: ").expect("a commit");
    assert!(!commit.is_empty(), "{text}");
    let features = lines[2].strip_prefix("features: ").expect("features");
    assert_eq!(features.contains("model"), cfg!(feature = "model"));
    let short = String::from_utf8(run(here(), &["-V"]).stdout).expect("UTF-8");
    assert_eq!(short.trim_end(), lines[0]);
}

#[test]
fn colours_are_as_asked() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let recorded = run(
        directory.path(),
        &[
            "record",
            "--last-round",
            "--technique",
            "compare",
            "--",
            "true",
        ],
    );
    if recorded.status.code() != Some(0) {
        pagetrail_skips::not_here("colours of reports: nothing can be recorded");
        return;
    }
    let coloured = |arguments: &[&str], variable: &str| {
        let mut report = pagetrail(directory.path(), arguments);
        let output = report.env("NO_COLOR", variable).output();
        let output = output.expect("it starts");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        output.stdout.contains(&0x1b)
    };
    assert!(!coloured(&["report"], ""));
    for variable in ["", "1"] {
        assert!(coloured(&["report", "--color", "always"], variable));
        assert!(!coloured(&["--color=never", "report"], variable));
        assert!(coloured(&["report", "--color=always", "--help"], variable));
        assert!(!coloured(&["report", "--color=never", "--help"], variable));
    }
    error_line(&run(here(), &["report", "--color", "sometimes"]), 2);
}

#[test]
fn events_are_reported_as_asked() {
    let stderr = |flags: &[&str], level: Option<&str>| {
        let mut command = pagetrail(here(), &[&["check"], flags].concat());
        match level {
            Some(level) => command.env("PAGETRAIL_LOG", level),
            None => command.env_remove("PAGETRAIL_LOG"),
        };
        let output = command.output().expect("it starts");
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    assert_eq!(stderr(&[], None), "");
    assert_eq!(stderr(&["-v"], None), "");
    for text in [stderr(&["-vv"], None), stderr(&[], Some("debug"))] {
        assert!(
            text.contains("pagetrail: debug: probed technique=compare"),
            "{text}"
        );
    }
    let mut wrong = pagetrail(here(), &["check"]);
    let wrong = wrong.env("PAGETRAIL_LOG", "loud").output();
    let message = error_line(&wrong.expect("it starts"), 2);
    assert!(message.contains("PAGETRAIL_LOG is loud"), "{message}");
}

/// A target that is stopped, and would read standard error, must not be waited for.
#[test]
fn events_do_not_wait_for_a_reader() {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    rustix::io::ioctl_fionbio(&writer, true).expect("a flag");
    while writer.write(&[b'x'; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).expect("a flag");
    let mut command = pagetrail(here(), &["check", "-vv"]);
    let status = command.stdout(Stdio::null()).stderr(writer).status();
    assert!(status.expect("it starts").code().is_some());
    drop(reader);
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
    assert!(!pages.iter().any(|page| page.contains("help")), "{pages:?}");
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
