//! One suite for every technique and every kind of target: every written page must be in this round
//! or in the next.
//!
//! The tracked side performs what the suite orders ([`actor`]), in this process or in a copy of
//! this program, so the suite knows every write. Each technique that works on this machine runs
//! every case ([`cases`]); false positives are counted and printed. Arguments are those of every
//! test ([`harness`]); words select cases that have them all: `conformance pagemap-scan anon`.
//!
//! Rows *subject x technique x {works, fails, absent}* go to the directory in `PAGETRAIL_ROWS`, if
//! set.

#![allow(clippy::print_stdout, reason = "this program is its own test runner")]

mod actor;
mod cases;
#[path = "../support/harness.rs"]
mod harness;
mod subject;

use harness::Selection;
use libtest_mimic::{Completion, Failed};
use pagetrail::{Capabilities, Error, Status, Technique};
use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use subject::{SUBJECTS, Subject};

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(actor::PUPPET) {
        actor::be_puppet();
        return ExitCode::SUCCESS;
    }
    let selection = Selection::of(std::env::args().collect());
    let found = Found::default();
    let mut trials = Vec::new();
    for technique in Technique::ALL {
        for subject in SUBJECTS {
            match status_for(technique, subject) {
                Status::Works => trials.extend(of_technique(technique, subject, &found)),
                status => trials.push(not_tried(technique, subject, status, &found)),
            }
        }
    }
    trials.extend(SUBJECTS.iter().map(|subject| automatic(subject, &found)));
    let trials = selection.among(trials);
    if selection.arguments.list {
        return libtest_mimic::run(&selection.arguments, trials).exit_code();
    }
    let _huge_pages = HugePages::reserve();
    let conclusion = libtest_mimic::run(&selection.arguments, trials);
    found.rows();
    found.print_precision();
    conclusion.exit_code()
}

/// What trials found out, for the table and the summary.
#[derive(Clone, Default)]
struct Found(Arc<Mutex<Findings>>);

#[derive(Default)]
struct Findings {
    /// By technique and subject, in the order of the trials.
    rows: Vec<Row>,
    /// Pages reported and written, by technique and case.
    precision: BTreeMap<(Technique, &'static str), (u64, u64)>,
}

/// What came of a technique on a subject.
struct Row {
    technique: &'static str,
    subject: &'static Subject,
    status: Status,
    /// The technique that was chosen, for `auto`.
    chosen: Option<Technique>,
}

impl Found {
    /// A case that panicked has left no half-written finding.
    fn findings(&self) -> MutexGuard<'_, Findings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a status; where there are two on one cell, a failure counts, and its cases are listed.
    fn note(&self, row: Row) {
        let mut findings = self.findings();
        let of_cell = |old: &&mut Row| {
            old.technique == row.technique && std::ptr::eq(old.subject, row.subject)
        };
        let Some(old) = findings.rows.iter_mut().find(of_cell) else {
            findings.rows.push(row);
            return;
        };
        match (&mut old.status, row.status) {
            (Status::Fails(cases), Status::Fails(case)) => {
                let name = case.trim_start_matches("conformance: ");
                *cases += &format!(", {name}");
            }
            (Status::Fails(_), _) => {}
            (old, new @ (Status::Fails(_) | Status::Absent(_))) => *old = new,
            _ => {}
        }
    }

    fn rows(&self) {
        for found in &self.findings().rows {
            row(found.technique, found.subject, &found.status, found.chosen);
        }
    }

