//! [`execute`]: the call that executes this program again, as the program that a guest names.

use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use rustix::fs::AtFlags;
use rustix::process::{Resource, getrlimit};

use super::executable::{Executable, Named, c_string, texts};
use super::{Follow, handover};
use crate::calls::is_own_program;
use crate::error::Result;
use crate::guest::Guest;
use crate::rounds::link::MessageKind;
use crate::sys::call::Call;
use crate::sys::program_memory::read_string;
use crate::sys::{descriptors, signal};
use crate::vcpu_threads::VcpuThreads;

/// The longest path that the kernel takes, without its end.
const PATH_BYTES_MAX: usize = 4095;
/// The bytes that arguments and environment may always have (`ARG_MAX`), and the most of them
/// (three quarters of `_STK_LIM`; fs/exec.c).
const TEXTS_BYTES_MIN: u64 = 128 << 10;
const TEXTS_BYTES_MAX: u64 = 6 << 20;
/// Less than that is left to the kernel, which counts the path and what a script adds, too.
const TEXTS_BYTES_MARGIN: u64 = 16 << 10;

/// The address space that a virtual machine reserves; this program needs more.
const SPACE_BYTES_MIN: u64 = 1 << 30;

/// The memory of a call that is being made.
///
/// A child of `vfork(2)` that has executed a program cannot free what it has allocated in its
/// parent's memory, so that the parent does: it finds this in the [`Guest`] that both use.
#[derive(Debug)]
pub(crate) struct Executing {
    /// Held for the pointers to them.
    _texts: Vec<CString>,
    arguments: Vec<u64>,
    environment: [u64; 2],
    /// Descriptors that the next life of the process finds open.
    copies: Vec<RawFd>,
}

impl Executing {
    fn close(&self) {
        self.copies
            .iter()
            .for_each(|copy| descriptors::close_inherited(*copy));
    }
}

/// Performs `execve(2)` or `execveat(2)` so that the program becomes a guest. `None` where that
/// cannot be: then nothing has changed, and the kernel is to perform the call.
pub(crate) fn execute(guest: &mut Guest, made: &Call) -> Result<Option<i64>> {
    let Some(follow) = guest.follow.clone() else {
        return Ok(None);
    };
    let own = follow.own.as_raw_fd();
    // No other thread goes on, or copies this process's descriptors meanwhile. A child of
    // `vfork(2)` has its own, and its parent would find the locks taken for ever.
    let threads = (!guest.is_vforked).then(|| guest.threads.clone());
    let threads = threads.as_deref();
    let stopped = threads.map(|threads| threads.stop_others(&guest.run_state));
    let table = threads.map(VcpuThreads::table);
    let Some(executing) = prepare(guest, &follow, made) else {
        return Ok(None);
    };
    drop(follow);
    let arguments = executing.arguments.as_ptr() as u64;
    let executing = guest.executing.insert(Box::new(executing));
    let environment = executing.environment.as_ptr() as u64;
    guest.send_round(MessageKind::PreFollowed)?;
    signal::set_exact_mask(guest.signals.mask);
    let empty = c"".as_ptr() as u64;
    let again = Call {
        number: libc::SYS_execveat as u64,
        arguments: [
            own as u64,
            empty,
            arguments,
            environment,
            libc::AT_EMPTY_PATH as u64,
            0,
        ],
    };
    let result = signal::forward_unless_signalled(&again);
    drop((stopped, table));
    guest.signals.set_mask(guest.signals.mask);
    if let Some(executing) = guest.executing.take() {
        executing.close();
    }
    Ok((result == signal::NOT_STARTED).then_some(result))
}

