//! Runs one ordinary program as the guest of a virtual machine, on stock KVM, so that the processor itself logs which pages
//! it writes: by page-modification logging where it has that, and without a fault per page.
//!
//! There is no guest kernel. The program runs in ring 3 under page tables of ours; its memory is this process's memory, at
//! the same addresses; a system call is one exit and then this process's system call. The idea is Dune's (Belay et al.), and
//! the papers that pagetrail follows needed a patched hypervisor, or new hardware, for what comes of it here: guest-physical
//! addresses that tell the program's addresses at once.
//!
//! [`become_guest`] turns this process into the program. [`recorded_guest`] does so for a recorder elsewhere, which has
//! [`Rounds`]. [`check`] says what KVM offers here.
//!
//! It is a tracker, not a sandbox: the program has this process's rights, and could reach the machine if it tried.
#![deny(unsafe_code)]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod calls;
pub mod check;
mod children;
mod error;
#[doc(hidden)]
pub mod figures;
mod guest;
mod memory;
mod processor;
mod program;
mod rounds;
mod signals;
mod sys;
mod trial;
mod vcpu_threads;

use std::convert::Infallible;
use std::ffi::OsString;
use std::io::Write;
use std::os::fd::RawFd;
use std::path::Path;

pub use error::{Error, Result};
pub use rounds::Collected;
pub use rounds::link::{GuestRound, Rounds, pair};

use guest::Guest;
use sys::kvm::{self, Log};

/// The exit status of a program that asks for what the machine does not do.
pub const STATUS_UNSUPPORTED: i32 = 3;

/// Bytes of a processor's ring: 65,536 pages, the largest that there is.
const RING_BYTES: usize = 1 << 20;

/// What a program is given.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Settings {
    /// How much memory it may have that it can write to, its stack included; what it only reserves does not count. More is
    /// refused by `ENOMEM`. A forked child may have as much again, and a program executed by `execve(2)` any amount.
    pub memory_bytes_max: Option<u64>,
    /// Environment variables that this process has not, or otherwise.
    pub variables: Vec<(OsString, OsString)>,
    /// Whether rounds tell of reads as well, from the bits that the processor sets in page tables: every page then has an entry
    /// of its own there. Whether it does set them is for [`check::try_accesses`] to say.
    pub accesses: bool,
}

/// Turns this process into the program: its descriptors, its directory, its PID, its exit status.
///
/// It returns only where the program cannot begin, or asks for something that the machine does not do.
pub fn become_guest(command: &[OsString], settings: &Settings) -> Result<Infallible> {
    become_one(command, settings, Log::Off, None)
}

/// The same, and sends its rounds to who holds the other end of the [`pair`], of which this process was started with one as
/// the descriptor `link`.
pub fn recorded_guest(
    command: &[OsString],
    settings: &Settings,
    link: RawFd,
) -> Result<Infallible> {
    become_one(command, settings, best_log()?, Some(link))
}

fn become_one(
    command: &[OsString],
    settings: &Settings,
    log: Log,
    link: Option<RawFd>,
) -> Result<Infallible> {
    let found = program::find(command, std::env::var_os("PATH").as_deref()).map_err(|source| {
        Error::Program {
            program: command.first().cloned().unwrap_or_default().into(),
            source,
        }
    })?;
    let given = |name: &OsString| settings.variables.iter().any(|(given, _)| given == name);
    let environment: Vec<OsString> = std::env::vars_os()
        .filter(|(name, _)| !given(name))
        .chain(settings.variables.iter().cloned())
        .map(|(name, value)| [name, value].join(std::ffi::OsStr::new("=")))
        .collect();
    sys::child::reset_signals();
    let mut guest = Guest::new(log)?;
    guest.memory().bytes_max = settings.memory_bytes_max;
    if let Some(log) = guest.log().filter(|_| settings.accesses) {
        log.track_accesses(&mut guest.memory());
    }
    guest.load(&found, &environment)?;
    // The file is mapped; the program expects the lowest numbers for its own files.
    drop(found);
    if let Some(link) = link {
        guest.serve_rounds(link)?;
    }
    set_name(guest.path());
    guest.run()?;
    // The first thread of a process does not come back from its end.
    sys::child::exit(0)
}

/// The ring where KVM has one, else bitmaps.
fn best_log() -> Result<Log> {
    let kvm = kvm::open()?;
    Ok(match kvm::ring_bytes_max(&kvm) {
        0 => Log::Bitmap,
        bytes => Log::Ring(bytes.min(RING_BYTES)),
    })
}

/// What `ps` shows.
fn set_name(path: &Path) {
    let name = path.file_name().unwrap_or_default();
    if let Ok(name) = std::ffi::CString::new(name.as_encoded_bytes()) {
        // A name that cannot be set is not worth an error.
        let _ = rustix::thread::set_name(&name);
    }
}

/// Ends a process that cannot return to who started the guest: of a child, or from another thread.
fn end_with(error: &Error) -> ! {
    let _ = writeln!(std::io::stderr(), "pagetrail: {error}");
    sys::child::exit(STATUS_UNSUPPORTED)
}
