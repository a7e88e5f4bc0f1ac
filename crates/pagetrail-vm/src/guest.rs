//! [`Guest`]: the program as a guest, and the loop that runs it.

use std::ffi::OsString;
use std::mem;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvm_bindings::kvm_regs;

use crate::calls::{Next, own};
use crate::error::{Error, Result};
use crate::follow::{self, Executing, Follow};
use crate::memory::{Memory, Resolved, SYSTEM_BASE};
use crate::processor::fault::{Exception, Fault};
use crate::processor::{Processor, Stop, cpuid, entry};
use crate::program;
use crate::rounds::WriteLog;
use crate::rounds::control::server::ControlServer;
use crate::rounds::link::{GuestEnd, MessageKind};
use crate::rounds::mappings;
use crate::rounds::server::RoundServer;
use crate::rounds::unit_change::UnitChange;
use crate::signals::{Signals, mask_during};
use crate::standing::StateLayout;
use crate::sys::call::Call;
use crate::sys::child;
use crate::sys::kvm::{Log, Vm};
use crate::sys::{program_memory, signal};
use crate::trial;
use crate::vcpu_threads::{RunState, Stopped, VcpuThread, VcpuThreads};

/// The number of faults that are checked one by one for memory that is missing: more than one
/// instruction can cause.
const SEARCH_FAULTS: u32 = 64;

/// The program as a guest, as seen by one of its threads, which has its own vCPU.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) vm: Arc<Vm>,
    pub(crate) memory: Arc<Mutex<Memory>>,
    pub(crate) processor: Processor,
    pub(crate) threads: Arc<VcpuThreads>,
    pub(crate) run_state: Arc<RunState>,
    /// Present while the program is recorded.
    pub(crate) recording: Option<Recording>,
    /// Whether the program uses its own write set.
    pub(crate) keeps_own: Arc<AtomicBool>,
    /// The number of further faults that may be about missing memory.
    searches: u32,
    pub(crate) signals: Signals,
    path: Arc<Path>,
    pub(crate) descriptors: Arc<Mutex<Vec<RawFd>>>,
    /// The address of the word that the kernel clears when the thread ends (`set_tid_address(2)`);
    /// 0 for none.
    pub(crate) cleared_at_end: u64,
    /// Whether this is a child of `vfork(2)`: another process, on its parent's vCPU.
    pub(crate) is_vforked: bool,
    /// Present where executed programs become guests.
    pub(crate) follow: Option<Arc<Follow>>,
    /// Present while a program is being executed so.
    pub(crate) executing: Option<Box<Executing>>,
}

/// What the program has stopped for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum GuestEvent {
    /// The program made a system call.
    Call(Call),
    /// The program caused an exception that is a signal, with these registers.
    Fault(Fault, kvm_regs),
    /// A signal is pending, and the program has these registers.
    Signal(kvm_regs),
}

/// The state of a recording.
#[derive(Clone, Debug)]
pub(crate) struct Recording {
    log: Arc<WriteLog>,
    /// `None` where rounds are collected in this process.
    pub(crate) link: Option<Arc<GuestEnd>>,
}

