//! [`Chain`]: checkpoints of a process tree that CRIU takes, one after the other.
//!
//! Where soft-dirty bits tell what was written (see `tracking`), each is a pre-dump, which copies
//! while the processes run, and a dump of what they wrote meanwhile; and the next refers to both.
//! Elsewhere CRIU saves all pages each time, while the processes stand still.
//!
//! CRIU leaves pages in image files in memory, as far as there is room, and they go to the store
//! when the processes run again; else it sends them to a page server of ours.

use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use pagetrail_checkpoint::criu::{Dump, Dumps, frozen, is_of_pages};
use pagetrail_checkpoint::{Error, Manifest};

use crate::engine::{Engine, is_log, reason, start_with};
use crate::memory::{self, Memory, MemoryDirectory};
use crate::scratch::Scratch;
use crate::tracking::Tracking;

/// The parts of a checkpoint, and their directories.
const PRE_DUMP: &str = "pre-dump";
const DUMP: &str = "dump";
/// CRIU's link to the images before, in a directory of images.
const PARENT: &str = "parent";

/// Where CRIU leaves the image files of a checkpoint.
#[derive(Debug)]
enum Images {
    /// All of them, those of pages included.
    InMemory(MemoryDirectory),
    /// All but those of pages.
    OnDisk(Scratch),
}

impl Images {
    fn path(&self) -> &Path {
        match self {
            Self::InMemory(directory) => directory.path(),
            Self::OnDisk(directory) => directory.path(),
        }
    }

    /// Whether CRIU finds here what it needs to go on after those.
    fn continues(&self, before: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(before)
    }
}

/// Checkpoints of the tree of a process.
#[derive(Debug)]
pub struct Chain<'a> {
    engine: &'a Engine,
    pid: u32,
    /// Arguments for CRIU, as they are.
    passed_on: &'a [String],
    tracking: Option<Tracking>,
    memory: Option<Arc<Memory>>,
    /// The image files of the checkpoint before, if CRIU knows what was written since.
    before: Option<Images>,
}

impl<'a> Chain<'a> {
    /// Begins one of a process and its children, with arguments that are passed on to CRIU.
    pub fn new(engine: &'a Engine, pid: u32, passed_on: &'a [String]) -> Self {
        Self {
            engine,
            pid,
            passed_on,
            tracking: None,
            memory: None,
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
        if let Some(images) = self.in_memory() {
            let outcome = self.attempt_in(dumps, &images);
            let is_full = matches!(&images, Images::InMemory(directory) if directory.is_full());
            if outcome.is_ok() || !is_full {
                if outcome.is_ok() && self.tracking.is_some() {
                    // What it leads to is gone. CRIU would take the one after it for damaged.
                    let _ = fs::remove_file(images.path().join(PRE_DUMP).join(PARENT));
                    self.before = Some(images);
                }
                return outcome;
            }
        }
        let images = Images::OnDisk(Scratch::new().map_err(refused)?);
        let manifest = self.attempt_in(dumps, &images)?;
        self.before = self.tracking.is_some().then_some(images);
        Ok(manifest)
    }

    /// A directory in memory, if there is room for all that the processes have.
    fn in_memory(&mut self) -> Option<Images> {
        let to_spare = memory::to_spare();
        let memory = match &mut self.memory {
            Some(memory) => memory,
            none => none.insert(Memory::new(to_spare)?),
        };
        let needed = memory::of_tree(self.pid);
        let has_room = needed <= to_spare.min(memory.room());
        let directory = has_room.then(|| memory.directory()).flatten();
        directory.map(Images::InMemory)
    }

    fn attempt_in(&mut self, dumps: &mut Dumps, images: &Images) -> Result<Manifest, Error> {
        // After a failure CRIU knows nothing of what was written before.
        let before = self.before.take();
        let before = before.filter(|before| images.continues(before));
        dumps.take_by(|dump| self.parts(dump, images, before.as_ref()))
    }

    /// Lets CRIU save all parts; says how long the processes stood still.
    fn parts(
        &self,
        dump: &mut Dump<'_>,
        images: &Images,
        before: Option<&Images>,
    ) -> Result<Duration, Error> {
        let mut parent = before.map(|before| before.path().join(DUMP));
        let mut stood_still = Duration::ZERO;
        if self.tracking.is_some() {
            let directory = images.path().join(PRE_DUMP);
            self.part(dump, PRE_DUMP, &directory, images, parent.as_deref())?;
            stood_still += frozen_time(&directory);
            parent = Some(directory);
        }
        let directory = images.path().join(DUMP);
        self.part(dump, DUMP, &directory, images, parent.as_deref())?;
        add_files(dump, &directory)?;
        Ok(stood_still + frozen_time(&directory))
    }

    /// Lets CRIU save a part, over what the directory `parent` is of.
    fn part(
        &self,
        dump: &mut Dump<'_>,
        verb: &str,
        directory: &Path,
        images: &Images,
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
        match images {
            Images::InMemory(_) => self.by_files(dump, command, verb, directory),
            Images::OnDisk(_) => self.by_page_server(dump, command, verb, directory),
        }
    }

    /// Takes what CRIU has left in files, which have room for the next part then.
    fn by_files(
        &self,
        dump: &mut Dump<'_>,
        mut command: Command,
        verb: &str,
        directory: &Path,
    ) -> Result<(), Error> {
        let status = command.status();
        let status = status.map_err(|cause| io("cannot run CRIU", cause))?;
        if !status.success() {
            return Err(self.cannot_save(verb, directory));
        }
        match verb {
            PRE_DUMP => dump.pre_dump_images(directory)?,
            _ => dump.images(directory)?,
        }
        empty(directory)
    }

    /// Takes what CRIU sends.
    fn by_page_server(
        &self,
        dump: &mut Dump<'_>,
        command: Command,
        verb: &str,
        directory: &Path,
    ) -> Result<(), Error> {
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
            _ if !status.success() => Err(self.cannot_save(verb, directory)),
            _ => Ok(()),
        }
    }

    fn cannot_save(&self, verb: &str, directory: &Path) -> Error {
        Error::Refused(format!(
            "CRIU cannot save process {}, which goes on: {}",
            self.pid,
            reason(verb, directory)
        ))
    }
}

/// Empties the files of pages: the store has them, and CRIU looks at their maps alone.
fn empty(directory: &Path) -> Result<(), Error> {
    for name in names(directory)? {
        if is_of_pages(&name) && !name.starts_with("pagemap-") {
            let file = File::options().write(true).open(directory.join(name));
            let emptied = file.and_then(|file| file.set_len(0));
            emptied.map_err(|cause| io("cannot empty a file of pages", cause))?;
        }
    }
    Ok(())
}

/// The names of the files of a directory, sorted.
fn names(directory: &Path) -> Result<Vec<String>, Error> {
    let unread = |cause| io("cannot read CRIU's files", cause);
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(unread)? {
        let entry = entry.map_err(unread)?;
        let is_file = entry.file_type().map_err(unread)?.is_file();
        if let Ok(name) = entry.file_name().into_string()
            && is_file
        {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
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

/// Adds CRIU's image files, but for those of pages.
fn add_files(dump: &mut Dump<'_>, directory: &Path) -> Result<(), Error> {
    let unread = |cause| io("cannot read CRIU's files", cause);
    for name in names(directory)? {
        if !is_log(&name) && !is_of_pages(&name) {
            let mut file = File::open(directory.join(&name)).map_err(unread)?;
            dump.add_file(&name, &mut file)?;
        }
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
