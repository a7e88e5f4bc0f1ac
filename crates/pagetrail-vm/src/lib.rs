//! Runs one ordinary program as the guest of a virtual machine, on stock KVM, so that the processor
//! itself logs which pages the program dirties: by page-modification logging (PML) where it has
//! that, and without a fault per page.
//!
//! There is no guest kernel. The program runs in ring 3 under page tables that this crate fills.
//! Its memory is this process's memory, at the same addresses. A system call is one VM exit, and
//! then this process's system call. The idea is Dune's (Belay et al., OSDI 2012). The papers that
//! pagetrail follows needed a patched hypervisor or new hardware for what follows from it here: the
//! program's address of a dirty page is computed from its guest-physical address.
//!
//! [`become_guest`] turns this process into the program. [`recorded_guest`] does so for a recorder
//! in another process, which holds a [`GuestSource`]. [`check`] reports what KVM offers on this
//! machine.
//!
//! The virtual machine is a tracker, not a sandbox: the program has this process's rights, and
//! could reach the machine's own memory if it tried.
//!
//! On processors other than x86-64 everything is refused, with [`Error::Processor`].
#![deny(unsafe_code)]
#![cfg(target_os = "linux")]

mod error;
#[cfg(not(target_arch = "x86_64"))]
mod refused;
mod report;

#[cfg(target_arch = "x86_64")]
mod calls;
#[cfg(target_arch = "x86_64")]
pub mod check;
#[cfg(target_arch = "x86_64")]
mod children;
#[cfg(target_arch = "x86_64")]
mod follow;
#[cfg(target_arch = "x86_64")]
mod guest;
#[cfg(target_arch = "x86_64")]
mod memory;
#[cfg(target_arch = "x86_64")]
mod processor;
#[cfg(target_arch = "x86_64")]
mod program;
#[cfg(target_arch = "x86_64")]
mod rounds;
#[cfg(target_arch = "x86_64")]
mod signals;
#[cfg(target_arch = "x86_64")]
mod stand;
#[cfg(target_arch = "x86_64")]
mod standing;
#[cfg(target_arch = "x86_64")]
mod sys;
#[cfg(not(target_arch = "x86_64"))]
#[path = "sys/any_processor.rs"]
mod sys;
#[cfg(all(target_arch = "x86_64", feature = "test-equipment"))]
pub mod timed_guest;
#[cfg(target_arch = "x86_64")]
mod trial;
#[cfg(target_arch = "x86_64")]
mod vcpu_threads;

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::fd::RawFd;

pub use error::{Error, Result};
pub use rounds::Collected;
pub use rounds::announce::Announcements;
pub use rounds::control::client::hold_guest;
pub use rounds::link::{GuestRound, Rounds, pair};
pub use rounds::source::{GuestSource, RoundDetail};
pub use rounds::strategy::UnitStrategy;
pub use rounds::tree::{GuestChange, GuestMember, GuestTree};

#[cfg(target_arch = "x86_64")]
use follow::Follow;
#[cfg(target_arch = "x86_64")]
pub use follow::resume;
#[cfg(target_arch = "x86_64")]
use guest::Guest;
#[cfg(not(target_arch = "x86_64"))]
use refused::{Log, become_one, best_log, rounds};
#[cfg(not(target_arch = "x86_64"))]
pub use refused::{check, resume};
#[cfg(target_arch = "x86_64")]
use rounds::announce::Kind;
#[cfg(target_arch = "x86_64")]
use rounds::link::GuestEnd;
#[cfg(target_arch = "x86_64")]
use sys::kvm::{self, Log};

/// The exit status of a program that needs something that the machine does not support.
pub const STATUS_UNSUPPORTED: i32 = 3;

/// The length in bytes of a vCPU's dirty ring: 65,536 entries, the most that KVM allows.
#[cfg(target_arch = "x86_64")]
const RING_BYTES: usize = 1 << 20;

