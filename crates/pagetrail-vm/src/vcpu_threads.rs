//! [`VcpuThreads`]: the program's threads, each with a vCPU; which of them are in the guest, and
//! how all others are kept out of it.
//!
//! Threads are kept out while a write of theirs would be lost: during the final round, and during
//! the round before another program is executed. Otherwise they continue to run, also while a round
//! is collected.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pagetrail::HeldThread;

use crate::processor::Processor;
use crate::standing::{Standing, StateLayout};
use crate::sys::signal;
use crate::sys::thread::{Stack, is_asleep, is_gone};

/// The thread is not in the guest.
const OUT: u64 = 0;
const IN: u64 = 1;
/// The thread is in the guest, and a kick has been sent.
const KICKED: u64 = 2;
const STATE: u64 = 3;
/// The bits of a PID or TID (`PID_MAX_LIMIT`).
const ID_BITS: u32 = 22;
const ID: u64 = (1 << ID_BITS) - 1;

/// The time within which threads must show their registers.
const REGISTERS_TIMEOUT: Duration = Duration::from_secs(1);
/// The time between two looks.
const REGISTERS_POLL: Duration = Duration::from_micros(50);
/// A system call that takes longer is not waited for, also where it does not sleep.
const CALL_TIMEOUT: Duration = Duration::from_millis(2);

/// What a thread does, as others see it.
#[derive(Debug)]
pub(crate) struct RunState {
    /// Whether the thread is in the guest, with its PID and TID, in one atomic word.
    word: AtomicU64,
    pub(crate) standing: Standing,
}

fn word(pid: u32, tid: u32, state: u64) -> u64 {
    (u64::from(pid) << ID_BITS | u64::from(tid)) << 2 | state
}

impl RunState {
    /// The state of the calling thread, which is not in the guest.
    pub(crate) fn of_this_thread() -> Self {
        let run_state = Self {
            word: AtomicU64::new(0),
            standing: Standing::default(),
        };
        run_state.bind_to_this_thread();
        run_state
    }

    /// Binds the state to the calling thread, which is not in the guest.
    pub(crate) fn bind_to_this_thread(&self) {
        let (pid, tid) = (std::process::id(), crate::sys::thread::id());
        self.word.store(word(pid, tid, OUT), Ordering::SeqCst);
    }

    /// The thread's TID.
    pub(crate) fn thread(&self) -> u32 {
        (self.word.load(Ordering::SeqCst) >> 2 & ID) as u32
    }

    /// The PID of the thread's process.
    fn process(&self) -> u32 {
        (self.word.load(Ordering::SeqCst) >> (2 + ID_BITS)) as u32
    }

    fn set(&self, state: u64) -> u64 {
        // Only this thread changes the IDs. Other threads change the state from IN only.
        let now = self.word.load(Ordering::Relaxed) & !STATE;
        self.word.swap(now | state, Ordering::SeqCst) & STATE
    }

    fn is_leaving(&self) -> bool {
        self.word.load(Ordering::SeqCst) & STATE == KICKED
    }

    fn leave(&self) {
        if self.set(OUT) == KICKED {
            signal::wait_for_kick();
        }
    }

    fn kick(&self) {
        let now = self.word.load(Ordering::SeqCst) & !STATE;
        let exchanged =
            self.word
                .compare_exchange(now | IN, now | KICKED, Ordering::SeqCst, Ordering::SeqCst);
        if exchanged.is_ok() {
            let ids = now >> 2;
            signal::kick((ids >> ID_BITS) as u32, (ids & ID) as u32);
        }
    }
}

/// A thread of the program, with its vCPU.
#[derive(Debug)]
pub(crate) struct VcpuThread {
    pub(crate) run_state: Arc<RunState>,
    /// The descriptor of the thread's vCPU.
    pub(crate) descriptor: RawFd,
}

