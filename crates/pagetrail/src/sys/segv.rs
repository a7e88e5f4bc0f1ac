//! The `SIGSEGV` handler of the `mprotect` technique.
//!
//! A process has one disposition for `SIGSEGV`, so the handler is installed once, serves all watches, and passes
//! faults that are nobody's on to the handler that was there before (`sigaction(2)`). Everything it does is
//! async-signal-safe: atomics, `mprotect(2)` and `madvise(2)`. All that it writes to lies in mappings of its own: a
//! process can track its own heap, and a fault inside the handler would be the end of it.

use super::shared_words::SharedWords;
use crate::page_set::{PageRange, PageSet, page_size};
use crate::round::AccessKind;
use rustix::mm::{MprotectFlags, mprotect};
use std::io;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// A protected range and which of its pages were written since the last harvest.
///
/// Never freed: a handler may be looking at it at any moment. A disused one is taken again by [`Guard::new`].
struct Slot {
    start: AtomicU64,
    /// 0 while the slot is free.
    end: AtomicU64,
    /// The number of faults, then one bit per page.
    bits: AtomicPtr<SharedWords>,
    next: AtomicPtr<Slot>,
}

static SLOTS: AtomicPtr<Slot> = AtomicPtr::new(std::ptr::null_mut());

/// Handlers at work, two words, counted by the parity of the epoch in which they began; see [`wait_for_handlers`].
static AT_WORK: OnceLock<SharedWords> = OnceLock::new();
static EPOCH: AtomicUsize = AtomicUsize::new(0);

/// Counted when handlers can find the guard, and before it protects anything.
static GUARDS_MADE: AtomicU64 = AtomicU64::new(0);

static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Waits for the handlers that are at work: they may have released a page and not yet noted it, and they may look
/// at a slot that is being freed.
fn wait_for_handlers() {
    // One at a time: while a second epoch passes, a handler of the one before would be waited for by nobody.
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

/// A writable range of the own process under watch; writable again when dropped.
#[derive(Debug)]
pub(crate) struct Guard {
    slot: &'static Slot,
    range: PageRange,
    noticing: AccessKind,
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").finish_non_exhaustive()
    }
}

impl Guard {
    /// Protects `range`, which must be mapped readable and writable and stay so.
    ///
    /// The kernel's own writes to protected memory (and its reads, where accesses are noticed) fail with `EFAULT`; the caller
    /// has been told.
    pub(crate) fn new(range: PageRange, noticing: AccessKind) -> io::Result<Self> {
        install()?;
        let words = SharedWords::new(1 + range.page_count().div_ceil(64) as usize)?;
        let slot = free_slot();
        slot.start.store(range.start(), Ordering::Relaxed);
        // Leaked like the slot, for the same reason; a few bytes per watch, the words are freed on drop.
        slot.bits
            .store(Box::into_raw(Box::new(words)), Ordering::Release);
        slot.end.store(range.end(), Ordering::Release);
        GUARDS_MADE.fetch_add(1, Ordering::SeqCst);
        let guard = Self {
            slot,
            range,
            noticing,
        };
        protect(range, noticing)?;
        Ok(guard)
    }

    /// The range under watch.
    pub(crate) fn range(&self) -> PageRange {
        self.range
    }

