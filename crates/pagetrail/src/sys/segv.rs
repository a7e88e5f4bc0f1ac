//! The `SIGSEGV` handler of the technique `mprotect`.
//!
//! A process has one disposition for `SIGSEGV`, so the handler is installed once, serves all
//! watches, and passes other faults to the handler that was installed before (`sigaction(2)`).
//! Everything it does is async-signal-safe: atomics, `mprotect(2)` and `madvise(2)`. It writes only
//! to mappings of its own: a process can track its own heap, and a fault inside the handler would
//! kill it.

use super::fault_access::{Access, access};
use super::shared_words::SharedWords;
use crate::page_set::{PageRange, PageSet, page_size};
use crate::types::AccessKind;
use rustix::mm::{MprotectFlags, mprotect};
use std::io;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// A protected range, and which of its pages were written since the last collect.
///
/// A slot is never freed, because a handler may read it at any moment. [`Guard::new`] reuses free
/// ones.
struct Slot {
    start: AtomicU64,
    /// 0 while the slot is free.
    end: AtomicU64,
    /// The number of faults, then one bit per page.
    bits: AtomicPtr<SharedWords>,
    next: AtomicPtr<Slot>,
}

static SLOTS: AtomicPtr<Slot> = AtomicPtr::new(std::ptr::null_mut());

/// The number of running handlers, in two words, counted by the parity of the epoch in which they
/// began; see [`wait_for_handlers`].
static AT_WORK: OnceLock<SharedWords> = OnceLock::new();
static EPOCH: AtomicUsize = AtomicUsize::new(0);

/// The number of guards made; it is increased once handlers can find the guard, and before the
/// guard protects memory.
static GUARDS_MADE: AtomicU64 = AtomicU64::new(0);

static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Waits for the handlers that are running: they may have released a page and not yet recorded it,
/// or read a slot that is being freed.
fn wait_for_handlers() {
    // One caller at a time: with two epochs in transition, no caller would wait for a handler of
    // the first.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(at_work) = AT_WORK.get() else {
        return;
    };
    let old = EPOCH.fetch_add(1, Ordering::SeqCst) & 1;
    while at_work[old].load(Ordering::SeqCst) != 0 {
        std::thread::yield_now();
    }
}

/// A tracked, writable range of the own process; writable again when dropped.
#[derive(Debug)]
pub(crate) struct Guard {
    slot: &'static Slot,
    range: PageRange,
    access_kind: AccessKind,
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").finish_non_exhaustive()
    }
}

impl Guard {
    /// Protects `range`, which must be mapped readable and writable and remain so.
    ///
    /// The kernel's own writes to protected memory fail with `EFAULT`, as do its reads where
    /// accesses are tracked; the documentation of the technique says so.
    pub(crate) fn new(range: PageRange, access_kind: AccessKind) -> io::Result<Self> {
        install()?;
        let words = SharedWords::new(1 + range.page_count().div_ceil(64) as usize)?;
        let slot = free_slot();
        slot.start.store(range.start(), Ordering::Relaxed);
        // Leaked like the slot, for the same reason; it takes a few bytes per watch. The words are
        // freed on drop.
        slot.bits
            .store(Box::into_raw(Box::new(words)), Ordering::Release);
        slot.end.store(range.end(), Ordering::Release);
        GUARDS_MADE.fetch_add(1, Ordering::SeqCst);
        let guard = Self {
            slot,
            range,
            access_kind,
        };
        protect(range, access_kind)?;
        Ok(guard)
    }

    /// The tracked range.
    pub(crate) fn range(&self) -> PageRange {
        self.range
    }