impl Recording {
    /// Begins with the first vCPU of a virtual machine that logs so; `None` where it does not log.
    pub(crate) fn begin(log: Log, processor: &mut Processor) -> Option<Self> {
        if log == Log::Off {
            return None;
        }
        let log = WriteLog::default();
        let ring = processor.take_ring();
        ring.into_iter().for_each(|ring| log.add_ring(ring));
        Some(Self {
            log: Arc::new(log),
            link: None,
        })
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics while it holds this lock. If one did, the state would still be consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn threads_of_one(run_state: &Arc<RunState>, processor: &Processor) -> VcpuThreads {
    let thread = VcpuThread {
        run_state: run_state.clone(),
        descriptor: processor.descriptor(),
    };
    VcpuThreads::of_one(thread, StateLayout::of(processor))
}

/// The descriptors of a machine with one vCPU, ascending.
pub(crate) fn own_descriptors(vm: &Vm, processor: &Processor) -> Vec<RawFd> {
    let mut all: Vec<RawFd> = vm.descriptors().into();
    all.push(processor.descriptor());
    all.sort_unstable();
    all
}

impl Guest {
    /// Creates a machine without a program.
    pub(crate) fn new(log: Log) -> Result<Self> {
        Self::on(Vm::create(log)?)
    }

    /// Creates a machine without a program on a virtual machine.
    pub(crate) fn on(vm: Vm) -> Result<Self> {
        let log = vm.log();
        let bits = cpuid::physical_bits(&vm.supported_cpuid()?);
        let mut memory = Memory::new(&vm, bits)?;
        let mut processor = Processor::add(&vm, &mut memory, 0)?;
        processor.bind_to_this_thread();
        let recording = Recording::begin(log, &mut processor);
        let run_state = Arc::new(RunState::of_this_thread());
        Ok(Self {
            descriptors: Arc::new(Mutex::new(own_descriptors(&vm, &processor))),
            threads: Arc::new(threads_of_one(&run_state, &processor)),
            run_state,
            vm: Arc::new(vm),
            memory: Arc::new(Mutex::new(memory)),
            processor,
            recording,
            keeps_own: Arc::default(),
            searches: 0,
            signals: Signals::inherited(),
            path: Path::new("").into(),
            cleared_at_end: 0,
            is_vforked: false,
            follow: None,
            executing: None,
        })
    }

    /// The guest as seen by a thread that this one starts, on this vCPU.
    pub(crate) fn for_new_thread(&self, processor: Processor, run_state: Arc<RunState>) -> Self {
        Self {
            vm: self.vm.clone(),
            memory: self.memory.clone(),
            processor,
            threads: self.threads.clone(),
            run_state,
            recording: self.recording.clone(),
            keeps_own: self.keeps_own.clone(),
            searches: 0,
            signals: self.signals.of_new_thread(),
            path: self.path.clone(),
            descriptors: self.descriptors.clone(),
            cleared_at_end: 0,
            is_vforked: false,
            follow: self.follow.clone(),
            executing: None,
        }
    }

    /// Makes programs that this one executes guests.
    pub(crate) fn set_follow(&mut self, follow: Follow) {
        self.reserve(follow.descriptors());
        self.follow = Some(Arc::new(follow));
    }

    /// Keeps descriptors from the program.
    pub(crate) fn reserve(&self, more: impl Iterator<Item = RawFd>) {
        let mut descriptors = locked(&self.descriptors);
        descriptors.extend(more);
        descriptors.sort_unstable();
    }

    /// Adds a vCPU, whose writes are logged if the program is recorded.
    pub(crate) fn add_processor(&self, id: u64) -> Result<Processor> {
        let mut processor = Processor::add(&self.vm, &mut self.memory(), id)?;
        if let Some(log) = self.log() {
            let ring = processor.take_ring();
            ring.into_iter().for_each(|ring| log.add_ring(ring));
        }
        self.reserve([processor.descriptor()].into_iter());
        Ok(processor)
    }

    /// Serves requests for rounds on `link` from now on.
    pub(crate) fn serve_rounds(&mut self, link: GuestEnd) -> Result<()> {
        self.connect(link)?;
        self.signals.set_mask(self.signals.mask);
        Ok(())
    }

    /// Like [`Self::serve_rounds`], but the caller must set this thread's mask again.
    pub(crate) fn connect(&mut self, link: GuestEnd) -> Result<()> {
        self.reserve([link.descriptor()].into_iter());
        let Some(recording) = &mut self.recording else {
            return Ok(());
        };
        let link = Arc::new(link);
        recording.link = Some(link.clone());
        // The recorder may hold the program, also one with a single thread.
        signal::enable_kicks();
        let server = RoundServer {
            link,
            vm: self.vm.clone(),
            memory: self.memory.clone(),
            log: recording.log.clone(),
            threads: self.threads.clone(),
        };
        let control = ControlServer::new(
            self.memory.clone(),
            recording.log.clone(),
            self.threads.clone(),
            self.descriptors.clone(),
        );
        let control = control.map_err(Error::system("make a pair of sockets"))?;
        self.reserve(control.numbers().into_iter());
        child::spawn_quiet("rounds", move || server.serve())
            .and_then(|()| child::spawn_quiet("control", move || control.serve()))
            .map_err(Error::system("start a thread"))
    }

    /// Loads a program; [`Self::run`] starts it.
    pub(crate) fn load(&mut self, found: &program::Found, environment: &[OsString]) -> Result<()> {
        trial::offer_vdso(self)?;
        let loaded = program::load(&mut self.memory(), found, environment)?;
        let path = follow::path_of(&found.file);
        self.path = path.unwrap_or_else(|_| found.path.clone()).into();
        if let Some(follow) = &self.follow {
            self.reserve(follow.keep(&found.file).into_iter());
        }
        self.memory().auxiliary = program::auxiliary::above(loaded.stack_pointer);
        self.begin_at(loaded.entry, loaded.stack_pointer);
        Ok(())
    }

    /// Starts with these two registers, and all others zero.
    pub(crate) fn begin_at(&mut self, entry: u64, stack_pointer: u64) {
        let context = kvm_regs {
            rip: entry,
            rsp: stack_pointer,
            ..Default::default()
        };
        self.enter(&context);
    }

    #[cfg(feature = "test-equipment")]
    pub(crate) fn vm(&self) -> &Vm {
        &self.vm
    }

    pub(crate) fn memory(&self) -> MutexGuard<'_, Memory> {
        locked(&self.memory)
    }

    /// The path of the loaded program.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The machine's own descriptors, ascending.
    pub(crate) fn descriptors(&self) -> Vec<RawFd> {
        self.lock_descriptors().clone()
    }

    pub(crate) fn lock_descriptors(&self) -> MutexGuard<'_, Vec<RawFd>> {
        locked(&self.descriptors)
    }

