//! [`Chain`]: checkpoints of a process tree that CRIU takes, one after the other.
//!
//! Where soft-dirty bits tell what was written (see `tracking`), each is a pre-dump, which copies
//! while the processes run, and a dump of what they wrote meanwhile; and the next refers to both.
//! Elsewhere CRIU sends all pages each time, while the processes stand still.

use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pagetrail_checkpoint::criu::{Dump, Dumps, frozen};
use pagetrail_checkpoint::{Error, Manifest};

use crate::engine::{Engine, is_log, reason, start_with};
use crate::scratch::Scratch;
use crate::tracking::Tracking;

/// The parts of a checkpoint, and their directories.
const PRE_DUMP: &str = "pre-dump";
const DUMP: &str = "dump";

/// Checkpoints of the tree of a process.
#[derive(Debug)]
pub struct Chain<'a> {
    engine: &'a Engine,
    pid: u32,
    /// Arguments for CRIU, as they are.
    passed_on: &'a [String],
    tracking: Option<Tracking>,
    /// The image files of the checkpoint before, if CRIU knows what was written since.
    before: Option<Scratch>,
}

impl<'a> Chain<'a> {
    /// Begins one of a process and its children, with arguments that are passed on to CRIU.
    pub fn new(engine: &'a Engine, pid: u32, passed_on: &'a [String]) -> Self {
        Self {
            engine,
            pid,
            passed_on,
            tracking: None,
            before: None,
        }
    }

    /// Makes it one of pre-dumps and increments where soft-dirty bits are to be had. That costs
    /// the processes a page fault for each page that they write, until this program ends.
    pub fn track(&mut self) {
        self.tracking = Tracking::find(self.engine);
    }

    /// Takes one; the processes go on afterwards, whatever comes of it. From the first time on that
    /// it fails with tracking it goes without; gives besides why it failed then.
    ///
    /// # Errors
    ///
    /// CRIU cannot save the processes, and says why; the storage fails. The store is as it was.
    pub fn take(&mut self, dumps: &mut Dumps) -> Result<(Manifest, Option<Error>), Error> {
        match self.attempt(dumps) {
            Err(error) if self.stop_tracking() => Ok((self.attempt(dumps)?, Some(error))),
            outcome => Ok((outcome?, None)),
        }
    }

    /// Ends tracking; tells whether there was any.
    fn stop_tracking(&mut self) -> bool {
        self.before = None;
        self.tracking.take().is_some()
    }

    /// Takes one as it can be had now.
    fn attempt(&mut self, dumps: &mut Dumps) -> Result<Manifest, Error> {
        let images = Scratch::new().map_err(refused)?;
        // After a failure CRIU knows nothing of what was written before.
        let before = self.before.take();
        let taken = dumps.take_by(|dump| self.parts(dump, images.path(), before.as_ref()));
        let manifest = taken?;
        self.before = self.tracking.is_some().then_some(images);
        Ok(manifest)
    }

    /// Lets CRIU send all parts; says how long the processes stood still.
    fn parts(
        &self,
        dump: &mut Dump<'_>,
        images: &Path,
        before: Option<&Scratch>,
    ) -> Result<Duration, Error> {
        let mut parent = before.map(|before| before.path().join(DUMP));
        let mut stood_still = Duration::ZERO;
        if self.tracking.is_some() {
            let directory = images.join(PRE_DUMP);
            self.part(dump, PRE_DUMP, &directory, parent.as_deref())?;
            stood_still += frozen_time(&directory);
            parent = Some(directory);
        }
        let directory = images.join(DUMP);
        self.part(dump, DUMP, &directory, parent.as_deref())?;
        add_files(dump, &directory)?;
        Ok(stood_still + frozen_time(&directory))
    }

    /// Lets CRIU send a part, over what the directory `parent` is of.
    fn part(
        &self,
        dump: &mut Dump<'_>,
        verb: &str,
        directory: &Path,
        parent: Option<&Path>,
    ) -> Result<(), Error> {
        fs::create_dir(directory).map_err(|cause| io("cannot make a directory", cause))?;
        let mut command = self.engine.command(verb, directory);
        command.args(["-t", &self.pid.to_string()]);
        command.args((verb == DUMP).then_some("--leave-running"));
        if let Some(tracking) = &self.tracking {
            command.arg("--track-mem");
            tracking.apply(&mut command);
        }
        if let Some(parent) = parent {
            // CRIU takes it from the directory of the images.
            command.arg("--prev-images-dir").arg(relative(parent));
        }
        command.args(self.passed_on);
        let pair = UnixStream::pair();
        let (ours, theirs) = pair.map_err(|cause| io("cannot make a pair of sockets", cause))?;
        let started = start_with(command, theirs.into());
        let mut child = started.map_err(refused)?;
        let received = match verb {
            PRE_DUMP => dump.pre_dump(&ours),
            _ => dump.pages(&ours),
        };
        // CRIU waits for nothing more: where the store failed, it undoes what it did and goes.
        drop(ours);
        let status = child.wait();
        let status = status.map_err(|cause| io("cannot wait for CRIU", cause))?;
        match received {
            Err(error) if !is_about_criu(&error) => Err(error),
            Err(error) if status.success() => Err(error),
            _ if !status.success() => Err(Error::Refused(format!(
                "CRIU cannot save process {}, which goes on: {}",
                self.pid,
                reason(verb, directory)
            ))),
            _ => Ok(()),
        }
    }
}

/// The way from a directory of images to another: both are in directories beside each other.
fn relative(parent: &Path) -> PathBuf {
    let mut names = parent.components().rev();
    let (own, above) = (names.next(), names.next());
    let names = above.into_iter().chain(own);
    names.fold(PathBuf::from("../.."), |path, name| path.join(name))
}

fn refused(error: crate::Error) -> Error {
    Error::Refused(error.to_string())
}

fn io(what: &str, cause: std::io::Error) -> Error {
    Error::Io {
        what: what.into(),
        cause,
    }
}

/// Whether CRIU knows better what went wrong.
fn is_about_criu(error: &Error) -> bool {
    match error {
        Error::Peer(_) => true,
        Error::Io { what, .. } => what.contains("connection"),
        _ => false,
    }
}

/// Adds CRIU's image files.
fn add_files(dump: &mut Dump<'_>, directory: &Path) -> Result<(), Error> {
    let unread = |cause| io("cannot read CRIU's files", cause);
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(unread)? {
        let entry = entry.map_err(unread)?;
        let is_file = entry.file_type().map_err(unread)?.is_file();
        if let Ok(name) = entry.file_name().into_string()
            && is_file
            && !is_log(&name)
        {
            names.push(name);
        }
    }
    names.sort();
    for name in &names {
        let mut file = File::open(directory.join(name)).map_err(unread)?;
        dump.add_file(name, &mut file)?;
    }
    Ok(())
}

/// How long a part froze the processes.
fn frozen_time(directory: &Path) -> Duration {
    let stats = fs::read(directory.join("stats-dump")).unwrap_or_default();
    frozen(&stats).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_the_parent_leads_up_and_down() {
        let parent = Path::new("/tmp/pagetrail-criu-1/pre-dump");
        assert_eq!(
            relative(parent),
            Path::new("../../pagetrail-criu-1/pre-dump")
        );
    }
}
