//! [`Guard`]: a process that outlives this one if this one is killed, with the descriptors of this
//! one.
//!
//! When the last descriptor of a userfaultfd is closed, the kernel gives the process zeros for what
//! it lacks, silently (`userfaultfd_release` in `fs/userfaultfd.c`). So the guard shares the table
//! of descriptors (`CLONE_FILES`): while it lives, none that this process had is closed, not even
//! one that it had got a moment before its end. It does not share the memory: when that is short,
//! the kernel kills all processes that share it (`__oom_kill_process` in `mm/oom_kill.c`). It takes
//! no lock and allocates nothing: the locks of the process that it is a copy of may be held.
//!
//! It ends without a signal, and no `wait(2)` without `__WALL` or `__WCLONE` finds it. It has a
//! session of its own and blocks all signals.

use crate::ending;
use crate::shortage;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{DupFlags, Errno, dup3};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, getpid, pidfd_open, setsid, waitid};
use std::ptr::null_mut;

/// How large its stack is, in bytes.
const STACK_BYTES: usize = 1 << 17;

/// A process that ends another one if this one is killed. Dropped, it goes, and does nothing.
#[derive(Debug)]
pub(crate) struct Guard {
    child: Pid,
    /// Becomes readable when the guard ends.
    life: OwnedFd,
    post: Box<Post>,
    _stack: Stack,
}

/// What the guard looks at: descriptors, which have the same numbers for both.
#[derive(Debug)]
struct Post {
    owner: OwnedFd,
    dismissal: OwnedFd,
    process: OwnedFd,
    /// Readable when the process lacks nothing more, though children of it may.
    sparing: OwnedFd,
    /// The guard's directory in `/proc`, which so needs not be found when it is needed.
    directory: OwnedFd,
}

impl Guard {
    /// Starts it, to end a process.
    pub(crate) fn start(process: OwnedFd) -> Result<Self, Errno> {
        let stack = Stack::new()?;
        let mut post = Box::new(Post {
            owner: pidfd_open(getpid(), PidfdFlags::empty())?,
            dismissal: eventfd(0, EventfdFlags::CLOEXEC)?,
            process,
            sparing: eventfd(0, EventfdFlags::CLOEXEC)?,
            // Another takes the number when there is a guard.
            directory: eventfd(0, EventfdFlags::CLOEXEC)?,
        });
        let argument = (&raw const *post).cast_mut().cast();
        let flags = libc::CLONE_FILES;
        let blocked = BlockedSignals::new();
        // SAFETY: the new process runs `begin` with a pointer to `post` and on a stack of which it
        // has copies, as of all memory; nobody else uses the stack. It makes system calls by rustix
        // only, which takes no lock, since other threads of this process may hold some.
        let child = unsafe { libc::clone(begin, stack.top(), flags, argument) };
        drop(blocked);
        let child = Pid::from_raw(child).ok_or(Errno::AGAIN)?;
        let life = pidfd_open(child, PidfdFlags::empty());
        match life.and_then(|life| find_directory(child, &mut post.directory).map(|()| life)) {
            Ok(life) => Ok(Self {
                child,
                life,
                post,
                _stack: stack,
            }),
            Err(errno) => {
                dismiss(child, &post);
                Err(errno)
            }
        }
    }

    /// Another one for the same process.
    pub(crate) fn again(&self) -> Result<Self, Errno> {
        let process = self.post.process.try_clone();
        let failed = |error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE);
        let guard = Self::start(process.map_err(failed)?)?;
        if is_readable(&self.post.sparing) {
            guard.spare();
        }
        Ok(guard)
    }

    /// Leaves the process alone from now on, but not its children that lack pages.
    pub(crate) fn spare(&self) {
        if !is_readable(&self.post.sparing) {
            signal(&self.post.sparing);
        }
    }

    /// Becomes readable when the guard has ended: somebody has killed it.
    pub(crate) fn life(&self) -> &OwnedFd {
        &self.life
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        dismiss(self.child, &self.post);
    }
}

/// Lets a guard go, and waits for its end.
fn dismiss(child: Pid, post: &Post) {
    signal(&post.dismissal);
    let options = WaitIdOptions::EXITED | WaitIdOptions::from_bits_retain(libc::__WALL as u32);
    while matches!(waitid(WaitId::Pid(child), options), Err(Errno::INTR)) {}
}

/// Makes an `eventfd` readable, which takes one number of eight bytes.
fn signal(event: &OwnedFd) {
    // It is full when so many have been added that it is readable anyway.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// Whether an `eventfd` is readable.
fn is_readable(event: &OwnedFd) -> bool {
    let mut look = [PollFd::new(event, PollFlags::IN)];
    poll(&mut look, Some(&Timespec::default())) == Ok(1)
}

/// Opens the directory of a process in `/proc`, by a descriptor's number.
fn find_directory(process: Pid, to: &mut OwnedFd) -> Result<(), Errno> {
    let path = format!("/proc/{}", process.as_raw_nonzero());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let found = openat(CWD, path, flags, Mode::empty())?;
    dup3(&found, to, DupFlags::CLOEXEC)
}

/// The life of the guard.
extern "C" fn begin(post: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `Guard::start` passes a pointer to a `Post`, of which this process has a copy that
    // nobody changes.
    let post = unsafe { &*post.cast::<Post>() };
    // One that leads no session can always begin one.
    let _ = setsid();
    let _ = rustix::thread::set_name(c"pagetrail-guard");
    let mut looks = [&post.owner, &post.dismissal].map(|fd| PollFd::new(fd, PollFlags::IN));
    while matches!(poll(&mut looks, None), Err(Errno::INTR)) {}
    let is_dismissed = !looks[1].revents().is_empty();
    if !is_dismissed {
        let_standard_streams_go();
        shortage::allow_more();
        if !is_readable(&post.sparing) {
            ending::kill(post.process.as_fd());
        }
        ending::end_as_heir(post.directory.as_fd());
    }
    0
}

/// Closes descriptors 0, 1 and 2: somebody may wait for the end of what this process writes.
fn let_standard_streams_go() {
    for number in 0..=2 {
        // SAFETY: the process whose descriptors they were has ended.
        unsafe { rustix::io::close(number) };
    }
}

/// Keeps all signals from the current thread, until it is dropped.
struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    fn new() -> Self {
        // SAFETY: zeros are a valid `sigset_t`, and all pointers are to locals of that type.
        unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
            Self(before)
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: `pthread_sigmask` has filled the set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, null_mut()) };
    }
}

/// Memory for a stack, whose lowest page cannot be accessed.
#[derive(Debug)]
struct Stack(*mut libc::c_void);

// SAFETY: the value owns its mapping, which any thread may unmap.
unsafe impl Send for Stack {}

impl Stack {
    fn new() -> Result<Self, Errno> {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::STACK;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps no existing memory.
        let stack = Self(unsafe { mmap_anonymous(null_mut(), STACK_BYTES, rights, flags)? });
        let page = rustix::param::page_size();
        // SAFETY: the page belongs to the mapping just made, which nobody uses yet.
        unsafe { mprotect(stack.0, page, MprotectFlags::empty())? };
        Ok(stack)
    }

    /// Where it begins; it grows downwards, and the ABI wants it aligned to 16 bytes.
    fn top(&self) -> *mut libc::c_void {
        self.0.wrapping_byte_add(STACK_BYTES)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: `new` made a mapping of this size, on which nobody runs any more.
        let _ = unsafe { munmap(self.0, STACK_BYTES) };
    }
}