    /// Adds the pages written since the last harvest, protected again; returns the number of faults.
    pub(crate) fn collect(&self, out: &mut PageSet) -> io::Result<u64> {
        wait_for_handlers();
        let page = page_size();
        let (faults, words) = self.words();
        let mut outcome = Ok(());
        // Run by run, so that nothing needs memory but `out`.
        let mut run: Option<PageRange> = None;
        let mut take = |run: PageRange| {
            out.insert(run);
            if outcome.is_ok() {
                outcome = protect(run, self.noticing);
            }
            if outcome.is_err() {
                // Still writable without a fault: written until it is protected again.
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

    /// Takes the write faults of the guarded part of `range` now, without changing what memory holds.
    pub(crate) fn touch(&self, range: PageRange) {
        let Some(part) = range.intersection(&self.range) else {
            return;
        };
        for address in (part.start()..part.end()).step_by(page_size() as usize) {
            // SAFETY: mapped and, but for our protection, writable.
            let byte = unsafe { AtomicU8::from_ptr(address as *mut u8) };
            // Replacing a byte by itself is a write to the processor, whether another thread changes it
            // meanwhile or not. (An "or with nothing" is none: the compiler makes it a read.)
            let now = byte.load(Ordering::Relaxed);
            let _ = byte.compare_exchange(now, now, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    fn words(&self) -> (&AtomicU64, &[AtomicU64]) {
        // SAFETY: set by `new`, and replaced only after this guard is dropped.
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
        // SAFETY: made by `Box::into_raw` in `new`; handlers that could see it have left, later ones find the
        // slot free.
        drop(unsafe { Box::from_raw(bits) });
        self.slot.start.store(TAKEN_BY_NOBODY, Ordering::Release);
    }
}

/// A slot's `start` while nobody owns it.
const TAKEN_BY_NOBODY: u64 = u64::MAX;

fn free_slot() -> &'static Slot {
    let mut at = SLOTS.load(Ordering::Acquire);
    while !at.is_null() {
        // SAFETY: slots are never freed.
        let slot = unsafe { &*at };
        if slot
            .start
            .compare_exchange(TAKEN_BY_NOBODY, 0, Ordering::AcqRel, Ordering::Relaxed)
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
        // SAFETY: zeroed is a valid sigaction; `handler` has the signature that SA_SIGINFO asks for and does
        // only async-signal-safe things.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let mut previous: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as extern "C" fn(_, _, _) as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
            // A collector stops threads by a signal and harvests while they stand: none may stand in here, where
            // the harvest would wait for it.
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
    // SAFETY: the kernel passes a valid siginfo.
    let code = unsafe { (*info).si_code };
    // SAFETY: as above; for SIGSEGV of the kernel's own it holds an address.
    let address = unsafe { (*info).si_addr() } as u64;
    // Sent by `kill(2)` and its like there is none.
    let sent = code <= 0;
    // SAFETY: errno belongs to this thread; the interrupted code must find it as it was.
    let errno = unsafe { *libc::__errno_location() };
    let settled = !sent
        && loop {
            let made = GUARDS_MADE.load(Ordering::SeqCst);
            if release_as_counted(address) || is_late(code, address, context) {
                break true;
            }
            // Neither, unless a guard protected the page between the two looks.
            if GUARDS_MADE.load(Ordering::SeqCst) == made {
                break false;
            }
        };
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    if !settled {
        pass_on(signal, sent, info, context);
    }
}

/// [`release`], in a way that [`wait_for_handlers`] sees.
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

/// Whether the fault is an access to a page that is accessible by now: a thread that ran into a protection shortly
/// before its guard was dropped. Nobody else's handler must see it: the usual ones restore the default action.
fn is_late(code: libc::c_int, address: u64, context: *mut libc::c_void) -> bool {
    const SEGV_ACCERR: libc::c_int = 2;
    /// The access was a write; Intel SDM volume 3, "Page-fault exceptions".
    const WRITE: i64 = 1 << 1;
    /// It was a fetch of an instruction.
    const FETCH: i64 = 1 << 4;
    if code != SEGV_ACCERR {
        return false;
    }
    // SAFETY: with SA_SIGINFO the kernel passes a `ucontext_t`.
    let error =
        unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_ERR as usize] };
    let page = address & !(page_size() - 1);
    let advice = match error & WRITE {
        0 => libc::MADV_POPULATE_READ,
        _ => libc::MADV_POPULATE_WRITE,
    };
    // SAFETY: makes the page present, as the access is about to do, and leaves what it holds; Linux 5.14.
    error & FETCH == 0
        && unsafe { libc::madvise(page as *mut _, page_size() as usize, advice) } == 0
}

/// Makes the page writable, then notes it: in this order a page that a harvest protects again is never left
/// writable and forgotten. Says whether the address is under watch.
fn release(address: u64) -> bool {
    let mut at = SLOTS.load(Ordering::Acquire);
    while !at.is_null() {
        // SAFETY: slots are never freed.
        let slot = unsafe { &*at };
        let (end, start) = (
            slot.end.load(Ordering::Acquire),
            slot.start.load(Ordering::Acquire),
        );
        if start <= address && address < end {
            let bits = slot.bits.load(Ordering::Acquire);
            if bits.is_null() {
                return true; // Disarmed at this moment: the page is writable by now.
            }
            // SAFETY: freed only after the handlers of this epoch have left.
            let words = unsafe { &*bits };
            let page = page_size();
            let index = (address - start) / page;
            let (faults, words) = (&words[0], &words[1..]);
            faults.fetch_add(1, Ordering::Relaxed);
            let one = PageRange::new(start + index * page, start + (index + 1) * page);
            if one.is_some_and(|range| unprotect(range).is_ok()) {
                words[index as usize / 64].fetch_or(1 << (index % 64), Ordering::AcqRel);
            } else if let Some(all) = PageRange::new(start, end) {
                // Each page apart splits a mapping, and a process may have only `vm.max_map_count` of
                // them. Releasing everything merges them again; everything then counts as written.
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
    // SAFETY: with SA_SIGINFO the kernel passes a `ucontext_t`; its mask is the one that the handler before us expects.
    unsafe {
        let mask = &raw const (*context.cast::<libc::ucontext_t>()).uc_sigmask;
        libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut());
        // Blocked while its handler runs, unless that asked otherwise.
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
            // SAFETY: restores the default; the faulting instruction runs again and the process dies of
            // it, as it would have without us. A signal that was sent comes again after the return.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                if sent {
                    libc::raise(signal);
                }
            }
        }
        Some((function, flags)) if flags & libc::SA_SIGINFO != 0 => {
            type Action = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: SA_SIGINFO says that the handler that was installed has this signature.
            unsafe { std::mem::transmute::<usize, Action>(function)(signal, info, context) };
        }
        Some((function, _)) => {
            // SAFETY: without SA_SIGINFO a handler takes the signal alone.
            unsafe { std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(function)(signal) };
        }
    }
}

fn protect(range: PageRange, noticing: AccessKind) -> rustix::io::Result<()> {
    let left = match noticing {
        AccessKind::Writes => MprotectFlags::READ,
        AccessKind::Accesses => MprotectFlags::empty(),
    };
    // SAFETY: taking away access rights makes no access undefined: the handler gives them back.
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
        // SAFETY: zeroed is a valid sigaction, which the kernel fills.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGSEGV, std::ptr::null(), &raw mut action);
            action.sa_sigaction
        }
    }

    #[test]
    fn guards_may_go_while_others_write() {
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
                            // SAFETY: mapped for as long as the writers run.
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
