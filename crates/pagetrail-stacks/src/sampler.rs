//! [`Sampler`]: samples the page faults of one process until it is dropped.
//!
//! A thread of its own empties the kernel's rings, so that none overflows between two rounds, and
//! keeps the cost within the budget.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use pagetrail::PageSet;
use pagetrail_trail::{Attribution, StackTable};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::events::{self, Events};
use crate::pending::{Fault, Pending};
use crate::price::Price;
use crate::record::{self, Callers, REGISTERS, Record, Sample};
use crate::space::Space;
use crate::stack_copy::{self, StackCopy};
use crate::sys::event::{
    self, Counted, SAMPLE_ADDR, SAMPLE_CALLCHAIN, SAMPLE_IP, SAMPLE_REGS_USER, SAMPLE_STACK_USER,
    SAMPLE_TID, SAMPLE_TIME, Settings, flag,
};
use crate::unwind::Unwinder;

/// Longest time between two looks at the rings while there are samples.
const LOOK: Duration = Duration::from_millis(20);
/// Longest time between two looks at the rings of a process that does not fault.
const LOOK_IDLE: Duration = Duration::from_millis(200);
const RING_BYTES: usize = 1 << 20;
const RING_BYTES_WITH_STACK: usize = 4 << 20;

/// How callers are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unwind {
    /// By frame pointers, which the kernel follows. Cheap; a program compiled without them has
    /// short stacks.
    #[default]
    FramePointers,
    /// By the unwind tables in the program's files (DWARF CFI), from a copy of the stack, of 8 KiB
    /// at most and no longer than the program's calls need. Costs several times as much per sample.
    Dwarf,
}

/// How many faults are sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Period {
    /// As many as add at most this share to the processor time of the process: all of them while
    /// they are few.
    Adaptive(f64),
    /// One of so many; with 1 the attribution is exact.
    Fixed(u32),
}

impl Default for Period {
    /// At most 5 % are added.
    fn default() -> Self {
        Self::Adaptive(0.05)
    }
}

/// How to sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Options {
    /// How callers are found.
    pub unwind: Unwind,
    /// How many faults are sampled.
    pub period: Period,
}

/// A point in time, from before a collect.
#[derive(Clone, Copy, Debug)]
pub struct Mark(u64);

/// What sampling came to so far.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Summary {
    /// Samples taken.
    pub samples: u64,
    /// Samples lost because a ring was full.
    pub lost: u64,
    /// The present period: one of so many faults is sampled.
    pub period: u32,
    /// What a sample costs the program, in nanoseconds: measured here, and for stacks as deep as
    /// those sampled.
    pub sample_ns: f64,
}

impl Summary {
    /// What sampling two processes came to: samples and losses are added, and of period and price
    /// the greater counts.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.samples += other.samples;
        self.lost += other.lost;
        self.period = self.period.max(other.period);
        self.sample_ns = self.sample_ns.max(other.sample_ns);
        self
    }
}

/// Samples the page faults of a process.
pub struct Sampler {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    sees_kernel: bool,
}

struct Shared {
    state: Mutex<State>,
    /// Becomes readable when the thread is to end.
    stop: OwnedFd,
}

struct State {
    pid: u32,
    /// The length of the copies of the stack, for DWARF.
    copy: Option<StackCopy>,
    events: Events,
    space: Space,
    pending: Pending,
    page_bytes: u64,
    price: Price,
    budget: Option<Budget>,
    /// Processor time of the process when the budget was last charged.
    charged_cpu: Duration,
    period: u32,
    /// The longest period since the last round.
    period_max: u32,
    samples: u64,
    /// Addresses in all samples.
    addresses: u64,
    lost: u64,
    /// Losses that a round has reported.
    lost_before: u64,
    /// Reused for the records of a ring, and for the addresses of a sample.
    bytes: Vec<u8>,
    chain: Vec<u64>,
}