    /// Adds the pages written since the last collect, protects them again, and returns the number
    /// of faults.
    pub(crate) fn collect(&self, out: &mut PageSet) -> io::Result<u64> {
        wait_for_handlers();
        let page = page_size();
        let (faults, words) = self.words();
        let mut outcome = Ok(());
        // Adjacent pages are handled as one run, so that only `out` needs memory.
        let mut run: Option<PageRange> = None;
        let mut take = |run: PageRange| {
            out.insert(run);
            if outcome.is_ok() {
                outcome = protect(run, self.access_kind);
            }
            if outcome.is_err() {
                // The run is still writable without a fault, so it counts as written until it is
                // protected again.
                for page in (run.start()..run.end()).step_by(page as usize) {
                    let index = (page - self.range.start()) / page_size();
                    words[index as usize / 64].fetch_or(1 << (index % 64), Ordering::AcqRel);
                }
            }
        };
        for (i, word) in words.iter().enumerate() {
            let mut bits = if word.load(Ordering::Relaxed) == 0 {
                0
            } else {
                word.swap(0, Ordering::AcqRel)
            };
            while bits != 0 {
                let start =
                    self.range.start() + (i as u64 * 64 + u64::from(bits.trailing_zeros())) * page;
                let begun = match run {
                    Some(run) if run.end() == start => run.start(),
                    Some(other) => {
                        take(other);
                        start
                    }
                    None => start,
                };
                run = PageRange::new(begun, start + page);
                bits &= bits - 1;
            }
        }
        run.into_iter().for_each(take);
        outcome?;
        Ok(faults.swap(0, Ordering::Relaxed))
    }

    /// Takes the write faults of the tracked part of `range` now, without changing contents.
    pub(crate) fn touch(&self, range: PageRange) {
        let Some(part) = range.intersection(&self.range) else {
            return;
        };
        for address in (part.start()..part.end()).step_by(page_size() as usize) {
            // SAFETY: the address is in the guard's range, which `new` requires to stay mapped; the
            // only protection that it may have is ours, whose fault the handler resolves. All
            // accesses here are atomic.
            let byte = unsafe { AtomicU8::from_ptr(address as *mut u8) };
            // Replacing a byte by itself is a write to the processor, whether another thread
            // changes it meanwhile or not. (An "or" with zero is not: the compiler turns it into a
            // read.)
            let now = byte.load(Ordering::Relaxed);
            let _ = byte.compare_exchange(now, now, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    fn words(&self) -> (&AtomicU64, &[AtomicU64]) {
        // SAFETY: `new` set the pointer to a leaked box, which `drop` of this guard alone frees.
        let words = unsafe { &*self.slot.bits.load(Ordering::Acquire) };
        (&words[0], &words[1..])
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = unprotect(self.range);
        self.slot.end.store(0, Ordering::Release);
        wait_for_handlers();
        let bits = self.slot.bits.swap(std::ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: the pointer comes from `Box::into_raw` in `new`; handlers that could read it have
        // returned, and later ones find the slot free.
        drop(unsafe { Box::from_raw(bits) });
        self.slot.start.store(UNUSED, Ordering::Release);
    }
}

/// The `start` of a slot that is free.
const UNUSED: u64 = u64::MAX;

fn free_slot() -> &'static Slot {
    let mut at = SLOTS.load(Ordering::Acquire);
    while !at.is_null() {
        // SAFETY: a slot in the list is a leaked box, which is never freed.
        let slot = unsafe { &*at };
        if slot
            .start
            .compare_exchange(UNUSED, 0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            return slot;
        }
        at = slot.next.load(Ordering::Acquire);
    }
    let slot: &'static Slot = Box::leak(Box::new(Slot {
        start: AtomicU64::new(0),
        end: AtomicU64::new(0),
        bits: AtomicPtr::new(std::ptr::null_mut()),
        next: AtomicPtr::new(std::ptr::null_mut()),
    }));
    let mut head = SLOTS.load(Ordering::Acquire);
    loop {
        slot.next.store(head, Ordering::Relaxed);
        let new = std::ptr::from_ref(slot).cast_mut();
        match SLOTS.compare_exchange(head, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return slot,
            Err(now) => head = now,
        }
    }
}

fn install() -> io::Result<()> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if !*installed {
        let at_work = SharedWords::new(2)?;
        AT_WORK.get_or_init(|| at_work);
        // SAFETY: a zeroed sigaction is valid; `handler` has the signature that SA_SIGINFO requires
        // and does only what is async-signal-safe; the pointers are to locals.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let mut previous: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as extern "C" fn(_, _, _) as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
            // A collector stops threads by a signal and collects while they are stopped: none may
            // be stopped inside the handler, for which the collect would wait.
            libc::sigfillset(&raw mut action.sa_mask);
            match libc::sigaction(libc::SIGSEGV, &raw const action, &raw mut previous) {
                0 => {
                    let _ = PREVIOUS.set(previous);
                }
                _ => return Err(io::Error::last_os_error()),
            }
        };
        *installed = true;
    }
    Ok(())
}