    /// Removes a descriptor that has been closed.
    pub(crate) fn forget_descriptor(&self, descriptor: RawFd) {
        locked(&self.descriptors).retain(|own| *own != descriptor);
    }

    /// The log of dirty pages, while the program is recorded.
    pub(crate) fn log(&self) -> Option<&WriteLog> {
        self.recording.as_ref().map(|recording| &*recording.log)
    }

    /// Whether the program uses its own write set.
    pub(crate) fn keeps_own(&self) -> bool {
        self.keeps_own.load(Ordering::SeqCst)
    }

    /// Notes that the kernel, or the machine in its place, has written here.
    pub(crate) fn note_written(&self, address: u64, bytes: u64) -> Result<()> {
        if let Some(log) = self.log() {
            log.note(address, bytes);
        }
        match self.keeps_own() {
            true => self.memory().mark_written(address, bytes),
            false => Ok(()),
        }
    }

    /// Merges and separates aliases, as the program requests.
    pub(crate) fn change_units(&self, changes: &[UnitChange]) -> Result<()> {
        let separates = self.memory().separates(changes);
        // Before the memory is locked, as for a hold.
        let stopped = separates.then(|| self.threads.stop_others(&self.run_state));
        let mut memory = self.memory();
        let has_apart = || self.threads.may_have_apart();
        if let Some(log) = self.log() {
            let is_still = stopped.is_some();
            return log.change_units(&self.vm, &mut memory, changes, is_still, has_apart);
        }
        memory.change_units(&self.vm, changes)?;
        if stopped.is_some() {
            memory.flush()?;
            if !has_apart() {
                memory.units().settle();
            }
        }
        Ok(())
    }

    /// Runs the thread until it ends. Does not return where the process ends.
    pub(crate) fn run(&mut self) -> Result<()> {
        loop {
            let call = match self.run_until_event()? {
                GuestEvent::Call(call) => call,
                GuestEvent::Fault(fault, context) => {
                    self.deliver(fault, &context)?;
                    continue;
                }
                GuestEvent::Signal(context) => {
                    self.take_signal(context, None)?;
                    continue;
                }
            };
            let (next, is_anew) = self.perform_held(&call)?;
            match next {
                Next::Return(_) if is_anew => {
                    let context = self.call_anew(&call);
                    self.enter(&context);
                }
                Next::Return(result) if self.was_interrupted(result) => {
                    let mut context = self.processor.at_call();
                    context.rax = result as u64;
                    if self.restarts_call(&call, result) {
                        context = self.call_anew(&call);
                    }
                    let waited = result != signal::NOT_STARTED;
                    let during = waited.then(|| mask_during(&call)).flatten();
                    self.take_signal(context, during)?;
                }
                Next::Return(result) => self.processor.return_from_call(result),
                Next::ReturnAndFlush(result) => {
                    let mut context = self.processor.at_call();
                    context.rax = result as u64;
                    self.enter(&context);
                }
                Next::Entered => {}
                Next::Ended => return Ok(()),
            }
        }
    }

    /// Runs the program until an event other than a page fault in mapped memory.
    pub(crate) fn run_until_event(&mut self) -> Result<GuestEvent> {
        let mut runs_on = false;
        loop {
            let (memory, processor) = (&self.memory, &mut self.processor);
            let run = || processor.run();
            let enters = self.is_vforked || runs_on;
            let Some(exit) = self.threads.in_guest(&self.run_state, enters, run) else {
                runs_on = !self.stand()?;
                continue;
            };
            runs_on = false;
            signal::clear_run_request();
            let stop = processor.stop(exit, |page| page.frame(locked(memory).system()))?;
            match stop {
                Stop::Call => {
                    let regs = self.processor.raw();
                    return Ok(GuestEvent::Call(Call {
                        number: regs.rax,
                        arguments: [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9],
                    }));
                }
                Stop::Exception(exception) => {
                    if let Some(fault) = self.exception(&exception)? {
                        let context = self.processor.at_exception(&exception.frame);
                        // A pending signal comes first, since the fault's handler may run with it
                        // blocked.
                        return Ok(match signal::is_pending() && exception.is_repeated() {
                            true => GuestEvent::Signal(context),
                            false => GuestEvent::Fault(fault, context),
                        });
                    }
                }
                Stop::RingFull => {
                    if let Some(log) = self.log() {
                        log.drain(&self.vm)?;
                    }
                }
                Stop::Interrupted if signal::is_pending() => match self.at_stop()? {
                    Some(context) => return Ok(GuestEvent::Signal(context)),
                    // Let it run once: it exits by itself, at a place where the signal can be
                    // taken.
                    None => signal::request_run(),
                },
                Stop::Interrupted => {}
                Stop::BadMemory => self.search_bad_memory()?,
            }
        }
    }