impl Sampler {
    /// Begins to sample a running process, all its threads and those that it creates.
    ///
    /// # Errors
    ///
    /// [`Error::NotPermitted`] and [`Error::TooManyThreads`] name the cure; [`Error::Gone`].
    pub fn attach(pid: u32, options: &Options) -> Result<Self> {
        let dwarf = options.unwind == Unwind::Dwarf;
        if dwarf && !cfg!(target_arch = "x86_64") {
            return Err(Error::NoDwarf);
        }
        let period = match options.period {
            Period::Fixed(period) => period.max(1),
            Period::Adaptive(_) => 1,
        };
        let settings = permitted(&settings(dwarf, period), pid)?;
        let price = Price::measure(&settings)?;
        let ring_bytes = match dwarf {
            true => RING_BYTES_WITH_STACK,
            false => RING_BYTES,
        };
        let unwinder = dwarf.then(Unwinder::new);
        let events = Events::open(pid, settings, ring_bytes)?;
        let state = State {
            pid,
            copy: dwarf.then(StackCopy::new),
            events,
            space: Space::new(pid, unwinder),
            pending: Pending::default(),
            page_bytes: pagetrail::page_size(),
            price,
            budget: match options.period {
                Period::Adaptive(share) => Some(Budget::new(share.max(0.0))),
                Period::Fixed(_) => None,
            },
            charged_cpu: pagetrail::cpu_time(pid).unwrap_or_default(),
            period,
            period_max: period,
            samples: 0,
            addresses: 0,
            lost: 0,
            lost_before: 0,
            bytes: Vec::new(),
            chain: Vec::new(),
        };
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(Error::kernel("eventfd"))?;
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            stop,
        });
        let reader = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("pagetrail-stacks".into())
            .spawn(move || reader.run())
            .map_err(|error| Error::Kernel {
                call: "clone",
                errno: Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
            })?;
        Ok(Self {
            shared,
            thread: Some(thread),
            sees_kernel: settings.flags & flag::EXCLUDE_KERNEL == 0,
        })
    }

    /// Whether writes by the kernel, for system calls, are sampled too. They are not for a user
    /// without `CAP_PERFMON` where `kernel.perf_event_paranoid` is 2.
    pub fn sees_kernel(&self) -> bool {
        self.sees_kernel
    }

    /// The present, to be taken before a collect.
    pub fn mark(&self) -> Mark {
        Mark(now_ns())
    }

    /// Attributes the dirty pages of a round, which was collected between `began` and now. Returns
    /// with it the stacks and threads that are new since the last call.
    pub fn attribute(&mut self, began: Mark, dirty: &PageSet) -> (Attribution, StackTable) {
        let mut state = self.shared.lock();
        let ended_ns = now_ns();
        state.drain();
        let page_bytes = state.page_bytes;
        let writers = state
            .pending
            .attribute(began.0, ended_ns, page_bytes, dirty);
        for writer in &writers {
            state.space.thread(writer.thread);
        }
        let attribution = Attribution {
            period: state.period_max,
            lost: state.lost - state.lost_before,
            writers,
        };
        state.lost_before = state.lost;
        state.period_max = state.period;
        (attribution, state.space.take_new())
    }

    /// What sampling came to so far.
    pub fn summary(&self) -> Summary {
        let state = self.shared.lock();
        Summary {
            samples: state.samples,
            lost: state.lost,
            period: state.period,
            sample_ns: state.price.of(state.depth(), state.stack_bytes()),
        }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        // The counter cannot overflow by one addition.
        let _ = rustix::io::write(&self.shared.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic leaves samples out at worst.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let rings = self.ring_descriptors();
        let mut look = LOOK_IDLE;
        loop {
            let mut wanted: Vec<PollFd<'_>> = rings
                .iter()
                .map(|fd| PollFd::new(fd, PollFlags::IN))
                .collect();
            wanted.push(PollFd::new(&self.stop, PollFlags::IN));
            let timeout = look.try_into().ok();
            let polled = poll(&mut wanted, timeout.as_ref());
            let stops = wanted.last().is_some_and(|stop| !stop.revents().is_empty());
            if stops || !matches!(polled, Ok(_) | Err(Errno::INTR)) {
                return;
            }
            let mut state = self.lock();
            look = match state.drain() {
                0 => LOOK_IDLE,
                _ => LOOK,
            };
        }
    }

    /// Descriptors of the rings of this thread's own, to wait for without the lock.
    fn ring_descriptors(&self) -> Vec<OwnedFd> {
        let state = self.lock();
        let rings = state.events.rings.iter();
        rings
            .filter_map(|(_, ring)| rustix::io::fcntl_dupfd_cloexec(ring.fd(), 0).ok())
            .collect()
    }
}