extern "C" fn handler(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a pointer to a valid `siginfo_t`.
    let code = unsafe { (*info).si_code };
    // SAFETY: the pointer is valid, see above; for any `siginfo_t` these bytes are initialized, and
    // for a SIGSEGV from the kernel they are the address.
    let address = unsafe { (*info).si_addr() } as u64;
    // A signal sent by `kill(2)` or similar has no address.
    let sent = code <= 0;
    // SAFETY: errno is this thread's, and the pointer to it is valid; the interrupted code must
    // find its value unchanged.
    let errno = unsafe { *libc::__errno_location() };
    let settled = !sent
        && loop {
            let made = GUARDS_MADE.load(Ordering::SeqCst);
            if release_as_counted(address) || is_late(code, address, context) {
                break true;
            }
            // Neither, unless a guard protected the page between the two checks.
            if GUARDS_MADE.load(Ordering::SeqCst) == made {
                break false;
            }
        };
    // SAFETY: the pointer to this thread's errno is valid.
    unsafe { *libc::__errno_location() = errno };
    if !settled {
        pass_on(signal, sent, info, context);
    }
}

/// Calls [`release`] while counted, so that [`wait_for_handlers`] waits for it.
fn release_as_counted(address: u64) -> bool {
    let Some(at_work) = AT_WORK.get() else {
        return false;
    };
    let epoch = loop {
        let epoch = EPOCH.load(Ordering::SeqCst) & 1;
        at_work[epoch].fetch_add(1, Ordering::SeqCst);
        if EPOCH.load(Ordering::SeqCst) & 1 == epoch {
            break epoch;
        }
        at_work[epoch].fetch_sub(1, Ordering::SeqCst);
    };
    let released = release(address);
    at_work[epoch].fetch_sub(1, Ordering::SeqCst);
    released
}

/// Whether the fault is an access to a page that is accessible by now: a thread faulted shortly
/// before the guard was dropped. No other handler may see such a fault, because the usual ones
/// restore the default action.
fn is_late(code: libc::c_int, address: u64, context: *mut libc::c_void) -> bool {
    const SEGV_ACCERR: libc::c_int = 2;
    if code != SEGV_ACCERR {
        return false;
    }
    // SAFETY: with SA_SIGINFO the kernel passes a pointer to a valid `ucontext_t`.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    let advice = match access(context) {
        Access::Read => libc::MADV_POPULATE_READ,
        Access::Write => libc::MADV_POPULATE_WRITE,
        Access::Fetch => return false,
    };
    let page = address & !(page_size() - 1);
    // SAFETY: MADV_POPULATE_* (Linux 5.14) makes the page present, as the access is about to do,
    // and keeps its contents.
    unsafe { libc::madvise(page as *mut _, page_size() as usize, advice) == 0 }
}

/// Makes the page writable, then records it: in this order a page that a collect protects again is
/// never left writable and unrecorded. Returns whether the address is tracked.
fn release(address: u64) -> bool {
    let mut at = SLOTS.load(Ordering::Acquire);
    while !at.is_null() {
        // SAFETY: a slot in the list is a leaked box, which is never freed.
        let slot = unsafe { &*at };
        let (end, start) = (
            slot.end.load(Ordering::Acquire),
            slot.start.load(Ordering::Acquire),
        );
        if start <= address && address < end {
            let bits = slot.bits.load(Ordering::Acquire);
            if bits.is_null() {
                return true; // Being dropped: the page is writable by now.
            }
            // SAFETY: `drop` frees the words only after `wait_for_handlers`, which waits for this
            // one.
            let words = unsafe { &*bits };
            let page = page_size();
            let index = (address - start) / page;
            let (faults, words) = (&words[0], &words[1..]);
            faults.fetch_add(1, Ordering::Relaxed);
            let one = PageRange::new(start + index * page, start + (index + 1) * page);
            if one.is_some_and(|range| unprotect(range).is_ok()) {
                words[index as usize / 64].fetch_or(1 << (index % 64), Ordering::AcqRel);
            } else if let Some(all) = PageRange::new(start, end) {
                // Each single page splits a mapping, and a process may have only `vm.max_map_count`
                // of them. Releasing everything merges them again; everything then counts as
                // written.
                let _ = unprotect(all);
                let pages = all.page_count();
                for (i, word) in words.iter().enumerate() {
                    let left = pages - i as u64 * 64;
                    word.fetch_or(
                        if left >= 64 {
                            u64::MAX
                        } else {
                            (1 << left) - 1
                        },
                        Ordering::AcqRel,
                    );
                }
            }
            return true;
        }
        at = slot.next.load(Ordering::Acquire);
    }
    false
}