/// The state of all threads.
#[derive(Debug, Default)]
pub(crate) struct ThreadTable {
    present: Vec<VcpuThread>,
    /// The stacks of threads, by TID.
    stacks: Vec<(u32, Stack)>,
    /// TIDs of threads that have ended for the program, and may still exist in the kernel.
    leaving: Vec<u32>,
    /// vCPUs without a thread. KVM cannot remove a vCPU.
    free: Vec<Processor>,
    /// The number of vCPUs created so far, which is the ID of the next one.
    made: u64,
    /// The exit status of the process's first thread, once it has ended.
    first_status: Option<i32>,
    /// Whether the limit on threads has been reported.
    limit_reported: bool,
}

/// The threads of the program.
#[derive(Debug, Default)]
pub(crate) struct VcpuThreads {
    table: Mutex<ThreadTable>,
    /// Whether threads must stay out of the guest.
    stopped: AtomicBool,
    /// Held by the thread that has stopped the others.
    stopping: Mutex<()>,
    /// Whether those that are kept out are to show their registers.
    asked: AtomicBool,
    gate: Mutex<()>,
    /// The gate is open, or something is asked at it.
    changed: Condvar,
    layout: StateLayout,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing here panics while it holds a lock.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ThreadTable {
    /// Returns a free vCPU, or the ID of the next one to create.
    pub(crate) fn processor(&mut self) -> Result<Processor, u64> {
        self.free.pop().ok_or(self.made)
    }

    /// Counts a vCPU that was created.
    pub(crate) fn count_processor(&mut self) {
        self.made += 1;
    }

    /// Adds a thread.
    pub(crate) fn add(&mut self, thread: VcpuThread) {
        self.present.push(thread);
    }

    /// Keeps a thread's stack until the thread is gone.
    pub(crate) fn keep_stack(&mut self, thread: u32, stack: Stack) {
        self.stacks.push((thread, stack));
        self.leaving.retain(|leaving| {
            let gone = is_gone(std::process::id(), *leaving);
            if gone {
                self.stacks.retain(|(thread, _)| thread != leaving);
            }
            !gone
        });
    }

    /// Takes back the vCPU of a thread that has ended.
    pub(crate) fn give_back(&mut self, processor: Processor) {
        self.free.push(processor);
    }

    /// Removes a thread. If it was the last one, returns the exit status of the process.
    pub(crate) fn remove(&mut self, run_state: &Arc<RunState>, status: i32) -> Option<i32> {
        self.present
            .retain(|thread| !Arc::ptr_eq(&thread.run_state, run_state));
        let thread = run_state.thread();
        if thread == std::process::id() {
            self.first_status = Some(status);
        } else {
            self.leaving.push(thread);
        }
        let is_last = self.present.is_empty();
        is_last.then(|| self.first_status.unwrap_or(status))
    }

    /// Whether there is exactly one thread.
    pub(crate) fn is_one(&self) -> bool {
        self.present.len() == 1
    }

    /// Whether the limit on threads should be reported: true on the first call only.
    pub(crate) fn should_report_limit(&mut self) -> bool {
        !std::mem::replace(&mut self.limit_reported, true)
    }

    /// Drops what a forked child has of its parent's other threads. Returns their descriptors,
    /// which the caller must close.
    pub(crate) fn abandon_others(&mut self, own: &Arc<RunState>) -> Vec<RawFd> {
        self.free.clear();
        let others = self.present.iter();
        let others = others.filter(|thread| !Arc::ptr_eq(&thread.run_state, own));
        others.map(|thread| thread.descriptor).collect()
    }
}

impl VcpuThreads {
    /// Starts with one thread, which has the only vCPU, whose extended state has this layout.
    pub(crate) fn of_one(thread: VcpuThread, layout: StateLayout) -> Self {
        let threads = Self {
            layout,
            ..Self::default()
        };
        let mut table = threads.table();
        table.count_processor();
        table.add(thread);
        drop(table);
        threads
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, ThreadTable> {
        locked(&self.table)
    }

    /// Runs `run` with the calling thread marked as in the guest, once threads may enter it. A
    /// thread that `is_apart`, in another process that outlives this one, enters at once. Returns
    /// `None` where the thread must show its registers first, or take others.
    pub(crate) fn in_guest<T>(
        &self,
        run_state: &RunState,
        is_apart: bool,
        run: impl FnOnce() -> T,
    ) -> Option<T> {
        loop {
            run_state.set(IN);
            if is_apart {
                break;
            }
            let is_stopped = self.stopped.load(Ordering::SeqCst);
            if !is_stopped && !run_state.standing.has_new() {
                break;
            }
            run_state.leave();
            if !is_stopped {
                return None;
            }
            let mut gate = locked(&self.gate);
            while self.stopped.load(Ordering::SeqCst) {
                if self.asked.load(Ordering::SeqCst) && !run_state.standing.has_shown() {
                    return None;
                }
                gate = self
                    .changed
                    .wait(gate)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
        let result = run();
        run_state.leave();
        Some(result)
    }

    /// Whether a child of `vfork(2)` may run on one of the vCPUs. [`Self::stop_others`] does not
    /// stop it, since it is in another process. Does not wait for the table, since a thread that
    /// forks waits for the memory while it holds that.
    pub(crate) fn may_have_apart(&self) -> bool {
        let process = std::process::id();
        let Ok(table) = self.table.try_lock() else {
            return true;
        };
        let mut threads = table.present.iter();
        threads.any(|thread| thread.run_state.process() != process)
    }

    /// Whether the calling thread is the only one.
    pub(crate) fn is_single(&self) -> bool {
        self.table().present.len() <= 1
    }

    /// Keeps all other threads out of the guest until the returned guard is dropped.
    pub(crate) fn stop_others(&self, own: &Arc<RunState>) -> Stopped<'_> {
        let one_at_a_time = locked(&self.stopping);
        self.stopped.store(true, Ordering::SeqCst);
        let table = self.table();
        let others: Vec<Arc<RunState>> = table
            .present
            .iter()
            .filter(|thread| !Arc::ptr_eq(&thread.run_state, own))
            .map(|thread| thread.run_state.clone())
            .collect();
        drop(table);
        others.iter().for_each(|run_state| run_state.kick());
        for run_state in &others {
            // A thread that was out of the guest sees `stopped` before it enters.
            while run_state.is_leaving() {
                thread::yield_now();
            }
        }
        Stopped {
            threads: self,
            _one_at_a_time: one_at_a_time,
        }
    }
}

/// While this guard exists, no other thread is in the guest.
#[derive(Debug)]
pub(crate) struct Stopped<'a> {
    threads: &'a VcpuThreads,
    _one_at_a_time: MutexGuard<'a, ()>,
}

impl Stopped<'_> {
    /// Has all threads show their registers, in the table's order. With `ends_calls`, system calls
    /// that are under way are ended, and begin anew when the threads go on; otherwise they count as
    /// not begun. The memory must not be locked, since threads may need it on their way here.
    /// `None` where a thread does not come to a place where it has registers, or is apart.
    pub(crate) fn registers(&self, ends_calls: bool) -> Option<Vec<HeldThread>> {
        let threads = self.threads;
        let each =
            |what: &mut dyn FnMut(&VcpuThread)| threads.table().present.iter().for_each(what);
        each(&mut |thread| thread.run_state.standing.clear());
        self.ask(true);
        let began = Instant::now();
        let shown = loop {
            let mut is_apart = false;
            each(&mut |thread| is_apart |= thread.run_state.process() != std::process::id());
            if is_apart {
                break None;
            }
            let waits = began.elapsed();
            let mut is_complete = true;
            each(&mut |thread| {
                let standing = &thread.run_state.standing;
                if !standing.has_shown() {
                    threads.hasten(thread, ends_calls, waits);
                }
                is_complete &= standing.has_shown();
            });
            if is_complete {
                let mut shown = Vec::new();
                each(&mut |thread| shown.extend(thread.run_state.standing.shown()));
                break Some(shown);
            }
            if waits > REGISTERS_TIMEOUT {
                break None;
            }
            thread::sleep(REGISTERS_POLL);
        };
        self.ask(false);
        shown
    }

