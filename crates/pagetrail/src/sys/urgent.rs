//! [`Urgent`]: this thread comes first, while a process stands still because of it.
//!
//! A pause consists of little work by several threads, which wake each other, and on a busy machine
//! each of them waits for a processor first. How long is decided by two properties of a thread, and
//! both are raised here:
//!
//! * its *nice* value: how much of a processor it gets. Raising it needs CAP_SYS_NICE (or
//!   `RLIMIT_NICE`).
//! * its *slice*: how long it wants to run at a time (`sched_runtime` of `sched_setattr(2)`, for
//!   normal threads since Linux 6.12). A thread that wakes up replaces the one that runs at once
//!   where its slice is the shorter one (`do_preempt_short` in `kernel/sched/fair.c`); otherwise it
//!   waits until that one has had its own, up to some milliseconds, whatever their nice values. No
//!   privilege is needed.
//!
//! With eight threads that compute on two processors, and 20 others that wanted them, nine of ten
//! threads that woke up ran within 66 ms, with the shortest slice within 2 ms, with the highest
//! nice value within 0.1 ms; of 100 all but the last within 245, 86 and 90 ms, and with both within
//! 26.
//!
//! Real-time policies were considered: they need the privilege as well, threads of the target that
//! wait for the same processor would not get it to come to their stop, and the kernel does not
//! throttle what runs for milliseconds.

use std::marker::PhantomData;
use std::mem::size_of;

/// Nice values, of which this is the highest priority.
const HIGHEST: libc::c_int = -20;
/// The shortest slice that the kernel gives (`__setparam_fair` in `kernel/sched/syscalls.c`).
const SLICE_NS: u64 = 100_000;

/// What decides how long the calling thread waits for a processor.
#[derive(Clone, Copy)]
struct Scheduling(libc::sched_attr);

impl Scheduling {
    /// That of the calling thread; `None` where the kernel does not say it.
    fn now() -> Option<Self> {
        // SAFETY: zeros are valid for a structure of numbers.
        let mut found: libc::sched_attr = unsafe { std::mem::zeroed() };
        let bytes = size_of::<libc::sched_attr>() as libc::c_uint;
        // SAFETY: `found` is a valid place of so many bytes; 0 means the calling thread.
        let outcome =
            unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut found, bytes, 0) };
        (outcome == 0).then_some(Self(found))
    }

    /// Whether the thread has a policy to which nice values and slices apply.
    fn is_normal(self) -> bool {
        [libc::SCHED_OTHER, libc::SCHED_BATCH].contains(&(self.0.sched_policy as libc::c_int))
    }

    /// With the highest priority.
    fn nice(self) -> Self {
        Self(libc::sched_attr {
            sched_nice: HIGHEST,
            ..self.0
        })
    }

    /// With the shortest slice.
    fn short(self) -> Self {
        Self(libc::sched_attr {
            sched_runtime: SLICE_NS,
            ..self.0
        })
    }

    /// Gives it to the calling thread, if that is allowed.
    fn set(self) -> bool {
        // SAFETY: the structure has the length that it names; 0 means the calling thread.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const self.0, 0) == 0 }
    }

    /// The best that is allowed, for the calling thread, which has this one.
    fn raise(self) {
        if self.is_normal() {
            let _ = self.nice().short().set() || self.short().set();
        }
    }
}

/// This thread waits for processors as briefly as it may until the value is dropped.
///
/// For the time in which a process is [held](crate::Hold): make it before the hold, so that what
/// stops the process inherits it. On Linux 6.12 and newer it helps without any privilege; with
/// CAP_SYS_NICE the thread has the highest nice value, too. What is not allowed is left as it is.
///
/// ```no_run
/// # fn main() -> Result<(), pagetrail::Error> {
/// let urgent = pagetrail::Urgent::begin();
/// let hold = pagetrail::Hold::process(1234)?;
/// // .. what has to be done while it stands still
/// hold.release();
/// drop(urgent);
/// # Ok(())
/// # }
/// ```
pub struct Urgent {
    before: Option<Scheduling>,
    /// The drop is for the same thread.
    _same_thread: PhantomData<*const ()>,
}

impl Urgent {
    /// Begins, as far as it is allowed.
    #[must_use = "it ends with the value"]
    pub fn begin() -> Self {
        let before = Scheduling::now();
        if let Some(before) = before {
            before.raise();
        }
        Self {
            before,
            _same_thread: PhantomData,
        }
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        // To take less than one has is always allowed.
        if let Some(before) = self.before.filter(|before| before.is_normal()) {
            before.set();
        }
    }
}

impl std::fmt::Debug for Urgent {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Urgent").finish_non_exhaustive()
    }
}

/// Raises the priority of the calling thread for good, as far as it is allowed: what it does is
/// waited for while a target stands still. Allocates nothing.
pub(crate) fn stay() {
    if let Some(now) = Scheduling::now() {
        now.raise();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheduling_is_put_back() {
        let values = |scheduling: Option<Scheduling>| {
            scheduling.map(|Scheduling(found)| (found.sched_nice, found.sched_runtime))
        };
        let Some(before) = Scheduling::now().filter(|now| now.is_normal()) else {
            return pagetrail_skips::not_here("no normal thread, or the kernel does not say");
        };
        let urgent = Urgent::begin();
        let (nice, slice) = values(Scheduling::now()).unwrap();
        assert!(nice == HIGHEST || nice == before.0.sched_nice);
        // A kernel that knows slices says what they are.
        assert!(before.0.sched_runtime == 0 || slice == SLICE_NS);
        drop(urgent);
        assert_eq!(values(Scheduling::now()), values(Some(before)));
    }

    /// What stops a process is started by the thread that is urgent.
    #[test]
    fn threads_inherit_it() {
        let urgent = Urgent::begin();
        let own = Scheduling::now().map(|now| (now.0.sched_nice, now.0.sched_runtime));
        let other = std::thread::spawn(Scheduling::now);
        let other = other.join().unwrap();
        assert_eq!(
            other.map(|now| (now.0.sched_nice, now.0.sched_runtime)),
            own
        );
        drop(urgent);
    }
}
