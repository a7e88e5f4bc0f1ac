//! [`VcpuThreads`]: the program's threads, each with a processor; who is in the guest, and how all are kept out of it.
//!
//! Threads are kept out when what they write would be lost: while the last round is taken, or the one before another program
//! is executed. Otherwise they run on through everything, rounds too.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::processor::Processor;
use crate::sys::signal;
use crate::sys::thread::{Stack, is_gone};

/// Not in the guest.
const OUT: u64 = 0;
const IN: u64 = 1;
/// In the guest, and told to leave.
const KICKED: u64 = 2;
const STATE: u64 = 3;
/// Bits of a process's or a thread's number (`PID_MAX_LIMIT`).
const ID_BITS: u32 = 22;
const ID: u64 = (1 << ID_BITS) - 1;

/// Where a thread is, and which thread of the kernel's it is, in one word.
#[derive(Debug)]
pub(crate) struct RunState(AtomicU64);

fn word(pid: u32, tid: u32, state: u64) -> u64 {
    (u64::from(pid) << ID_BITS | u64::from(tid)) << 2 | state
}

impl RunState {
    /// The calling thread's, out of the guest.
    pub(crate) fn of_this_thread() -> Self {
        let run_state = Self(AtomicU64::new(0));
        run_state.bind_to_this_thread();
        run_state
    }

    /// From now on the calling thread runs the processor, which is out of the guest.
    pub(crate) fn bind_to_this_thread(&self) {
        let (pid, tid) = (std::process::id(), crate::sys::thread::id());
        self.0.store(word(pid, tid, OUT), Ordering::SeqCst);
    }

    /// The number by which others know the thread.
    pub(crate) fn thread(&self) -> u32 {
        (self.0.load(Ordering::SeqCst) >> 2 & ID) as u32
    }

    fn set(&self, state: u64) -> u64 {
        // Nobody else changes the numbers; others change the state from IN only.
        let now = self.0.load(Ordering::Relaxed) & !STATE;
        self.0.swap(now | state, Ordering::SeqCst) & STATE
    }

    fn is_leaving(&self) -> bool {
        self.0.load(Ordering::SeqCst) & STATE == KICKED
    }

    fn leave(&self) {
        if self.set(OUT) == KICKED {
            signal::wait_for_kick();
        }
    }

    fn kick(&self) {
        let now = self.0.load(Ordering::SeqCst) & !STATE;
        let exchanged =
            self.0
                .compare_exchange(now | IN, now | KICKED, Ordering::SeqCst, Ordering::SeqCst);
        if exchanged.is_ok() {
            let ids = now >> 2;
            signal::kick((ids >> ID_BITS) as u32, (ids & ID) as u32);
        }
    }
}

/// A thread of the program.
#[derive(Debug)]
pub(crate) struct VcpuThread {
    pub(crate) run_state: Arc<RunState>,
    /// Its processor's descriptor.
    pub(crate) descriptor: RawFd,
}

/// What is known of all threads.
#[derive(Debug, Default)]
pub(crate) struct ThreadTable {
    present: Vec<VcpuThread>,
    /// Stacks of threads, by their numbers.
    stacks: Vec<(u32, Stack)>,
    /// Those that have ended, maybe not to the last.
    leaving: Vec<u32>,
    /// Processors without a thread: KVM takes none back.
    free: Vec<Processor>,
    /// How many processors were made; the next one's number.
    made: u64,
    /// What the process's first thread ended with, if it has.
    first_status: Option<i32>,
    /// Whether it was said that there are too many.
    told: bool,
}

