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
use crate::memory::{Memory, Resolved};
use crate::processor::fault::{Exception, Fault};
use crate::processor::{Processor, Saved, Stop, cpuid};
use crate::program;
use crate::rounds::WriteLog;
use crate::rounds::link::{GuestEnd, Kind};
use crate::sys::call::Call;
use crate::sys::child::{self, Side};
use crate::sys::kvm::{Log, Vm};

/// The program in the machine, seen from its one thread.
#[derive(Debug)]
pub(crate) struct Guest {
    vm: Arc<Vm>,
    memory: Arc<Mutex<Memory>>,
    pub(crate) processor: Processor,
    /// While it is recorded.
    recording: Option<Recording>,
    path: PathBuf,
    descriptors: Vec<RawFd>,
}

/// What the program waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// A system call is to be done.
    Call(Call),
    /// It did what a signal answers.
    Signal(Fault),
}

/// What is there while the program is recorded.
#[derive(Clone, Debug)]
struct Recording {
    log: Arc<WriteLog>,
    /// Nobody, where rounds are collected in this process.
    link: Option<Arc<GuestEnd>>,
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
                    Err(error) => tracing::error!(%error, "no round"),
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
        self.processor.enter(&locked(&self.memory), &context);
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
                Needs::Signal(fault) => self.deliver(fault)?,
            };
            match calls::perform(self, &call)? {
                Next::Return(result) => self.processor.return_from_call(result),
                Next::ReturnAnew(result) => {
                    let mut context = self.processor.at_call();
                    context.rax = result as u64;
                    self.processor.enter(&locked(&self.memory), &context);
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
                        return Ok(Needs::Signal(fault));
                    }
                }
                Stop::RingFull => {
                    if let Some(log) = self.log() {
                        log.drain(&self.vm, &self.memory())?;
                    }
                }
                Stop::Interrupted => {}
                Stop::BadMemory(physical) => {
                    let address =
                        physical.and_then(|physical| self.memory().address_of_physical(physical));
                    return Ok(Needs::Signal(Fault {
                        signal: libc::SIGBUS,
                        code: libc::BUS_ADRERR,
                        address: address.unwrap_or(0),
                    }));
                }
            }
        }
    }

    /// Resolves an exception, or says which signal it is.
    fn exception(&mut self, exception: &Exception) -> Result<Option<Fault>> {
        if exception.is_ours() {
            return Err(Error::Stopped(format!(
                "exception {} in ring 0 at {:#x}",
                exception.vector, exception.frame.rip
            )));
        }
        let resolved = match exception.access() {
            Some((address, access)) => Some(self.memory().fault(&self.vm, address, access)?),
            None => None,
        };
        match resolved {
            Some(Resolved::Mapped) => Ok(None),
            _ => Ok(Some(exception.signal(resolved))),
        }
    }

    /// A signal for what the program did itself.
    fn deliver(&mut self, fault: Fault) -> Result<Call> {
        self.part()?;
        child::die_of(fault.signal)
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
        memory.add_all_slots(&vm)?;
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
        storage: Option<u64>,
    ) -> io::Result<i32> {
        let recording = self.recording.clone();
        let context = child.context;
        let mut child = Some(child);
        let pid = child::vfork(&mut || {
            // Its end is not the program's. What it writes is still written to the program's memory.
            if let Some(recording) = &mut self.recording {
                recording.link = None;
            }
            if let Some(child) = child.take()
                && let Err(error) = self.run_child(child, context, storage)
            {
                crate::end_with(&error);
            }
        });
        self.recording = recording;
        pid
    }

    fn run_child(
        &mut self,
        child: Saved,
        context: kvm_regs,
        storage: Option<u64>,
    ) -> Result<Infallible> {
        self.restore(child, context)?;
        if let Some(storage) = storage {
            self.processor.set_bases(Some(storage), None)?;
        }
        self.run()
    }

    /// Goes on from what was kept, with these registers.
    pub(crate) fn restore(&mut self, mut saved: Saved, context: kvm_regs) -> Result<()> {
        saved.context = context;
        self.processor.restore(&locked(&self.memory), &saved)
    }
}
