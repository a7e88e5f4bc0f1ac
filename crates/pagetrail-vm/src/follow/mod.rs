//! Children of a guest, and programs that it executes, become guests, too
//! ([`Settings::follow`](crate::Settings::follow)).
//!
//! A forked child has a virtual machine of its own whether followed or not
//! ([`crate::children`]). A program is executed as valgrind and QEMU's user mode do it: the process
//! executes *this* program, which becomes a guest that loads the other one. So the kernel itself
//! does what `execve(2)` does to a process: other threads end, handlers are reset, descriptors are
//! closed, a parent that waits in `vfork(2)` goes on.
//!
//! What cannot be a guest is executed natively, as without following: the kernel then says why it
//! fails, if it does. [`executable`] decides that before anything has changed. [`execute`] makes
//! the call. [`handover`] carries what the new program needs, and [`resume`] begins there.

mod executable;
mod execute;
mod handover;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use execute::{Executing, execute};
use handover::Handover;
use rustix::process::{PidfdFlags, pidfd_open};

use crate::error::{Error, Result};
use crate::guest::Guest;
use crate::rounds::announce::{Announcement, Kind};
use crate::rounds::link::GuestEnd;
use crate::sys::kvm::{self, Log, Vm};
use crate::sys::{child, descriptors};
use crate::{Settings, best_log_of, set_name};

/// What a process passes on to the guests that come of it.
#[derive(Debug)]
pub(crate) struct Follow {
    /// The file of this program, which is executed again.
    own: OwnedFd,
    /// The root directory in which that was started, and finds its libraries.
    root: Option<(u64, u64)>,
    /// The program's file, which may be deleted or replaced by the time it executes itself.
    program: OnceLock<OwnedFd>,
    /// Where processes announce themselves to the recorder.
    announcements: Option<OwnedFd>,
    /// The number by which the recorder knows this process.
    id: AtomicU64,
    accesses: bool,
    memory_bytes_max: Option<u64>,
}

impl Follow {
    /// Makes ready to follow; the program's file is opened while it can be. `announcements` is a
    /// descriptor that this process was started with.
    pub(crate) fn begin(settings: &Settings, announcements: Option<RawFd>) -> Result<Self> {
        let own = File::open("/proc/self/exe");
        let own = own.and_then(|own| descriptors::out_of_the_way(own.as_fd()));
        let announcements = announcements.map(descriptors::adopt).transpose();
        Ok(Self {
            own: own.map_err(Error::system("open this program's file"))?,
            root: root(),
            program: OnceLock::new(),
            announcements: announcements.map_err(Error::system("duplicate a descriptor"))?,
            id: new_id().ok_or(Error::Lacks("random bytes"))?.into(),
            accesses: settings.accesses,
            memory_bytes_max: settings.memory_bytes_max,
        })
    }

    /// The descriptors that the program must leave open.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        let more = self.announcements.iter().chain(self.program.get());
        [&self.own].into_iter().chain(more).map(OwnedFd::as_raw_fd)
    }

    /// Keeps the program's file, once. Returns the number of the descriptor that does.
    pub(crate) fn keep(&self, program: &File) -> Option<RawFd> {
        let kept = descriptors::out_of_the_way(program.as_fd()).ok()?;
        let number = kept.as_raw_fd();
        self.program.set(kept).is_ok().then_some(number)
    }

    /// A path by which the kernel finds the program's file, if it is no longer at `path`.
    pub(crate) fn another_path(&self, path: &Path) -> Option<String> {
        let kept = self.program.get()?;
        let file = rustix::fs::fstat(kept).ok()?;
        let is_there = rustix::fs::stat(path)
            .is_ok_and(|found| (found.st_dev, found.st_ino) == (file.st_dev, file.st_ino));
        (!is_there).then(|| format!("/proc/self/fd/{}", kept.as_raw_fd()))
    }

    /// Whether accesses are recorded, too.
    pub(crate) fn tracks_accesses(&self) -> bool {
        self.accesses
    }

    /// Whether this program would find its libraries again: in another root directory they may be
    /// missing, or others.
    fn is_reachable(&self) -> bool {
        self.root.is_some() && self.root == root()
    }

    fn id(&self) -> u64 {
        self.id.load(Ordering::Relaxed)
    }

    /// Announces this process, and returns its end of the link on which the recorder requests its
    /// rounds. `None` where nobody records, or no longer.
    pub(crate) fn announce(&self, kind: Kind, parent: u64) -> Option<GuestEnd> {
        let announcements = self.announcements.as_ref()?;
        let (ours, theirs) = UnixStream::pair().ok()?;
        let process = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).ok()?;
        let announcement = Announcement {
            kind,
            id: self.id(),
            parent,
        };
        let sent = announcement.send(announcements, &[theirs.as_fd(), process.as_fd()]);
        sent.ok()?;
        let ours = descriptors::out_of_the_way(ours.as_fd()).ok()?;
        Some(GuestEnd::of(ours))
    }

    /// Announces a forked child, which is this process from now on.
    pub(crate) fn announce_child(&self) -> Option<GuestEnd> {
        let parent = self.id.swap(new_id()?, Ordering::Relaxed);
        self.announce(Kind::Started, parent)
    }
}

