//! [`Guest`]: the program in the machine, and the loop that runs it.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvm_bindings::kvm_regs;

use crate::calls::{self, Next};
use crate::error::{Error, Result};
use crate::memory::{Memory, Resolved, SYSTEM_BASE};
use crate::processor::fault::{Exception, Fault};
use crate::processor::{Processor, Saved, Stop, cpuid, entry};
use crate::program;
use crate::rounds::WriteLog;
use crate::rounds::link::{GuestEnd, Kind};
use crate::signals::frame::{self, Taken};
use crate::signals::{self, Action, Signals};
use crate::sys::call::{Call, call};
use crate::sys::child::{self, Side};
use crate::sys::kvm::{Log, Vm};
use crate::sys::{program_memory, signal};

const EINTR: i64 = -(libc::EINTR as i64);

/// The program in the machine, seen from its one thread.
#[derive(Debug)]
pub(crate) struct Guest {
    vm: Arc<Vm>,
    memory: Arc<Mutex<Memory>>,
    pub(crate) processor: Processor,
    /// While it is recorded.
    recording: Option<Recording>,
    /// Whether memory that is not there is being searched.
    searches: bool,
    pub(crate) signals: Signals,
    path: PathBuf,
    descriptors: Vec<RawFd>,
}

/// What the program waits for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Needs {
    /// A system call is to be done.
    Call(Call),
    /// It did what a signal answers, with these registers.
    Fault(Fault, kvm_regs),
    /// A signal has arrived while it had these registers.
    Signal(kvm_regs),
}

/// What is there while the program is recorded.
#[derive(Clone, Debug)]
struct Recording {
    log: Arc<WriteLog>,
    /// Nobody, where rounds are collected in this process.
    link: Option<Arc<GuestEnd>>,
}

/// The number of a signal in a `siginfo_t`.
fn info_number(info: &[u8; signal::INFO_BYTES]) -> u32 {
    u32::from_le_bytes([info[0], info[1], info[2], info[3]])
}