    fn ask(&self, whether: bool) {
        let _gate = locked(&self.threads.gate);
        self.threads.asked.store(whether, Ordering::SeqCst);
        self.threads.changed.notify_all();
    }

    /// Sets the registers with which threads go on. False, and nothing set, if one is not there.
    pub(crate) fn set_registers(&self, wanted: &[HeldThread]) -> bool {
        let table = self.threads.table();
        let find = |tid| {
            let mut present = table.present.iter();
            present.find(|thread| thread.run_state.thread() == tid)
        };
        if wanted.iter().any(|thread| find(thread.tid).is_none()) {
            return false;
        }
        for thread in wanted {
            if let Some(found) = find(thread.tid) {
                found.run_state.standing.set_new(thread.clone());
            }
        }
        true
    }
}

impl VcpuThreads {
    /// Helps a thread that has not shown its registers: it may be in a system call.
    fn hasten(&self, thread: &VcpuThread, ends_calls: bool, waits: Duration) {
        let (run_state, standing) = (&thread.run_state, &thread.run_state.standing);
        if !standing.is_in_call() {
            return;
        }
        if ends_calls {
            standing.end_call_of_thread(run_state.process(), run_state.thread());
        } else if waits > CALL_TIMEOUT || is_asleep(run_state.thread()) {
            // One that cannot be read is asked again, and is missing in the end.
            let _ = standing.read_in_call(run_state.thread(), thread.descriptor, self.layout);
        }
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        let _gate = locked(&self.threads.gate);
        self.threads.stopped.store(false, Ordering::SeqCst);
        self.threads.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU8;

    use super::*;

    fn of_one(run_state: &Arc<RunState>) -> VcpuThreads {
        let thread = VcpuThread {
            run_state: run_state.clone(),
            descriptor: -1,
        };
        VcpuThreads::of_one(thread, StateLayout::default())
    }

    /// Stands for a vCPU: runs until its stop byte is set.
    fn run(byte: &AtomicU8, is_over: &AtomicBool, work: &AtomicU64) {
        while byte.load(Ordering::SeqCst) == 0 && !is_over.load(Ordering::SeqCst) {
            work.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn nobody_is_in_the_guest_while_others_are_stopped() {
        let own = Arc::new(RunState::of_this_thread());
        let threads = of_one(&own);
        signal::enable_kicks();
        let work: [AtomicU64; 3] = Default::default();
        let is_over = &AtomicBool::new(false);
        let threads = &threads;
        thread::scope(|scope| {
            for work in &work {
                scope.spawn(move || {
                    let byte = AtomicU8::new(0);
                    signal::use_stop_byte(byte.as_ptr());
                    let run_state = Arc::new(RunState::of_this_thread());
                    threads.table().add(VcpuThread {
                        run_state: run_state.clone(),
                        descriptor: -1,
                    });
                    while !is_over.load(Ordering::SeqCst) {
                        threads.in_guest(&run_state, false, || run(&byte, is_over, work));
                    }
                    assert!(threads.table().remove(&run_state, 0).is_none());
                    signal::unset_stop_byte();
                });
            }
            let values = || work.each_ref().map(|work| work.load(Ordering::SeqCst));
            for _ in 0..50 {
                let before = values();
                while values()
                    .iter()
                    .zip(before)
                    .any(|(now, before)| *now == before)
                {
                    thread::yield_now();
                }
                let stopped = threads.stop_others(&own);
                let still = values();
                for _ in 0..20 {
                    thread::yield_now();
                }
                assert_eq!(values(), still);
                drop(stopped);
            }
            is_over.store(true, Ordering::SeqCst);
        });
    }

    #[test]
    fn the_process_ends_with_its_last_thread_and_as_the_first_one_said() {
        let first = Arc::new(RunState::of_this_thread());
        let is_first = first.thread() == std::process::id();
        let threads = of_one(&first);
        let second = Arc::new(RunState::of_this_thread());
        threads.table().add(VcpuThread {
            run_state: second.clone(),
            descriptor: -1,
        });
        assert_eq!(threads.table().remove(&first, 3), None);
        let expected = if is_first { 3 } else { 4 };
        assert_eq!(threads.table().remove(&second, 4), Some(expected));
    }
}