    fn print_precision(&self) {
        let findings = self.findings();
        let written = |(_, (_, written)): &(_, &(u64, u64))| *written != 0;
        let mut lines = findings.precision.iter().filter(written).peekable();
        if lines.peek().is_some() {
            println!("\nreported pages per written page, by case (1.00 is exact)");
        }
        for ((technique, case), (reported, written)) in lines {
            let ratio = *reported as f64 / *written as f64;
            println!("  {:<13} {case:<28} {ratio:>8.2}", technique.name());
        }
    }
}

/// Every case of a technique that works here.
fn of_technique(
    technique: Technique,
    subject: &'static Subject,
    found: &Found,
) -> impl Iterator<Item = libtest_mimic::Trial> {
    let found = found.clone();
    cases::CASES.iter().map(move |case| {
        let name = format!("{technique}, {}, {}", subject.name, case.name);
        let found = found.clone();
        libtest_mimic::Trial::ignorable_test(name, move || {
            let note = |status| {
                found.note(Row {
                    technique: technique.name(),
                    subject,
                    status,
                    chosen: None,
                });
            };
            // Stays if the case panics.
            let panics = Unwinding(&note, case.name);
            let mut trial = cases::Trial::new(technique, subject);
            let outcome = (case.run)(&mut trial);
            std::mem::forget(panics);
            let mut findings = found.findings();
            let sum = findings.precision.entry((technique, case.name));
            let (reported, written) = sum.or_default();
            *reported += trial.reported;
            *written += trial.written;
            drop(findings);
            match outcome {
                Ok(()) => {
                    note(Status::Works);
                    Ok(Completion::Completed)
                }
                Err(cases::Stop::NotApplicable(why)) => {
                    note(Status::Works);
                    Ok(Completion::ignored_with(why))
                }
                Err(cases::Stop::Watch(error @ Error::WrongTarget { .. })) => {
                    note(Status::Absent(error.to_string()));
                    Ok(Completion::ignored_with(error))
                }
                Err(stop) => {
                    note(Status::Fails(format!("conformance: {}", case.name)));
                    // At once: the harness says why at its end, which a run that hangs has not.
                    println!("{stop}");
                    Err(stop.to_string().into())
                }
            }
        })
    })
}

/// Notes that a case failed, when dropped.
struct Unwinding<'a>(&'a dyn Fn(Status), &'static str);

impl Drop for Unwinding<'_> {
    fn drop(&mut self) {
        (self.0)(Status::Fails(format!("conformance: {}", self.1)));
    }
}

/// Whether a technique works here, and other processes can be attached to, if `subject` is one.
fn status_for(technique: Technique, subject: &Subject) -> Status {
    let status = Capabilities::probe().status(technique).clone();
    match status {
        Status::Works if !subject.own && cfg!(not(target_arch = "x86_64")) => {
            Status::Absent("attaching works on x86-64 only".to_owned())
        }
        status => status,
    }
}

/// All cases of a technique that does not work here, as one that is not run.
fn not_tried(
    technique: Technique,
    subject: &'static Subject,
    status: Status,
    found: &Found,
) -> libtest_mimic::Trial {
    let found = found.clone();
    let name = format!("{technique}, {}, every case", subject.name);
    libtest_mimic::Trial::ignorable_test(name, move || {
        let why = status.to_string();
        found.note(Row {
            technique: technique.name(),
            subject,
            status,
            chosen: None,
        });
        Ok(Completion::ignored_with(why))
    })
}

/// What the automatic choice comes to for a target.
fn automatic(subject: &'static Subject, found: &Found) -> libtest_mimic::Trial {
    let found = found.clone();
    libtest_mimic::Trial::ignorable_test(format!("auto, {}", subject.name), move || {
        let (status, chosen, outcome) = match cases::choose(subject) {
            Ok((technique, reason)) => {
                println!("{}: {technique}: {reason}", subject.name);
                (Status::Works, Some(technique), Ok(Completion::Completed))
            }
            Err(cases::Stop::Watch(error)) if error.is_machine_limit() => {
                let why = error.to_string();
                (
                    Status::Absent(why.clone()),
                    None,
                    Ok(Completion::ignored_with(why)),
                )
            }
            Err(stop) => {
                let why = stop.to_string();
                (Status::Fails(why.clone()), None, Err(Failed::from(why)))
            }
        };
        found.note(Row {
            technique: "auto",
            subject,
            status,
            chosen,
        });
        outcome
    })
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