    /// Resolves an exception, or returns the signal that it causes.
    fn exception(&mut self, exception: &Exception) -> Result<Option<Fault>> {
        if exception.frame.rip == SYSTEM_BASE + entry::CALL {
            // A KVM that emulates instructions does this.
            return Err(Error::Lacks("SYSCALL that enters ring 0"));
        }
        if exception.is_ours() {
            return Err(Error::Stopped(format!(
                "exception {} in ring 0 at {:#x}",
                exception.vector, exception.frame.rip
            )));
        }
        if exception.is_arithmetic() {
            return Ok(exception.arithmetic(&self.processor.state()?));
        }
        if exception.is_debugging() {
            return Ok(Some(exception.debugging(self.processor.takes_steps()?)));
        }
        let Some((address, access)) = exception.access() else {
            return Ok(Some(exception.signal(None)));
        };
        let searches = self.searches > 0;
        let resolved = self.memory().fault(&self.vm, address, access, searches)?;
        match resolved {
            Resolved::Mapped => {}
            Resolved::Recorded => own::record(self, address, Some(exception.frame.rip))?,
            Resolved::NothingThere | Resolved::Forbidden => {
                return Ok(Some(exception.signal(Some(resolved))));
            }
        }
        self.searches = self.searches.saturating_sub(1);
        if searches && program_memory::read(address, &mut [0]).is_err() {
            self.searches = 0;
            return Ok(Some(exception.beyond_the_file()));
        }
        Ok(None)
    }

    /// Finds the access to a mapped page without memory, beyond the end of a file. KVM does not
    /// report the address. The vCPU does, fault by fault, once the page tables are empty. A fault
    /// that another thread fills meanwhile is found the next time.
    fn search_bad_memory(&mut self) -> Result<()> {
        let Some(context) = self.at_stop()? else {
            return Err(Error::Stopped("the machine's own memory is missing".into()));
        };
        self.searches = SEARCH_FAULTS;
        self.memory().clear_all_entries();
        self.enter(&context);
        Ok(())
    }

    /// Continues the program with these registers.
    pub(crate) fn enter(&mut self, context: &kvm_regs) {
        self.processor.enter(&locked(&self.memory), context);
    }

    pub(crate) fn at_stop(&mut self) -> Result<Option<kvm_regs>> {
        self.processor.at_stop(&locked(&self.memory))
    }

    /// Sends a round, if a recorder is connected.
    pub(crate) fn send_round(&self, kind: MessageKind) -> Result<()> {
        if let Some(Recording {
            log,
            link: Some(link),
        }) = &self.recording
        {
            let mut memory = self.memory();
            let mut collected = log.collect(&self.vm, &mut memory)?;
            if matches!(kind, MessageKind::PreExec | MessageKind::PreFollowed) {
                mappings::forget_unused(&mut collected);
            }
            link.send(kind, &collected);
        }
        Ok(())
    }

    /// Stops the other threads and sends a round of a process that is about to end or to execute
    /// another program, if a recorder is connected. The other threads stay stopped until the
    /// returned guard is dropped.
    pub(crate) fn send_round_stopped(&self, kind: MessageKind) -> Result<Option<Stopped<'_>>> {
        let Some(Recording { link: Some(_), .. }) = &self.recording else {
            return Ok(None);
        };
        let stopped = self.threads.stop_others(&self.run_state);
        self.send_round(kind)?;
        Ok(Some(stopped))
    }

    /// Sends the final round, and waits until the recorder has processed it. No other thread writes
    /// afterwards.
    pub(crate) fn send_final_round(&self) -> Result<()> {
        let stopped = self.send_round_stopped(MessageKind::Final)?;
        if let Some(Recording {
            link: Some(link), ..
        }) = &self.recording
        {
            link.wait_for_ack();
        }
        // The process ends with the other threads still stopped.
        mem::forget(stopped);
        Ok(())
    }

    /// Collects a round in this process.
    pub(crate) fn collect(&self) -> Result<crate::Collected> {
        match self.log() {
            Some(log) => log.collect(&self.vm, &mut self.memory()),
            None => Ok(crate::Collected::default()),
        }
    }
}
