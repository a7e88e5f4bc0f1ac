//! [`Status`], what every function returns, and the thread's last error as text. `guard` turns an
//! error or a panic into both.

use crate::text::Text;
use pagetrail::Error;
use pagetrail_checkpoint::Error as StoreError;
use pagetrail_restore::Error as RestoreError;
use pagetrail_vmm::Error as GuestError;
use std::any::Any;
use std::cell::RefCell;
use std::ffi::c_char;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What became of a call. 0 is success; numbers are never given a new meaning, new ones may come.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It did what it says.
    Ok = 0,
    /// A pointer is null that must not be.
    NullPointer = 1,
    /// An argument is out of its range, or an option is not known to this version of the library.
    InvalidArgument = 2,
    /// Another thread is inside a call on the same watch, or this one is, further up in its stack.
    Busy = 3,
    /// The watch has a round that is neither committed nor given back.
    RoundOpen = 4,
    /// The round was committed or given back already.
    NoRound = 5,
    /// The buffer is too small for everything.
    BufferTooSmall = 6,
    /// The watch belongs to the process that started it, and this is a forked child.
    Forked = 7,
    /// The technique does not work on this machine, or none does for this target.
    Unavailable = 8,
    /// The technique cannot watch this kind of target.
    WrongTarget = 9,
    /// There is no process with this ID.
    NoSuchProcess = 10,
    /// The process cannot be tracked, or not by this technique: it is a kernel thread, runs 32-bit
    /// code, is traced by another, or does not stop.
    CannotAttach = 11,
    /// The kernel does not permit it; the text names the capability or the sysctl.
    Permission = 12,
    /// The target has ended.
    Gone = 13,
    /// A range is not mapped, not writable, or not made of whole pages.
    BadRange = 14,
    /// A system call failed.
    System = 15,
    /// A bug in the library: it panicked. The watch concerned can only be freed.
    Panicked = 16,
    /// A store of checkpoints is damaged, in use by another process, not there, or fails.
    Store = 17,
    /// What is asked for cannot be done with this memory, checkpoint or process, for the reason
    /// that the text gives.
    Refused = 18,
}

/// Why a call did not do what it says.
#[derive(Debug)]
pub(crate) enum Failure {
    Misuse(Status, &'static str),
    Library(Error),
    Store(StoreError),
    Restore(RestoreError),
    Guest(GuestError),
}

impl From<GuestError> for Failure {
    fn from(error: GuestError) -> Self {
        match error {
            GuestError::Store(error) => error.into(),
            error => Self::Guest(error),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Library(error)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Process(error) => Self::Library(error),
            error => Self::Store(error),
        }
    }
}

impl From<RestoreError> for Failure {
    fn from(error: RestoreError) -> Self {
        match error {
            RestoreError::Process(error) => Self::Library(error),
            RestoreError::Store(error) => error.into(),
            error => Self::Restore(error),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misuse(_, text) => f.write_str(text),
            Self::Library(error) => error.fmt(f),
            Self::Store(error) => error.fmt(f),
            Self::Restore(error) => error.fmt(f),
            Self::Guest(error) => error.fmt(f),
        }
    }
}

impl Failure {
    fn status(&self) -> Status {
        match self {
            Self::Misuse(status, _) => *status,
            Self::Library(error) => match error {
                Error::Unavailable { .. } | Error::NothingWorks { .. } => Status::Unavailable,
                Error::WrongTarget { .. } | Error::OwnProcess { .. } => Status::WrongTarget,
                Error::NoSuchProcess { .. } => Status::NoSuchProcess,
                Error::KernelThread { .. }
                | Error::ThirtyTwoBit { .. }
                | Error::Traced { .. }
                | Error::NotStopping { .. }
                | Error::Frozen { .. }
                | Error::Attach { .. } => Status::CannotAttach,
                Error::Permission { .. } | Error::Seccomp { .. } => Status::Permission,
                Error::Gone { .. } => Status::Gone,
                Error::Range { .. } => Status::BadRange,
                Error::WrongBudget { .. } => Status::InvalidArgument,
                _ => Status::System,
            },
            Self::Store(error) => match error {
                StoreError::Refused(_) | StoreError::NotNow(_) => Status::Refused,
                _ => Status::Store,
            },
            Self::Restore(error) => match error {
                RestoreError::NoPrivilege { .. } => Status::Permission,
                RestoreError::Step { .. } => Status::System,
                _ => Status::Refused,
            },
            Self::Guest(error) => match error {
                GuestError::Region { .. } => Status::InvalidArgument,
                GuestError::Refused(_) => Status::Refused,
                _ => Status::System,
            },
        }
    }
}

/// Bytes of the last error's text, its terminating zero included.
const ERROR_BYTES: usize = 1024;

thread_local! {
    // Without a destructor: to register one, the C library allocates.
    static LAST: RefCell<Text<ERROR_BYTES>> = const { RefCell::new(Text::new()) };
}

/// The text of this thread's last failure.
pub(crate) fn last_error() -> *const c_char {
    LAST.with_borrow(Text::as_ptr)
}

fn remember(text: impl fmt::Display) {
    LAST.with_borrow_mut(|last| last.set(text));
}

/// Runs the body of a function for C: its failure, or its panic, becomes a code and the thread's
/// last error.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Failure>) -> Status {
    // What a panic leaves half done lies in a watch, whose lock it poisons.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::Ok,
        Ok(Err(failure)) => {
            remember(&failure);
            failure.status()
        }
        Err(payload) => {
            remember(format_args!("panicked: {}", words(&*payload)));
            Status::Panicked
        }
    }
}

fn words(payload: &(dyn Any + Send)) -> &str {
    if let Some(text) = payload.downcast_ref::<&'static str>() {
        text
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text
    } else {
        "no message"
    }
}

/// The failure of a null pointer.
pub(crate) fn null(what: &'static str) -> Failure {
    Failure::Misuse(Status::NullPointer, what)
}

/// The failure of an argument that makes no sense.
pub(crate) fn invalid(what: &'static str) -> Failure {
    Failure::Misuse(Status::InvalidArgument, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> String {
        LAST.with_borrow(|last| {
            let bytes = last.chars().map(|char| char.to_ne_bytes()[0]);
            let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
            String::from_utf8(text.to_vec()).unwrap()
        })
    }

    #[test]
    fn a_panic_becomes_a_code() {
        assert_eq!(guard(|| panic!("with {}", "words")), Status::Panicked);
        assert_eq!(last(), "panicked: with words");
        assert_eq!(guard(|| std::panic::panic_any(1)), Status::Panicked);
        assert_eq!(last(), "panicked: no message");
    }

    #[test]
    fn a_failure_leaves_its_text_and_success_leaves_it_alone() {
        assert_eq!(guard(|| Err(null("no watch"))), Status::NullPointer);
        assert_eq!(guard(|| Ok(())), Status::Ok);
        assert_eq!(last(), "no watch");
        assert_eq!(guard(|| Err(Error::Gone { pid: 7 }.into())), Status::Gone);
        assert_eq!(last(), "process 7 has ended");
    }
}