/// Makes everything ready for the call, or finds that it must not be made.
fn prepare(guest: &Guest, follow: &Follow, made: &Call) -> Option<Executing> {
    let (directory, [path, arguments, environment], flags) = match made.arguments {
        [path, arguments, environment, ..] if made.number == libc::SYS_execve as u64 => {
            (None, [path, arguments, environment], 0)
        }
        [directory, path, arguments, environment, flags, _] => (
            Some(directory as RawFd),
            [path, arguments, environment],
            flags,
        ),
    };
    let known = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
    let flags = AtFlags::from_bits(flags as u32).filter(|flags| known.contains(*flags))?;
    let text = OsString::from_vec(read_string(path, PATH_BYTES_MAX).ok()?);
    let own_program = is_own_program(made).then(|| match follow.another_path(guest.path()) {
        Some(path) => path.into(),
        None => guest.path().as_os_str().to_owned(),
    });
    let path = own_program.as_ref().unwrap_or(&text);
    if !follow.is_reachable() || has_too_little_space() {
        return None;
    }
    let mut bytes_left = texts_bytes_max().checked_sub(TEXTS_BYTES_MARGIN)?;
    let arguments = texts(arguments, &mut bytes_left)?;
    let environment = texts(environment, &mut bytes_left)?;
    let directory = directory.filter(|directory| *directory != libc::AT_FDCWD);
    let named = Named {
        directory: directory.map(descriptors::borrow).transpose().ok()?,
        path: Path::new(path),
        flags,
    };
    let mut executable = Executable::find(named, arguments)?;
    if own_program.is_some() {
        // The new program is named by what the old one has called its file.
        executable.path = text.into();
    }
    executing(guest, follow, &executable, &environment)
}

/// Whether there is too little address space for a virtual machine, or even to start this program.
fn has_too_little_space() -> bool {
    getrlimit(Resource::As)
        .current
        .is_some_and(|bytes| bytes < SPACE_BYTES_MIN)
}

/// The most bytes that the kernel takes as arguments and environment.
fn texts_bytes_max() -> u64 {
    let stack = getrlimit(Resource::Stack).current.unwrap_or(u64::MAX);
    (stack / 4).clamp(TEXTS_BYTES_MIN, TEXTS_BYTES_MAX)
}

fn executing(
    guest: &Guest,
    follow: &Follow,
    executable: &Executable,
    environment: &[OsString],
) -> Option<Executing> {
    let mut executing = Executing {
        _texts: Vec::new(),
        arguments: Vec::new(),
        environment: [0; 2],
        copies: Vec::new(),
    };
    match hand_over(&mut executing, guest, follow, executable, environment) {
        Some(()) => Some(executing),
        None => {
            executing.close();
            None
        }
    }
}

fn hand_over(
    executing: &mut Executing,
    guest: &Guest,
    follow: &Follow,
    executable: &Executable,
    environment: &[OsString],
) -> Option<()> {
    let mut copy = |fd: BorrowedFd<'_>| {
        let copy = descriptors::inheritable_copy(fd).ok()?;
        executing.copies.push(copy);
        Some(copy)
    };
    let numbers = handover::Numbers {
        file: copy(executable.file.as_fd())?,
        own: copy(follow.own.as_fd())?,
        kvm: copy(guest.vm.kvm())?,
        announcements: match &follow.announcements {
            Some(announcements) => Some(copy(announcements.as_fd())?),
            None => None,
        },
        // A child of `vfork(2)` is another process than the one that this guest is.
        id: match guest.is_vforked {
            true => super::new_id()?,
            false => follow.id(),
        },
        parent: if guest.is_vforked { follow.id() } else { 0 },
        accesses: follow.accesses,
        memory_bytes_max: follow.memory_bytes_max,
    };
    let path = executable.path.as_os_str();
    let file: OwnedFd = handover::write(&numbers, path, &executable.arguments, environment).ok()?;
    let variable = format!("{}={}", handover::VARIABLE, copy(file.as_fd())?);
    let texts = executable.arguments.iter().map(OsString::as_os_str);
    let texts = texts.chain([OsStr::new(&variable)]);
    let texts: Option<Vec<CString>> = texts.map(c_string).collect();
    let texts = texts?;
    let mut addresses: Vec<u64> = texts.iter().map(|text| text.as_ptr() as u64).collect();
    executing.environment[0] = addresses.pop()?;
    addresses.push(0);
    executing.arguments = addresses;
    executing._texts = texts;
    Some(())
}