/// How a program is run.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Settings {
    /// The most bytes of writable memory that the program may have, its stack included. Memory that
    /// is only reserved does not count. Mappings beyond the limit fail with `ENOMEM`. A forked
    /// child may have as much again, and a program executed by `execve(2)` any amount, or as much
    /// where it is followed.
    pub memory_bytes_max: Option<u64>,
    /// Environment variables to add to, or replace in, this process's environment.
    pub variables: Vec<(OsString, OsString)>,
    /// Whether rounds contain accessed pages as well, from the accessed bits that the processor
    /// sets in page tables. Every page then has its own entry there. [`check::try_accesses`] says
    /// whether this machine's KVM sets these bits.
    pub accesses: bool,
    /// Whether programs executed by `execve(2)` become guests, too, instead of running natively,
    /// and with [`recorded_guest`] whether children are recorded.
    /// The program that sets this must call [`resume`] first in its `main`, since the process
    /// executes it again.
    pub follow: bool,
}

/// Turns this process into the program, with its descriptors, its directory, its PID, and its exit
/// status.
///
/// Returns only where the program cannot start, or needs something that the machine does not
/// support.
///
/// # Errors
///
/// [`Error`] says why there is no guest; [`Error::is_machine_limit`] whether another machine would
/// do.
pub fn become_guest(command: &[OsString], settings: &Settings) -> Result<Infallible> {
    become_one(command, settings, Log::Off, None)
}

/// Like [`become_guest`], but sends rounds over `link`, the guest end of a [`pair`] that this
/// process was started with. With [`Settings::follow`] that is the guest's end of
/// [`Announcements`], and all processes that come of this one are recorded, too.
///
/// # Errors
///
/// [`Error`] says why there is no guest, or why KVM cannot log its dirty pages.
pub fn recorded_guest(
    command: &[OsString],
    settings: &Settings,
    link: RawFd,
) -> Result<Infallible> {
    become_one(command, settings, best_log()?, Some(link))
}

#[cfg(target_arch = "x86_64")]
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
    if settings.follow {
        guest.set_follow(Follow::begin(settings, link)?);
    }
    if let Some(log) = guest.log().filter(|_| settings.accesses) {
        log.track_accesses(&mut guest.memory());
    }
    guest.load(&found, &environment)?;
    // The file is mapped and no longer needed open. The program expects the lowest descriptors for
    // its own files.
    drop(found);
    match link {
        Some(_) if settings.follow => guest.announce(Kind::Started, 0)?,
        Some(link) => {
            let link = GuestEnd::adopt(link).map_err(Error::system("duplicate a descriptor"))?;
            guest.serve_rounds(link)?;
        }
        None => {}
    }
    set_name(guest.path());
    guest.run()?;
    // The first thread returns here only when the program has ended; its process ends with it.
    sys::child::exit(0)
}

/// Dirty rings where KVM has them, otherwise bitmaps.
#[cfg(target_arch = "x86_64")]
fn best_log() -> Result<Log> {
    Ok(best_log_of(&kvm::open()?))
}

#[cfg(target_arch = "x86_64")]
fn best_log_of(kvm: &kvm_ioctls::Kvm) -> Log {
    match kvm::ring_bytes_max(kvm) {
        0 => Log::Bitmap,
        bytes => Log::Ring(bytes.min(RING_BYTES)),
    }
}

/// Sets the name that `ps` shows.
#[cfg(target_arch = "x86_64")]
fn set_name(path: &std::path::Path) {
    let name = path.file_name().unwrap_or_default();
    if let Ok(name) = std::ffi::CString::new(name.as_encoded_bytes()) {
        // A failure only leaves the old name.
        let _ = rustix::thread::set_name(&name);
    }
}

/// Ends a process that cannot return an error to the caller of [`become_guest`]: in a child
/// process, or on another thread.
#[cfg(target_arch = "x86_64")]
fn end_with(error: &Error) -> ! {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "pagetrail: {error}");
    sys::child::exit(STATUS_UNSUPPORTED)
}