fn locked(memory: &Mutex<Memory>) -> MutexGuard<'_, Memory> {
    // Nothing here panics while it holds the lock; if it did, the books would be as good as ever.
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Guest {
    /// A machine without a program.
    pub(crate) fn new(log: Log) -> Result<Self> {
        let vm = Vm::create(log)?;
        let bits = cpuid::physical_bits(&vm.supported_cpuid()?);
        let mut memory = Memory::new(&vm, bits)?;
        let mut processor = Processor::add(&vm, &mut memory, 0)?;
        let recording = (log != Log::Off).then(|| {
            let log = WriteLog::default();
            processor
                .take_ring()
                .into_iter()
                .for_each(|ring| log.add_ring(ring));
            Recording {
                log: Arc::new(log),
                link: None,
            }
        });
        let descriptors = vm
            .descriptors()
            .into_iter()
            .chain([processor.descriptor()])
            .collect();
        Ok(Self {
            vm: Arc::new(vm),
            memory: Arc::new(Mutex::new(memory)),
            processor,
            recording,
            searches: false,
            signals: Signals::inherited(),
            path: PathBuf::new(),
            descriptors,
        })
    }

    /// Sends rounds to who asks for them from now on.
    pub(crate) fn answer(&mut self, link: RawFd) -> Result<()> {
        let link =
            Arc::new(GuestEnd::adopt(link).map_err(Error::system("duplicate a descriptor"))?);
        self.descriptors.push(link.descriptor());
        let Some(recording) = &mut self.recording else {
            return Ok(());
        };
        recording.link = Some(link.clone());
        let (vm, memory, log) = (self.vm.clone(), self.memory.clone(), recording.log.clone());
        child::spawn_quiet("rounds", move || {
            while link.wait() {
                // The lock is held until it is sent, so that a fork finds no half of a message, and no lock held.
                let mut memory = locked(&memory);
                match log.collect(&vm, &mut memory) {
                    Ok(collected) => link.send(Kind::Answer, &collected),
                    Err(error) => {
                        tracing::error!(%error, "no round");
                        // Who asked would wait for ever.
                        link.hang_up();
                        return;
                    }
                }
            }
        })
        .map_err(Error::system("start a thread"))
    }

    /// Loads a program, which runs when [`Self::run`] is called.
    pub(crate) fn load(&mut self, found: &program::Found, environment: &[OsString]) -> Result<()> {
        let loaded = program::load(&mut self.memory(), found, environment)?;
        self.path = std::fs::canonicalize(&found.path).unwrap_or_else(|_| found.path.clone());
        self.begin_at(loaded.entry, loaded.stack_pointer);
        Ok(())
    }

    /// Begins with these two registers, and all others zero.
    pub(crate) fn begin_at(&mut self, entry: u64, stack_pointer: u64) {
        let context = kvm_regs {
            rip: entry,
            rsp: stack_pointer,
            ..Default::default()
        };
        self.enter(&context);
    }

    pub(crate) fn vm(&self) -> &Vm {
        &self.vm
    }

    pub(crate) fn memory(&self) -> MutexGuard<'_, Memory> {
        locked(&self.memory)
    }

    /// The file that was loaded.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The machine's own, ascending.
    pub(crate) fn descriptors(&self) -> &[RawFd] {
        &self.descriptors
    }

    /// Where writes are noted, while the program is recorded.
    pub(crate) fn log(&self) -> Option<&WriteLog> {
        self.recording.as_ref().map(|recording| &*recording.log)
    }

    /// Runs the program until it ends this process.
    pub(crate) fn run(&mut self) -> Result<Infallible> {
        loop {
            let call = match self.run_on()? {
                Needs::Call(call) => call,
                Needs::Fault(fault, context) => {
                    self.deliver(fault, &context)?;
                    continue;
                }
                Needs::Signal(context) => {
                    self.take_signal(context)?;
                    continue;
                }
            };
            match calls::perform(self, &call)? {
                Next::Return(result) if self.was_interrupted(result) => {
                    let mut context = self.processor.at_call();
                    context.rax = result as u64;
                    if self.begins_anew(&call, result) {
                        // To the instruction `syscall`, with what it takes.
                        context.rip -= 2;
                        context.rax = call.number;
                    }
                    self.take_signal(context)?;
                }
                Next::Return(result) => self.processor.return_from_call(result),
                Next::ReturnAnew(result) => {
                    let mut context = self.processor.at_call();
                    context.rax = result as u64;
                    self.enter(&context);
                }
                Next::Entered => {}
            }
        }
    }

    /// Runs the program until it needs more than memory.
    pub(crate) fn run_on(&mut self) -> Result<Needs> {
        loop {
            let memory = &self.memory;
            let stop = self
                .processor
                .run(|page| page.frame(locked(memory).system()))?;
            signal::let_run_no_more();
            match stop {
                Stop::Call => {
                    let regs = self.processor.raw();
                    return Ok(Needs::Call(Call {
                        number: regs.rax,
                        arguments: [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9],
                    }));
                }
                Stop::Exception(exception) => {
                    if let Some(fault) = self.exception(&exception)? {
                        let context = self.processor.at_exception(&exception.frame);
                        return Ok(Needs::Fault(fault, context));
                    }
                }
                Stop::RingFull => {
                    if let Some(log) = self.log() {
                        log.drain(&self.vm)?;
                    }
                }
                Stop::Interrupted if signal::has_arrived() => match self.at_stop()? {
                    Some(context) => return Ok(Needs::Signal(context)),
                    // Once: it comes out by itself, and then it is where one can be taken.
                    None => signal::let_run(),
                },
                Stop::Interrupted => {}
                Stop::BadMemory => self.search_bad_memory()?,
            }
        }
    }

    /// Resolves an exception, or says which signal it is.
    fn exception(&mut self, exception: &Exception) -> Result<Option<Fault>> {
        if exception.frame.rip == SYSTEM_BASE + entry::CALL {
            // Seen on a KVM that emulates what hardware lacks.
            return Err(Error::Lacks("SYSCALL that enters ring 0"));
        }
        if exception.is_ours() {
            return Err(Error::Stopped(format!(
                "exception {} in ring 0 at {:#x}",
                exception.vector, exception.frame.rip
            )));
        }
        let Some((address, access)) = exception.access() else {
            return Ok(Some(exception.signal(None)));
        };
        let resolved = self
            .memory()
            .fault(&self.vm, address, access, self.searches)?;
        if resolved != Resolved::Mapped {
            return Ok(Some(exception.signal(Some(resolved))));
        }
        if self.searches && program_memory::read(address, &mut [0]).is_err() {
            self.searches = false;
            return Ok(Some(exception.beyond_the_file()));
        }
        Ok(None)
    }

    /// The program has touched what is mapped and has no memory: behind the end of a file. KVM does not say where; but the
    /// processor does, page by page, when the tables are empty.
    fn search_bad_memory(&mut self) -> Result<()> {
        let Some(context) = self.at_stop()? else {
            return Err(Error::Stopped("its own memory is not there".into()));
        };
        self.searches = true;
        self.memory().forget_all();
        self.enter(&context);
        Ok(())
    }

    /// Lets the program go on with these registers.
    pub(crate) fn enter(&mut self, context: &kvm_regs) {
        self.processor.enter(&locked(&self.memory), context);
    }

    fn at_stop(&mut self) -> Result<Option<kvm_regs>> {
        self.processor.at_stop(&locked(&self.memory))
    }

    /// Whether a call has ended, or not begun, because a signal has arrived.
    fn was_interrupted(&self, result: i64) -> bool {
        signal::has_arrived() && matches!(result, signal::NOT_BEGUN | EINTR)
    }

    /// Whether such a call is made again, when the handler has returned.
    fn begins_anew(&self, call: &Call, result: i64) -> bool {
        let number = signal::arrived_number().unwrap_or_default();
        let restarts = self
            .signals
            .action(number)
            .is_some_and(|action| action.restarts());
        result == signal::NOT_BEGUN || restarts && !signals::never_restarts(call.number)
    }

    /// Begins the handler of the signal that has arrived, behind which these registers are restored.
    fn take_signal(&mut self, context: kvm_regs) -> Result<()> {
        let Some(info) = signal::take() else {
            return Ok(());
        };
        let number = info_number(&info);
        match self.signals.begin(number) {
            Some(action) => self.begin_handler(number, &action, &context, &info, [0; 3]),
            None => {
                // The program has changed its mind since: the kernel decides.
                self.enter(&context);
                self.signals.set_mask(self.signals.mask);
                call(libc::SYS_kill, &[std::process::id().into(), number.into()]);
                Ok(())
            }
        }
    }

    /// A signal for what the program did itself: its handler begins, or it ends.
    fn deliver(&mut self, fault: Fault, context: &kvm_regs) -> Result<()> {
        let number = fault.signal as u32;
        if !self.signals.takes_fault(number) {
            self.part()?;
            child::die_of(fault.signal)
        }
        let mut info = [0; signal::INFO_BYTES];
        info[..4].copy_from_slice(&fault.signal.to_le_bytes());
        info[8..12].copy_from_slice(&fault.code.to_le_bytes());
        info[16..24].copy_from_slice(&fault.address.to_le_bytes());
        let action = self.signals.begin(number).unwrap_or_default();
        let detail = [fault.vector.into(), fault.error, fault.address];
        self.begin_handler(number, &action, context, &info, detail)
    }

    fn begin_handler(
        &mut self,
        number: u32,
        action: &Action,
        context: &kvm_regs,
        info: &[u8; signal::INFO_BYTES],
        fault: [u64; 3],
    ) -> Result<()> {
        let frame = frame::build(&Taken {
            context,
            mask: self.signals.mask,
            stack: self.signals.stack,
            info,
            restorer: action.restorer,
            flags: action.flags,
            state: &self.processor.state()?,
            parts: self.processor.state_parts(),
            fault,
        });
        if program_memory::write(frame.address, &frame.bytes).is_err() {
            return self.kill_by_fault();
        }
        if let Some(log) = self.log() {
            log.note(frame.address, frame.bytes.len() as u64);
        }
        let begun = kvm_regs {
            rip: action.handler,
            rsp: frame.address,
            rdi: number.into(),
            rsi: frame.info(),
            rdx: frame.context(),
            rax: 0,
            // Direction and trap flags are down in a handler.
            rflags: context.rflags & !0x500,
            ..*context
        };
        self.enter(&begun);
        let mask = self.signals.mask_in(number, action);
        self.signals.set_mask(mask);
        Ok(())
    }

    /// Ends a program whose stack cannot take a handler's frame, or has none.
    pub(crate) fn kill_by_fault(&self) -> Result<()> {
        self.part()?;
        child::die_of(libc::SIGSEGV)
    }

    /// Sends what was written so far, if somebody records.
    pub(crate) fn send_round(&self, kind: Kind) -> Result<()> {
        if let Some(Recording {
            log,
            link: Some(link),
        }) = &self.recording
        {
            let mut memory = self.memory();
            let collected = log.collect(&self.vm, &mut memory)?;
            link.send(kind, &collected);
        }
        Ok(())
    }

    /// Sends the last round, and waits until the recorder has it.
    pub(crate) fn part(&self) -> Result<()> {
        self.send_round(Kind::Last)?;
        if let Some(Recording {
            link: Some(link), ..
        }) = &self.recording
        {
            link.wait_for_farewell();
        }
        Ok(())
    }

    /// Takes a round in this process.
    pub(crate) fn collect(&self) -> Result<crate::Collected> {
        match self.log() {
            Some(log) => log.collect(&self.vm, &mut self.memory()),
            None => Ok(crate::Collected::default()),
        }
    }

    /// `fork(2)`, while nothing of the machine is in the middle of something.
    pub(crate) fn fork(&self) -> io::Result<Side> {
        let _memory = self.memory();
        child::fork()
    }

    /// In a forked child: a machine of its own, over its copy of the memory. Nobody records it.
    pub(crate) fn become_child(&mut self, saved: &Saved) -> Result<()> {
        self.recording = None;
        let vm = Vm::create(Log::Off)?;
        let mut memory = locked(&self.memory);
        memory.begin_child(&vm)?;
        self.processor = Processor::add(&vm, &mut memory, 0)?;
        self.processor.restore(&memory, saved)?;
        drop(memory);
        self.descriptors = vm
            .descriptors()
            .into_iter()
            .chain([self.processor.descriptor()])
            .collect();
        self.vm = Arc::new(vm);
        Ok(())
    }

    /// Runs a child that shares this process's memory, on this processor, until it has another program or none.
    pub(crate) fn run_vfork_child(
        &mut self,
        child: Saved,
        begin: &dyn Fn(&mut Self) -> Result<()>,
    ) -> io::Result<i32> {
        let (recording, signals) = (self.recording.clone(), self.signals.clone());
        let context = child.context;
        let mut child = Some(child);
        let pid = child::vfork(&mut || {
            // Its end is not the program's. What it writes is still written to the program's memory.
            if let Some(recording) = &mut self.recording {
                recording.link = None;
            }
            if let Some(child) = child.take()
                && let Err(error) = self.run_child(child, context, begin)
            {
                crate::end_with(&error);
            }
        });
        self.recording = recording;
        // The child has had its own, but in the same memory.
        self.signals = signals;
        pid
    }

    fn run_child(
        &mut self,
        child: Saved,
        context: kvm_regs,
        begin: &dyn Fn(&mut Self) -> Result<()>,
    ) -> Result<Infallible> {
        self.restore(child, context)?;
        begin(self)?;
        self.run()
    }

    /// Goes on from what was kept, with these registers.
    pub(crate) fn restore(&mut self, mut saved: Saved, context: kvm_regs) -> Result<()> {
        saved.context = context;
        self.processor.restore(&locked(&self.memory), &saved)
    }
}
