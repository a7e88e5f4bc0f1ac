//! What runs on an emulated Intel processor, in one boot of it: a boot is a minute of a processor,
//! and each of these programs takes less.
//!
//! A guest with page-modification logging, against which the [`model`] is compared; and
//! a program as a guest that must be recorded exactly ([`exact`]), with page-modification
//! logging and with shadow page tables.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use pagetrail_rig::bochs::{self, Paging, Program, Ran, Settings};
use pagetrail_steps::repo::{Repo, program};
use pagetrail_steps::steps::{NotHere, Outcome};

use crate::{exact, model};

/// Far more than all of it takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// What the model is compared with.
const OF_MODEL: &str = "pml-bochs.txt";

/// The two ways of logging: a word for files, the place in the table of techniques.
const WAYS: [(&str, &str); 2] = [
    ("bochs", "emulated Intel, PML"),
    ("bochs-shadow", "emulated Intel, shadow page tables"),
];

/// Runs it; rows of the program that is recorded go to files in `rows`.
pub fn run(repo: &Repo, rows: &Path) -> Result<Outcome> {
    if program("gcc").is_none() {
        return Ok(Outcome::NotHere("no gcc".to_owned()));
    }
    let out = model::out(repo);
    let built = out.join("intel");
    fs::create_dir_all(&built)?;
    let left = out.join(OF_MODEL);
    if left.exists() {
        // Of an earlier run, and must not be compared with.
        fs::remove_file(&left)?;
    }
    let of_model = model::build(repo, "kvm.c", "-static", &built)?;
    let exact = exact::build(repo, exact::Machine::Bochs)?;
    let step = |path: &Path, word: Option<&str>, paging| Program {
        command: [path.display().to_string()]
            .into_iter()
            .chain(word.map(str::to_owned))
            .collect(),
        paging,
    };
    let programs = [
        step(&of_model, None, Paging::Nested),
        step(&exact, Some("pml"), Paging::Nested),
        step(&exact, Some("shadow"), Paging::Shadow),
    ];
    let mut ran = match bochs::run_all(repo, Settings::nested(TIMEOUT), &programs) {
        Err(error) if error.is::<NotHere>() => {
            let why = error.to_string();
            for (word, place) in WAYS {
                let absent = Err(NotHere::error(&why));
                exact::report(place, word, absent, Some(rows))?;
            }
            return Ok(Outcome::NotHere(why));
        }
        ran => ran?.into_iter(),
    };
    let mut next = |what: &str| {
        println!("-- {what}");
        printed(ran.next())
    };
    let modelled = next("a guest for the model");
    let mut fine = true;
    match modelled {
        Ok(printed) => fs::write(&left, printed)?,
        Err(error) => {
            println!("{error:#}");
            fine = false;
        }
    }
    for (word, place) in WAYS {
        let outcome = next(place).map(|printed| print!("{printed}"));
        fine &= exact::report(place, word, outcome, Some(rows))? == Outcome::Passed;
    }
    Ok(Outcome::of(fine))
}

/// What a program printed that has succeeded.
fn printed(ran: Option<Ran>) -> Result<String> {
    let ran =
        ran.context("it was not reached: one before it took too long, or ended the machine")?;
    let printed = String::from_utf8(ran.printed).map_err(|_| anyhow!("it printed no text"))?;
    let status = ran.status;
    ensure!(status == Some(0), "it ended with {status:?}: {printed}");
    Ok(printed)
}