fn pass_on(
    signal: libc::c_int,
    sent: bool,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: with SA_SIGINFO the kernel passes a pointer to a valid `ucontext_t`, whose mask is
    // the one that the previous handler expects; a zeroed `sigset_t` is valid.
    unsafe {
        let mask = &raw const (*context.cast::<libc::ucontext_t>()).uc_sigmask;
        libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut());
        // The signal is blocked while its handler runs, unless the handler's flags disable that.
        if PREVIOUS
            .get()
            .is_none_or(|previous| previous.sa_flags & libc::SA_NODEFER == 0)
        {
            let mut own: libc::sigset_t = std::mem::zeroed();
            libc::sigaddset(&raw mut own, signal);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const own, std::ptr::null_mut());
        }
    }
    let previous = PREVIOUS.get();
    match previous.map(|action| (action.sa_sigaction, action.sa_flags)) {
        Some((libc::SIG_IGN, _)) if sent => {}
        Some((libc::SIG_DFL | libc::SIG_IGN, _)) | None => {
            // SAFETY: restoring the default disposition is async-signal-safe; the faulting
            // instruction runs again and kills the process, as it would have without this handler.
            // A signal that was sent is sent again and arrives after the return.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                if sent {
                    libc::raise(signal);
                }
            }
        }
        Some((function, flags)) if flags & libc::SA_SIGINFO != 0 => {
            type Action = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: SA_SIGINFO says that the previous handler has this signature; the arguments
            // are those of the kernel.
            unsafe { std::mem::transmute::<usize, Action>(function)(signal, info, context) };
        }
        Some((function, _)) => {
            // SAFETY: without SA_SIGINFO a handler takes only the signal's number.
            unsafe { std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(function)(signal) };
        }
    }
}

fn protect(range: PageRange, access_kind: AccessKind) -> rustix::io::Result<()> {
    let left = match access_kind {
        AccessKind::Writes => MprotectFlags::READ,
        AccessKind::Accesses => MprotectFlags::empty(),
    };
    // SAFETY: removing access rights invalidates no reference: the handler restores them on the
    // first access.
    unsafe { mprotect(range.start() as *mut _, range.bytes() as usize, left) }
}

fn unprotect(range: PageRange) -> rustix::io::Result<()> {
    let flags = MprotectFlags::READ | MprotectFlags::WRITE;
    // SAFETY: the range was readable and writable before it was protected.
    unsafe { mprotect(range.start() as *mut _, range.bytes() as usize, flags) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::scratch::Scratch;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    fn installed() -> usize {
        // SAFETY: a zeroed sigaction is valid, and the kernel fills it; no new action is installed.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGSEGV, std::ptr::null(), &raw mut action);
            action.sa_sigaction
        }
    }

    #[test]
    fn guards_may_be_dropped_while_threads_write() {
        let pages = 64;
        let memory = Scratch::new(pages * page_size()).unwrap();
        let range = memory.range();
        let stop = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..4)
            .map(|_| {
                let stop = Arc::clone(&stop);
                std::thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        for address in (range.start()..range.end()).step_by(page_size() as usize) {
                            // SAFETY: the memory is mapped for as long as the writers run, and all
                            // accesses are atomic.
                            unsafe { AtomicU8::from_ptr(address as *mut u8) }
                                .fetch_add(1, Ordering::Relaxed);
                        }
                    }
                })
            })
            .collect();
        for _ in 0..3000 {
            let guard = Guard::new(range, AccessKind::Writes).unwrap();
            guard.collect(&mut PageSet::new()).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.join().unwrap();
        }
        assert_eq!(installed(), handler as extern "C" fn(_, _, _) as usize);
    }
}