/// The program's threads.
#[derive(Debug, Default)]
pub(crate) struct VcpuThreads {
    table: Mutex<ThreadTable>,
    /// Nobody may enter the guest.
    stopped: AtomicBool,
    /// Held by who has stopped the others.
    stopping: Mutex<()>,
    gate: Mutex<()>,
    opened: Condvar,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing here panics while it holds a lock.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ThreadTable {
    /// A processor that is free, or the number of the next one.
    pub(crate) fn processor(&mut self) -> Result<Processor, u64> {
        self.free.pop().ok_or(self.made)
    }

    /// One more was made.
    pub(crate) fn count_processor(&mut self) {
        self.made += 1;
    }

    /// A thread has come.
    pub(crate) fn add(&mut self, thread: VcpuThread) {
        self.present.push(thread);
    }

    /// Keeps a thread's stack until it is gone.
    pub(crate) fn keep_stack(&mut self, thread: u32, stack: Stack) {
        self.stacks.push((thread, stack));
        self.leaving.retain(|leaving| {
            let gone = is_gone(*leaving);
            if gone {
                self.stacks.retain(|(thread, _)| thread != leaving);
            }
            !gone
        });
    }

    /// A processor that its thread needs no more.
    pub(crate) fn give_back(&mut self, processor: Processor) {
        self.free.push(processor);
    }

    /// Takes a thread out. The status with which the process ends, if it was the last.
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

    /// Whether there is one thread.
    pub(crate) fn is_one(&self) -> bool {
        self.present.len() == 1
    }

    /// True once: that there are too many is to be said.
    pub(crate) fn should_report_limit(&mut self) -> bool {
        !std::mem::replace(&mut self.told, true)
    }

    /// In a forked child: what it has of the others goes. Descriptors that nobody here owns are returned.
    pub(crate) fn abandon_others(&mut self, own: &Arc<RunState>) -> Vec<RawFd> {
        self.free.clear();
        let others = self.present.iter();
        let others = others.filter(|thread| !Arc::ptr_eq(&thread.run_state, own));
        others.map(|thread| thread.descriptor).collect()
    }
}

impl VcpuThreads {
    /// One thread, with the only processor.
    pub(crate) fn of_one(thread: VcpuThread) -> Self {
        let threads = Self::default();
        let mut table = threads.table();
        table.count_processor();
        table.add(thread);
        drop(table);
        threads
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, ThreadTable> {
        locked(&self.table)
    }

    /// Runs something that is in the guest meanwhile, when that may be; at once where the thread `is_apart`, in another
    /// process, which outlives this one.
    pub(crate) fn in_guest<T>(
        &self,
        run_state: &RunState,
        is_apart: bool,
        run: impl FnOnce() -> T,
    ) -> T {
        loop {
            run_state.set(IN);
            if is_apart || !self.stopped.load(Ordering::SeqCst) {
                break;
            }
            run_state.leave();
            let mut gate = locked(&self.gate);
            while self.stopped.load(Ordering::SeqCst) {
                gate = self
                    .opened
                    .wait(gate)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
        let result = run();
        run_state.leave();
        result
    }

    /// Keeps all other threads out of the guest until what is returned is dropped.
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
            // Who was out sees that nobody may enter.
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

/// No other thread is in the guest.
#[derive(Debug)]
pub(crate) struct Stopped<'a> {
    threads: &'a VcpuThreads,
    _one_at_a_time: MutexGuard<'a, ()>,
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        let _gate = locked(&self.threads.gate);
        self.threads.stopped.store(false, Ordering::SeqCst);
        self.threads.opened.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU8;

    use super::*;

    /// What a processor does: it runs until its byte says otherwise.
    fn run(byte: &AtomicU8, is_over: &AtomicBool, work: &AtomicU64) {
        while byte.load(Ordering::SeqCst) == 0 && !is_over.load(Ordering::SeqCst) {
            work.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn nobody_is_in_the_guest_while_others_are_stopped() {
        let own = Arc::new(RunState::of_this_thread());
        let threads = VcpuThreads::of_one(VcpuThread {
            run_state: own.clone(),
            descriptor: -1,
        });
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
        let threads = VcpuThreads::of_one(VcpuThread {
            run_state: first.clone(),
            descriptor: -1,
        });
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
