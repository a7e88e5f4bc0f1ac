//! [`Lane`]: steps that run beside others, in a process of their own.
//!
//! What they print goes to a file and is shown once they have ended, so that lines of two steps
//! never mix. What became of them joins the sum of the others.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::repo::{Repo, program};
use crate::steps::Steps;
use crate::tally::Tally;

/// Steps in a process of their own, which ends with ours.
#[derive(Debug)]
pub struct Lane {
    name: &'static str,
    child: Child,
    log: PathBuf,
    report: PathBuf,
}

/// What became of a lane's steps.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// The steps.
    pub steps: Steps,
    /// The tests that they ran.
    pub tally: Tally,
}

impl Report {
    /// Writes it for [`Lane::join`].
    pub fn write(&self, file: &Path) -> Result<()> {
        let text = serde_json::to_string(self)?;
        fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
    }

    fn read(file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file).context("it left no report")?;
        Ok(serde_json::from_str(&text)?)
    }
}

impl Lane {
    /// Starts this program anew with `arguments`, and after these the name of the file for its
    /// [`Report`]. `None` where the process would outlive ours, for lack of `setpriv`: then the
    /// steps run after the others.
    pub fn start(repo: &Repo, name: &'static str, arguments: &[&OsStr]) -> Result<Option<Self>> {
        let Some(setpriv) = program("setpriv") else {
            return Ok(None);
        };
        let mut command = Command::new(setpriv);
        command.args(["--pdeathsig", "KILL"]);
        command.arg(std::env::current_exe()?).args(arguments);
        let directory = repo.target.join("lanes");
        Self::spawn(&mut command, name, &directory).map(Some)
    }

    fn spawn(command: &mut Command, name: &'static str, directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory)?;
        let [log, report] = ["log", "json"]
            .map(|kind| directory.join(format!("{}.{kind}", name.replace(' ', "-"))));
        if report.exists() {
            // Of an earlier run.
            fs::remove_file(&report)?;
        }
        let output = File::create(&log)?;
        command.arg(&report).stdin(Stdio::null());
        command.stdout(output.try_clone()?).stderr(output);
        let child = command.spawn();
        let child = child.with_context(|| format!("cannot run {:?}", command.get_program()))?;
        println!("== {name}: beside what follows, see {}\n", log.display());
        Ok(Self {
            name,
            child,
            log,
            report,
        })
    }

    /// Waits for the end of the steps, shows what they printed, and adds them to the others. A lane
    /// that dies is a step that failed.
    pub fn join(mut self, steps: &mut Steps, tally: &mut Tally) {
        let ended = self.child.wait();
        // Where standard output is gone, the exit status still says what became of the steps.
        let _ = fs::read(&self.log).and_then(|log| io::stdout().write_all(&log));
        let report = ended
            .context("cannot wait for it")
            .and_then(|status| Report::read(&self.report).with_context(|| status.to_string()));
        match report {
            Ok(report) => {
                steps.add(report.steps);
                tally.join(report.tally);
            }
            Err(error) => {
                steps.run(self.name, || Err(error));
                tally.add(Tally::default(), false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::Outcome;

    /// A lane that is a shell's script, whose first argument is the file of the report.
    fn lane(script: &str, directory: &Path) -> Lane {
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]);
        Lane::spawn(&mut shell, "lane", directory).unwrap()
    }

    #[test]
    fn what_became_of_a_lane_joins_the_others() {
        let directory = tempfile::tempdir().unwrap();
        let mut report = Report::default();
        report.steps.run("good", || Ok(Outcome::Passed));
        report.steps.run("bad", || Ok(Outcome::Failed));
        report
            .tally
            .feed(b"test result: FAILED. 3 passed; 1 failed; 2 ignored\n");
        let kept = directory.path().join("kept");
        report.write(&kept).unwrap();
        let lane = lane(&format!("cp '{}' \"$1\"", kept.display()), directory.path());
        let (mut steps, mut tally) = (Steps::default(), Tally::default());
        steps.run("own", || Ok(Outcome::Passed));
        tally.feed(b"test result: ok. 10 passed; 0 failed; 0 ignored\n");
        lane.join(&mut steps, &mut tally);
        assert_eq!((tally.passed, tally.failed, tally.ignored), (13, 1, 2));
        assert_eq!(steps.names(), ["own", "good", "bad"]);
        assert!(!steps.finish());
    }

    #[test]
    fn a_lane_that_dies_has_failed() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("lane.json"), "{}").unwrap();
        let lane = lane("echo half a line; kill -9 $$", directory.path());
        let (mut steps, mut tally) = (Steps::default(), Tally::default());
        lane.join(&mut steps, &mut tally);
        assert_eq!((tally.passed, tally.failed), (0, 1));
        assert!(!steps.finish());
    }
}
