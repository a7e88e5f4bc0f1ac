//! `cargo xtask reproduce`: measures anew what stands beside the papers' values, and writes the
//! book's chapters of them with their pictures.
//!
//! Measuring takes hours and wants an idle machine. What is done is noted in `target/reproduce`, so
//! that a run that was ended goes on where it was; `report` writes the chapters from what is
//! recorded.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use pagetrail_steps::products::{Product, Profile};
use pagetrail_steps::repo::Repo;

/// Where the book has the chapters.
const CHAPTERS: &str = "docs/book/src/research/reproduction";
/// Papers, as `pagetrail model reproduce` names them.
const PAPERS: [&str; 4] = ["ooh", "flexible", "hmmv", "xen"];

/// What makes the recordings that the papers' tables show, as words after `cargo xtask`.
const STEPS: &[&[&str]] = &[
    &["bench", "bench"],
    &["bench", "metrics"],
    &["bench", "collector", "memory"],
    &["bench", "collector", "here"],
    &["bench", "collector", "guest"],
    &["bench", "checkpointer"],
    &["bench", "checkpointer", "engines"],
    &["bench", "ooh", "--again", "--for", "8h"],
    &["bench", "subpage", "programs"],
    &["bench", "subpage", "checkpoints"],
    &["bench", "subpage", "scale"],
    &["bench", "units"],
    // With the guests' part, and the recorded programs.
    &["bench", "tier"],
    &["bench", "guests"],
    &["bench", "vm"],
    &["kvm", "suites"],
    &["kvm", "paging"],
];
/// The exit code of a task that is not possible on this machine.
const NOT_HERE: i32 = 3;

/// Measures what is not done yet, and writes the chapters; `report` writes them alone, `--again`
/// measures everything.
pub(crate) fn run(repo: &Repo, arguments: &[String]) -> Result<bool> {
    let done = Done::open(repo)?;
    let fine = match arguments {
        [] => measure(done)?,
        [again] if again == "--again" => {
            done.forget()?;
            measure(Done::open(repo)?)?
        }
        [report] if report == "report" => true,
        [other, ..] => bail!("reproduce takes report or --again, not '{other}'"),
    };
    report(repo)?;
    Ok(fine)
}

fn measure(mut done: Done) -> Result<bool> {
    let mut fine = true;
    for words in STEPS {
        let name = words.join(" ");
        if done.has(&name) {
            println!("== {name}: done before");
            continue;
        }
        println!("== {name}");
        let began = Instant::now();
        let mut task = Command::new(std::env::current_exe()?);
        let status = task.args(*words).status()?;
        let seconds = began.elapsed().as_secs();
        match status.code() {
            Some(0) => {
                println!("== {name}: recorded in {seconds} s");
                done.add(&name)?;
            }
            Some(NOT_HERE) => println!("== {name}: not here; what was recorded before is shown"),
            _ => {
                println!("== {name}: {status} after {seconds} s");
                fine = false;
            }
        }
    }
    Ok(fine)
}

/// The chapters, by the command itself: it brings the recordings along, so it is built anew.
fn report(repo: &Repo) -> Result<()> {
    let pagetrail = Product::Command.build(repo, Profile::Release)?;
    for paper in PAPERS {
        let mut command = Command::new(&pagetrail);
        command.args(["model", "reproduce", paper, "--json", "--report"]);
        command.arg(repo.root.join(CHAPTERS));
        let output = command.stderr(std::process::Stdio::inherit()).output()?;
        // 1: a statement of the paper does not hold, which the chapter says.
        ensure!(
            matches!(output.status.code(), Some(0 | 1)),
            "{paper}: {}",
            output.status
        );
    }
    println!("chapters and pictures: {CHAPTERS}");
    Ok(())
}

/// The steps that were done, one in each line of a file.
struct Done {
    path: PathBuf,
    names: BTreeSet<String>,
}

impl Done {
    fn open(repo: &Repo) -> Result<Self> {
        let directory = repo.target.join("reproduce");
        fs::create_dir_all(&directory)?;
        let path = directory.join("done");
        let text = fs::read_to_string(&path).unwrap_or_default();
        Ok(Self {
            names: text.lines().map(str::to_owned).collect(),
            path,
        })
    }

    fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    fn add(&mut self, name: &str) -> Result<()> {
        self.names.insert(name.to_owned());
        let lines: Vec<&str> = self.names.iter().map(String::as_str).collect();
        let fresh = self.path.with_extension("new");
        fs::write(&fresh, lines.join("\n") + "\n")
            .and_then(|()| fs::rename(&fresh, &self.path))
            .with_context(|| format!("cannot write {}", self.path.display()))
    }

    fn forget(&self) -> Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_was_ended_goes_on() {
        let root = std::env::temp_dir().join(format!("pagetrail-reproduce-{}", std::process::id()));
        let repo = Repo {
            target: root.clone(),
            root: root.clone(),
        };
        let mut done = Done::open(&repo).unwrap();
        assert!(!done.has("bench collector here"));
        done.add("bench collector here").unwrap();
        done.add("kvm paging").unwrap();
        let done = Done::open(&repo).unwrap();
        assert!(
            done.has("bench collector here")
                && done.has("kvm paging")
                && !done.has("bench collector")
        );
        done.forget().unwrap();
        done.forget().unwrap();
        assert!(!Done::open(&repo).unwrap().has("kvm paging"));
        fs::remove_dir_all(&root).unwrap();
    }
}