impl State {
    /// Takes all samples out of the rings; returns how many there were.
    fn drain(&mut self) -> u64 {
        self.space.look_again();
        let (samples, addresses) = (self.samples, self.addresses);
        for index in 0..self.events.rings.len() {
            let mut bytes = std::mem::take(&mut self.bytes);
            bytes.clear();
            self.events.rings[index].1.read(&mut bytes);
            record::for_each(&bytes, self.copy.is_some(), |record| match record {
                Record::Sample(sample) => self.sample(&sample),
                Record::Lost(count) => self.lost = self.lost.saturating_add(count),
                Record::NewCode => self.space.remap(),
                Record::Exec => {
                    self.space.rename_threads();
                    self.space.remap();
                }
            });
            self.bytes = bytes;
        }
        let samples = self.samples - samples;
        let depth = (self.addresses - addresses) / samples.max(1);
        let price = self.price.of(depth as usize, self.stack_bytes());
        let period = self.charge(samples as f64 * price);
        let bytes = self.copy.as_mut().and_then(StackCopy::change);
        if period.is_some() || bytes.is_some() {
            self.replace_events(period.unwrap_or(self.period));
        }
        samples
    }

    fn sample(&mut self, sample: &Sample<'_>) {
        // Child processes inherit the events on kernels before 5.13.
        if sample.pid != self.pid {
            return;
        }
        let mut chain = std::mem::take(&mut self.chain);
        chain.clear();
        match (&sample.stack, &mut self.space.unwinder) {
            (Callers::Chain(bytes), _) => chain.extend(record::addresses(bytes)),
            (
                Callers::Stack {
                    registers,
                    copy,
                    is_full,
                },
                Some(unwinder),
            ) => {
                let reach = unwinder.unwind(*registers, copy, &mut chain);
                let longest = stack_copy::BYTES_MAX as usize;
                let is_cut = *is_full && reach.missing.is_some_and(|bytes| bytes <= longest);
                if let Some(length) = &mut self.copy {
                    length.note(reach.bytes, is_cut);
                }
            }
            (Callers::Stack { registers, .. }, None) => chain.push(registers.ip),
        }
        self.samples += 1;
        self.addresses += chain.len() as u64;
        let stack = self.space.stack(sample.in_kernel, &chain);
        self.chain = chain;
        self.pending.push(Fault {
            time_ns: sample.time_ns,
            page: sample.address & !(self.page_bytes - 1),
            stack,
            thread: sample.tid,
        });
    }

    /// Charges the budget; the new period if it says so.
    fn charge(&mut self, cost_ns: f64) -> Option<u32> {
        let budget = self.budget.as_mut()?;
        let now = pagetrail::cpu_time(self.pid)?;
        let used = now.saturating_sub(self.charged_cpu);
        self.charged_cpu = now;
        budget.spend(used.as_nanos() as u64, cost_ns)
    }

    /// Samples one of so many faults from now on, with a copy of the present length.
    fn replace_events(&mut self, period: u32) {
        // The process may be ending; then nothing is left to sample.
        if self.events.replace(period, self.stack_bytes()).is_ok() {
            self.period = period;
            self.period_max = self.period_max.max(period);
        }
    }

    /// Bytes of the stack that a sample has.
    fn stack_bytes(&self) -> u32 {
        self.copy.as_ref().map_or(0, StackCopy::bytes)
    }

    /// The mean number of addresses in a sample.
    fn depth(&self) -> usize {
        (self.addresses / self.samples.max(1)) as usize
    }
}

fn settings(dwarf: bool, period: u32) -> Settings {
    let common = SAMPLE_IP | SAMPLE_TID | SAMPLE_TIME | SAMPLE_ADDR;
    Settings {
        counted: Counted::MinorFaults,
        flags: flag::INHERIT | flag::INHERIT_THREAD | flag::EXCLUDE_CALLCHAIN_KERNEL,
        sample_type: common
            | match dwarf {
                true => SAMPLE_REGS_USER | SAMPLE_STACK_USER,
                false => SAMPLE_CALLCHAIN,
            },
        period: period.into(),
        registers: if dwarf { REGISTERS } else { 0 },
        stack_bytes: if dwarf { stack_copy::BYTES_MAX } else { 0 },
        wakeup_bytes: 0,
    }
}

/// The settings that this kernel and this user's rights allow, tried on the own process.
fn permitted(wanted: &Settings, pid: u32) -> Result<Settings> {
    let mut refusal = Errno::PERM;
    for inherit in [flag::INHERIT_THREAD, 0] {
        for exclude in [0, flag::EXCLUDE_KERNEL] {
            let flags = wanted.flags & !flag::INHERIT_THREAD | inherit | exclude;
            let settings = Settings { flags, ..*wanted };
            match event::open(&settings, 0, None) {
                Ok(_) => return Ok(settings),
                Err(errno) => refusal = errno,
            }
        }
    }
    Err(events::refused(refusal, pid))
}

/// `CLOCK_MONOTONIC`, by which the kernel dates samples.
fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
