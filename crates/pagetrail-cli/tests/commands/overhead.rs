//! `--max-overhead`: what a recording says about it, and that nothing is missing in one.

use crate::common::recording::{BASE, FILE, PAGES, STEP, directory, known_pages};
use crate::common::running::Running;
use crate::common::{address, error_line, number, report, run};
use serde_json::Value;

fn rounds(report: &Value) -> &[Value] {
    report["rounds"].as_array().expect("rounds")
}

/// The rounds in which a page was reported.
fn reported(report: &Value, page: u64) -> usize {
    let holds = |range: &Value| {
        let start = address(&range["start"]);
        (start..start + number(&range["pages"]) * 4096).contains(&page)
    };
    let of = |round: &&Value| {
        round["ranges"]
            .as_array()
            .is_some_and(|all| all.iter().any(holds))
    };
    rounds(report).iter().filter(of).count()
}

#[test]
fn a_recording_says_what_it_cost_and_that_it_cost_too_much() {
    let directory = directory();
    let running = Running::known_pages();
    let pid = running.0.id().to_string();
    let arguments = [
        "record",
        "--max-overhead",
        "0.1%",
        "--interval",
        "10ms..30ms",
        "--rounds",
        "25",
        "-p",
        &pid,
    ];
    let output = run(directory.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report = report(directory.path(), FILE);
    let all = rounds(&report);
    assert_eq!(all.len(), 25);
    let allowed = all
        .iter()
        .map(|round| round["overhead"]["allowed"].as_f64());
    assert!(allowed.into_iter().all(|allowed| allowed == Some(1e-3)));
    // The program writes all of them every 5 ms, and rounds are longer.
    for page in (0..PAGES).step_by(STEP as usize) {
        assert_eq!(reported(&report, BASE + page * 4096), 25, "page {page}");
    }
    // A collect alone takes more than this share of 30 ms.
    let overhead = &report["overhead"];
    assert!(overhead["cost"].as_f64().is_some_and(|cost| cost > 1e-3));
    // Not of each round: on a busy machine some come late, which makes them cheap.
    let over = all
        .iter()
        .filter(|round| round["overhead"]["is_kept"] == false);
    let over = over.count() as u64;
    assert!(over > 0, "{overhead}");
    assert_eq!(number(&overhead["rounds_over"]), over);
    let notes = |round: &Value| round["events"].to_string();
    let line = "tracking costs more than 0.1% even with rounds of 30 ms; it goes on so";
    // Once for each time that it became so: a round that comes late is cheap.
    let said = all
        .iter()
        .filter(|round| notes(round).contains(line))
        .count();
    let again = "tracking costs no more than 0.1% again";
    let taken_back = all.iter().filter(|round| notes(round).contains(again));
    let taken_back = taken_back.count();
    assert!(
        said == taken_back || said == taken_back + 1,
        "{said} {taken_back}"
    );
    assert!(said > 0, "{overhead}");
    let text = run(directory.path(), &["report"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("25 rounds of 10 ms or longer"), "{text}");
    assert!(words.contains("of 0.1% allowed; interval "), "{text}");
    assert!(
        words.contains("not to be kept at the longest interval in "),
        "{text}"
    );
}

#[test]
fn a_program_that_is_started_has_a_budget_too() {
    let directory = directory();
    let program = known_pages();
    let program = program.to_str().expect("UTF-8");
    let arguments = [
        "record",
        "--max-overhead",
        "50%",
        "--interval",
        "5ms",
        "--",
        program,
        "60",
    ];
    let output = run(directory.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report = report(directory.path(), FILE);
    assert!(
        rounds(&report)
            .iter()
            .all(|round| round["overhead"]["allowed"] == 0.5)
    );
    for page in (0..PAGES).step_by(STEP as usize) {
        assert!(reported(&report, BASE + page * 4096) > 0, "page {page}");
    }
}

/// A program that fills memory is waited for; what no round covers then begins where it began, and
/// not where a round was due.
#[test]
fn memory_that_is_filled_is_said_to_be_unseen() {
    let directory = directory();
    // 64 MiB, after the first round, which is waited for a second at most.
    let fills = "sleep 2; s=0123456789abcdef; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22; \
                 do s=$s$s; done; sleep 0.5";
    let words = ["record", "--max-overhead", "0.1%", "--interval", "5ms..30s"];
    let words = [&words[..], &["--", "bash", "-c", fills]].concat();
    let output = run(directory.path(), &words);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    if directory.path().join(FILE).exists() {
        let technique = report(directory.path(), FILE)["technique"].to_string();
        if !["pagemap-scan", "adaptive"]
            .iter()
            .any(|of| technique.contains(of))
        {
            return pagetrail_skips::not_here(format!("{technique} causes no faults"));
        }
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let before = said.split(" ms").next().unwrap_or_default();
    let unseen = before.rsplit(' ').next().unwrap_or_default();
    let unseen: u64 = unseen.replace(',', "").parse().expect(&said);
    // Nearly all of the sleep; rounds are looked for each 5 ms.
    assert!(unseen >= 300, "{said}");
}

#[test]
fn a_wrong_budget_is_named() {
    let directory = directory();
    let refused = |arguments: &[&str]| {
        let mut all = vec!["record", "-o", "x.trail"];
        all.extend(arguments);
        all.extend(["--", "true"]);
        let output = run(directory.path(), &all);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(!directory.path().join("x.trail").exists());
        output
    };
    let line = error_line(&refused(&["--interval", "20ms..1s"]), 2);
    assert!(line.contains("--max-overhead"), "{line}");
    for (flag, wrong) in [
        ("--max-overhead", "3"),
        ("--max-overhead", "0%"),
        ("--max-overhead", "200%"),
        ("--interval", "1s..20ms"),
    ] {
        let output = refused(&["--technique", "auto", flag, wrong]);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            message.contains(flag) && message.contains(wrong),
            "{message}"
        );
    }
    let output = refused(&["--max-overhead", "3%", "--vm", "--follow"]);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("cannot be used with"), "{message}");
}