/// The root directory's device and number.
fn root() -> Option<(u64, u64)> {
    let status = rustix::fs::stat("/").ok()?;
    Some((status.st_dev, status.st_ino))
}

/// Makes a number for a process: not 0, which stands for none.
fn new_id() -> Option<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty()).ok()?;
    Some(u64::from_le_bytes(bytes).max(1))
}

/// Becomes the program that a followed guest has executed, if this process is there for that;
/// returns at once otherwise.
///
/// A program that calls [`become_guest`](crate::become_guest) with
/// [`Settings::follow`](crate::Settings::follow) must call this first in its `main`. A program that
/// cannot be a guest here is executed natively.
pub fn resume() {
    let handover = match Handover::of_this_process() {
        None => return,
        Some(Ok(handover)) => handover,
        Some(Err(error)) => {
            crate::end_with(&Error::system("read what a guest has handed over")(error));
        }
    };
    child::reset_signals();
    child::close_standard_descriptors_again();
    let error = match run(&handover) {
        Ok(()) => child::exit(0),
        Err(Failure::Early(error)) => {
            announce_native(&handover);
            match handover.execute_natively() {
                Ok(never) => match never {},
                Err(_) => error,
            }
        }
        Err(Failure::Late(error)) => error,
    };
    crate::end_with(&error)
}

/// Where a guest has failed: before the program's first instruction, or after it.
enum Failure {
    Early(Error),
    Late(Error),
}

fn run(handover: &Handover) -> std::result::Result<(), Failure> {
    let mut guest = begin(handover).map_err(Failure::Early)?;
    guest.run().map_err(Failure::Late)
}

fn begin(handover: &Handover) -> Result<Guest> {
    let duplicate = |fd: &OwnedFd| descriptors::out_of_the_way(fd.as_fd());
    let duplicate = |fd| duplicate(fd).map_err(Error::system("duplicate a descriptor"));
    let announcements = handover.announcements.as_ref().map(duplicate).transpose()?;
    let kvm = kvm::adopt(duplicate(&handover.kvm)?);
    let log = match &announcements {
        Some(_) => best_log_of(&kvm),
        None => Log::Off,
    };
    let mut guest = Guest::on(Vm::create_by(kvm, log)?)?;
    guest.memory().bytes_max = handover.memory_bytes_max;
    if let Some(log) = guest.log().filter(|_| handover.accesses) {
        log.track_accesses(&mut guest.memory());
    }
    guest.set_follow(Follow {
        own: duplicate(&handover.own)?,
        root: root(),
        program: OnceLock::new(),
        announcements,
        id: handover.id.into(),
        accesses: handover.accesses,
        memory_bytes_max: handover.memory_bytes_max,
    });
    guest.load(&handover.found()?, &handover.environment)?;
    set_name(&handover.path);
    guest.announce(Kind::Executed, handover.parent)?;
    Ok(guest)
}

/// Says that a process goes on as no guest.
fn announce_native(handover: &Handover) {
    let announcement = Announcement {
        kind: Kind::Native,
        id: handover.id,
        parent: handover.parent,
    };
    if let Some(announcements) = &handover.announcements {
        // Without a recorder nobody needs to know.
        let _ = announcement.send(announcements, &[]);
    }
}

impl Guest {
    /// Announces this process to the recorder, if there is one, and serves its requests.
    pub(crate) fn announce(&mut self, kind: Kind, parent: u64) -> Result<()> {
        let follow = self.follow.as_deref();
        match follow.and_then(|follow| follow.announce(kind, parent)) {
            Some(link) => self.serve_rounds(link),
            None => Ok(()),
        }
    }
}

/// Reads the path of an open file.
pub(crate) fn path_of(file: &impl AsRawFd) -> io::Result<std::path::PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
}
