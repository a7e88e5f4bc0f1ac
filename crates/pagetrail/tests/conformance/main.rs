//! One suite for every technique and every kind of target: every written page must be in this round
//! or in the next.
//!
//! The tracked side performs what the suite orders ([`actor`]), in this process or in a copy of
//! this program, so the suite knows every write. Each technique that works on this machine runs
//! every case ([`cases`]); false positives are counted and printed. Arguments select cases by name,
//! and techniques: `conformance pagemap-scan anon`.
//!
//! Rows *subject x technique x {works, fails, absent}* go to the directory in `PAGETRAIL_ROWS`, if
//! set.

#![allow(clippy::print_stdout, reason = "this program is its own test runner")]

mod actor;
mod cases;
mod subject;

use pagetrail::{Capabilities, Error, Status, Technique};
use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use subject::{SUBJECTS, Subject};

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|word| word == actor::PUPPET) {
        actor::be_puppet();
        return ExitCode::SUCCESS;
    }
    if arguments.iter().any(|word| word == "--list") {
        return ExitCode::SUCCESS;
    }
    arguments.retain(|word| !word.starts_with('-'));
    let is_technique = |word: &String| word.parse::<Technique>().is_ok();
    let (techniques, arguments): (Vec<_>, Vec<_>) = arguments.into_iter().partition(is_technique);
    let wanted = |name: &str| techniques.is_empty() || techniques.iter().any(|word| word == name);
    let selected = |name: &str| {
        arguments.is_empty() || arguments.iter().any(|word| name.contains(word.as_str()))
    };

    let _huge_pages = HugePages::reserve();
    let mut tally = Tally::default();
    for technique in Technique::ALL {
        for subject in SUBJECTS.iter().filter(|_| wanted(technique.name())) {
            let status = match Capabilities::probe().status(technique) {
                Status::Works => tally.run(technique, subject, &selected),
                status => status.clone(),
            };
            row(technique.name(), subject, &status, None);
        }
    }
    for subject in SUBJECTS.iter().filter(|_| wanted("auto")) {
        match cases::choose(subject) {
            Ok((technique, reason)) => {
                println!("auto, {}: {technique}: {reason}", subject.name);
                row("auto", subject, &Status::Works, Some(technique));
            }
            Err(cases::Stop::Watch(error)) if error.is_machine_limit() => {
                println!("auto, {}: {error}", subject.name);
                row("auto", subject, &Status::Absent(error.to_string()), None);
            }
            Err(stop) => {
                tally.failed += 1;
                println!("test auto, {} ... FAILED: {stop}", subject.name);
                row("auto", subject, &Status::Fails(stop.to_string()), None);
            }
        }
    }
    println!("\nreported pages per written page, by case (1.00 is exact)");
    for ((technique, case), (reported, written)) in &tally.precision {
        if *written == 0 {
            continue;
        }
        println!(
            "  {technique:<13} {case:<28} {:>8.2}",
            *reported as f64 / *written as f64
        );
    }
    let verdict = if tally.failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {verdict}. {} passed; {} failed; {} ignored; 0 measured; 0 filtered out",
        tally.passed, tally.failed, tally.not_applicable
    );
    ExitCode::from(u8::from(tally.failed != 0))
}

/// Huge pages for the case that needs some, reserved if this runs as root and none are reserved
/// yet; freed when dropped.
struct HugePages;

const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";

impl HugePages {
    fn reserve() -> Option<Self> {
        let none = std::fs::read_to_string(HUGE_PAGES).is_ok_and(|text| text.trim() == "0");
        (none && std::fs::write(HUGE_PAGES, "48").is_ok()).then_some(Self)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = std::fs::write(HUGE_PAGES, "0");
    }
}

#[derive(Default)]
struct Tally {
    passed: u32,
    failed: u32,
    not_applicable: u32,
    precision: BTreeMap<(String, &'static str), (u64, u64)>,
}

impl Tally {
    fn run(
        &mut self,
        technique: Technique,
        subject: &Subject,
        selected: &dyn Fn(&str) -> bool,
    ) -> Status {
        let mut failures = Vec::new();
        let mut wrong_target = None;
        for case in cases::CASES.iter().filter(|case| selected(case.name)) {
            let mut trial = cases::Trial::new(technique, subject);
            let outcome = (case.run)(&mut trial);
            let (reported, written) = self
                .precision
                .entry((technique.to_string(), case.name))
                .or_default();
            *reported += trial.reported;
            *written += trial.written;
            let name = format!("{technique}, {}, {}", subject.name, case.name);
            match outcome {
                Ok(()) => {
                    self.passed += 1;
                    println!("test {name} ... ok");
                }
                Err(cases::Stop::NotApplicable(why)) => {
                    self.not_applicable += 1;
                    println!("test {name} ... ignored: {why}");
                }
                Err(cases::Stop::Watch(error @ Error::WrongTarget { .. })) => {
                    wrong_target = Some(error.to_string());
                    break;
                }
                Err(stop) => {
                    self.failed += 1;
                    println!("test {name} ... FAILED: {stop}");
                    failures.push(case.name);
                }
            }
        }
        match wrong_target {
            Some(reason) => Status::Absent(reason),
            None if failures.is_empty() => Status::Works,
            None => Status::Fails(format!("conformance: {}", failures.join(", "))),
        }
    }
}

/// Writes a row. `chosen`: what the table shows instead of "works".
fn row(technique: &str, subject: &Subject, status: &Status, chosen: Option<Technique>) {
    let Some(directory) = std::env::var_os("PAGETRAIL_ROWS") else {
        return;
    };
    let place = std::env::var("PAGETRAIL_WHERE").unwrap_or_else(|_| "this machine".into());
    let quote = |text: &str| format!("{text:?}");
    let line = format!(
        "{{\"where\":{},\"subject\":{},\"technique\":{},\"status\":{},\"reason\":{}}}\n",
        quote(&place),
        quote(subject.name),
        quote(technique),
        quote(status.word()),
        quote(match chosen {
            Some(technique) => technique.name(),
            None => status.reason().unwrap_or_default(),
        }),
    );
    let path = std::path::Path::new(&directory).join("conformance.jsonl");
    let file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path);
    file.and_then(|mut file| file.write_all(line.as_bytes()))
        .expect("PAGETRAIL_ROWS must be a directory");
}
