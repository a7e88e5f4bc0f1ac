//! Host threads for the program's threads: their stacks, how they begin, and whether they are gone.
//!
//! A thread of the program is a thread of this process with the number that the program knows. When it ends, the kernel does
//! what the program has asked it for (a word cleared, robust futexes given up): the C library, which knows the thread as one
//! of its own, therefore must not wait for that, and does not with a stack that it was given.
#![allow(unsafe_code, reason = "pthread_create(3) with a stack, and exit(2)")]

use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use super::call::call;
use super::signal;

/// Enough for the machine's own calls and a signal's frame with the widest registers.
const STACK_BYTES: usize = 256 << 10;
const GUARD_BYTES: usize = 4096;

/// A thread's stack, with a page below that is not there.
#[derive(Debug)]
pub(crate) struct Stack(NonNull<c_void>);

// SAFETY: it owns the mapping.
unsafe impl Send for Stack {}

impl Stack {
    fn new() -> io::Result<Self> {
        // SAFETY: a new mapping, wherever there is room, and the lowest page of it.
        unsafe {
            let start = libc::mmap(
                ptr::null_mut(),
                GUARD_BYTES + STACK_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK,
                -1,
                0,
            );
            if start == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let stack = Self(NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?);
            match libc::mprotect(start, GUARD_BYTES, libc::PROT_NONE) {
                0 => Ok(stack),
                _ => Err(io::Error::last_os_error()),
            }
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours; `spawn` says that its thread is gone.
        unsafe { libc::munmap(self.0.as_ptr(), GUARD_BYTES + STACK_BYTES) };
    }
}

/// Starts a thread in which all signals are blocked. The stack that it gets is to be kept until the thread
/// [`is_gone`].
pub(crate) fn spawn(body: impl FnOnce() + Send + 'static) -> io::Result<Stack> {
    extern "C" fn begin(body: *mut c_void) -> *mut c_void {
        // SAFETY: the pointer that `spawn` gave away.
        let body = unsafe { Box::from_raw(body.cast::<Box<dyn FnOnce() + Send>>()) };
        body();
        ptr::null_mut()
    }
    let stack = Stack::new()?;
    let body: Box<Box<dyn FnOnce() + Send>> = Box::new(Box::new(body));
    let body = Box::into_raw(body);
    let before = signal::mask();
    signal::block_exactly(u64::MAX);
    let mut attributes = MaybeUninit::uninit();
    let mut thread = MaybeUninit::uninit();
    // SAFETY: attributes are made, used and destroyed here; the stack is as long as is said, and stays.
    let error = unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr());
        let attributes = attributes.as_mut_ptr();
        libc::pthread_attr_setdetachstate(attributes, libc::PTHREAD_CREATE_DETACHED);
        let error = match libc::pthread_attr_setstack(
            attributes,
            stack.0.as_ptr().byte_add(GUARD_BYTES),
            STACK_BYTES,
        ) {
            0 => libc::pthread_create(thread.as_mut_ptr(), attributes, begin, body.cast()),
            error => error,
        };
        libc::pthread_attr_destroy(attributes);
        error
    };
    // Not what it was, if a signal has arrived since.
    signal::set_mask(before);
    if error != 0 {
        // SAFETY: no thread has it.
        drop(unsafe { Box::from_raw(body) });
        return Err(io::Error::from_raw_os_error(error));
    }
    Ok(stack)
}

/// The calling thread's number.
pub(crate) fn id() -> u32 {
    call(libc::SYS_gettid, &[]) as u32
}

/// Whether a thread of this process has ended, to the last of what the kernel does for it. One that gets its number
/// later counts as the same.
pub(crate) fn is_gone(id: u32) -> bool {
    let checked = [std::process::id().into(), id.into(), 0];
    call(libc::SYS_tgkill, &checked) == -i64::from(libc::ESRCH)
}

/// Ends the process's first thread, while others run on.
pub(crate) fn exit(status: i32) -> ! {
    loop {
        call(libc::SYS_exit, &[status as u64]);
    }
}
