//! Host threads for the program's threads: their stacks, their start, and whether they are gone.
//!
//! A thread of the program is a thread of this process with the TID that the program knows. When it
//! ends, the kernel does what the program has requested for that (clear a word, release robust
//! futexes). The C library has this thread as one of its own and would wait for that word, so that
//! it must not own the stack: it does not wait for a thread whose stack it was given.
#![allow(unsafe_code, reason = "pthread_create(3) with a stack, and exit(2)")]

use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use super::call::call;
use super::signal;

/// The length of a stack: enough for the machine's own calls and a signal frame with the widest
/// registers.
const STACK_BYTES: usize = 256 << 10;
const GUARD_BYTES: usize = 4096;

/// A thread's stack, with a guard page below.
#[derive(Debug)]
pub(crate) struct Stack(NonNull<c_void>);

// SAFETY: the value owns its mapping, which any thread may unmap.
unsafe impl Send for Stack {}

impl Stack {
    fn new() -> io::Result<Self> {
        // SAFETY: without MAP_FIXED the kernel places the mapping where nothing else is;
        // mprotect(2) changes the lowest page of that new mapping.
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
        // SAFETY: this value owns the mapping, and the caller of `spawn` keeps it until the thread
        // on it is gone.
        unsafe { libc::munmap(self.0.as_ptr(), GUARD_BYTES + STACK_BYTES) };
    }
}

/// Starts a thread with all signals blocked. The caller must keep the returned stack until the
/// thread [`is_gone`].
pub(crate) fn spawn(body: impl FnOnce() + Send + 'static) -> io::Result<Stack> {
    extern "C" fn begin(body: *mut c_void) -> *mut c_void {
        // SAFETY: `body` comes from `Box::into_raw` in `spawn`, which has passed it to this thread
        // only.
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
    // SAFETY: the attributes are initialized, used and destroyed here. The stack has the given
    // address and length, and lives as long as the thread: see `Stack`.
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
    // If a signal has arrived since, all signals stay blocked.
    signal::set_mask(before);
    if error != 0 {
        // SAFETY: no thread was created, so that `body` still belongs to this function.
        drop(unsafe { Box::from_raw(body) });
        return Err(io::Error::from_raw_os_error(error));
    }
    Ok(stack)
}

/// The calling thread's TID.
pub(crate) fn id() -> u32 {
    call(libc::SYS_gettid, &[]) as u32
}

/// Whether a thread of a process has ended, and the kernel has finished its exit. A later thread
/// with the same TID counts as that thread.
pub(crate) fn is_gone(process: u32, id: u32) -> bool {
    let checked = [process.into(), id.into(), 0];
    call(libc::SYS_tgkill, &checked) == -i64::from(libc::ESRCH)
}

/// Whether a thread of this process sleeps in the kernel; false where that is not known.
pub(crate) fn is_asleep(id: u32) -> bool {
    let stat = std::fs::read(format!("/proc/self/task/{id}/stat")).unwrap_or_default();
    // The name, in parentheses, may have any bytes.
    let name_end = stat.iter().rposition(|byte| *byte == b')');
    name_end.and_then(|end| stat.get(end + 2)) == Some(&b'S')
}

/// Ends the process's first thread, while others run on.
pub(crate) fn exit(status: i32) -> ! {
    loop {
        call(libc::SYS_exit, &[status as u64]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// The child of a `vfork(2)` asks for threads of its parent.
    #[test]
    fn a_thread_is_asked_for_in_its_own_process() {
        let mut other = Command::new("sleep").arg("600").spawn().unwrap();
        let thread = other.id();
        assert!(!is_gone(thread, thread));
        assert!(is_gone(std::process::id(), thread));
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(is_gone(thread, thread));
    }
}
