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
//! fails, if it does. [`executable`] decides that before anything has changed. [`execute`] makes the
//! call. [`handover`] carries what the new program needs, and [`resume`] begins there.

mod executable;
mod execute;
mod handover;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

pub(crate) use execute::{Executing, execute};
use handover::Handover;

use crate::error::{Error, Result};
use crate::guest::Guest;
use crate::sys::kvm::{self, Log, Vm};
use crate::sys::{child, descriptors};
use crate::{Settings, set_name};

/// What a process passes on to the guests that come of it.
#[derive(Debug)]
pub(crate) struct Follow {
    /// The file of this program, which is executed again.
    own: OwnedFd,
    memory_bytes_max: Option<u64>,
}

impl Follow {
    /// Makes ready to follow; the program's file is opened while it can be.
    pub(crate) fn begin(settings: &Settings) -> Result<Self> {
        let own =
            File::open("/proc/self/exe").and_then(|own| descriptors::out_of_the_way(own.as_fd()));
        Ok(Self {
            own: own.map_err(Error::system("open this program's file"))?,
            memory_bytes_max: settings.memory_bytes_max,
        })
    }

    /// The descriptors that the program must leave open.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        [self.own.as_raw_fd()].into_iter()
    }
}

/// Becomes the program that a followed guest has executed, if this process is there for that;
/// returns at once otherwise.
///
/// A program that calls [`become_guest`](crate::become_guest) with
/// [`Settings::follow`](crate::Settings::follow) must call this first in its `main`. A program that
/// cannot be a guest here is executed natively.
pub fn resume() {
    let Some(handover) = Handover::of_this_process() else {
        return;
    };
    child::reset_signals();
    child::close_standard_descriptors_again();
    let error = match run(&handover) {
        Ok(()) => child::exit(0),
        Err(Failure::Early(error)) => match handover.execute_natively() {
            // What the program does without is said by whoever looks for its guest.
            Ok(never) => match never {},
            Err(_) => error,
        },
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
    let kvm = kvm::adopt(duplicate(&handover.kvm)?);
    let mut guest = Guest::on(Vm::create_by(kvm, Log::Off)?)?;
    guest.memory().bytes_max = handover.memory_bytes_max;
    guest.set_follow(Follow {
        own: duplicate(&handover.own)?,
        memory_bytes_max: handover.memory_bytes_max,
    });
    guest.load(&handover.found()?, &handover.environment)?;
    set_name(&handover.path);
    Ok(guest)
}

/// Reads the path of an open file.
pub(crate) fn path_of(file: &impl AsRawFd) -> io::Result<std::path::PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
}
