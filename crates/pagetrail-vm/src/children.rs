//! Child processes: a forked child has its own virtual machine over its copy of the memory; a child
//! of `vfork(2)` uses the vCPU of the thread that waits for it.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::Result;
use crate::follow::Follow;
use crate::guest::{Guest, Recording, own_descriptors, threads_of_one};
use crate::processor::{Processor, Saved};
use crate::sys::child::{self, Side};
use crate::sys::kvm::Log;
use crate::sys::{descriptors, signal};

impl Guest {
    /// `fork(2)` with the machine's locks held, so that the child finds consistent state, with the
    /// given flags and the signal of `clone(2)` at the child's end.
    pub(crate) fn fork(&self, flags: i32) -> io::Result<Side> {
        let mut table = self.threads.table();
        let memory = self.memory();
        let actions = self.signals.actions();
        let descriptors = self.lock_descriptors();
        let side = child::fork(flags)?;
        drop((memory, actions, descriptors));
        if side == Side::Child {
            for descriptor in table.abandon_others(&self.run_state) {
                descriptors::close_inherited(descriptor);
            }
        }
        Ok(side)
    }

    /// Creates the virtual machine of a forked child, which has only this thread, over its copy of
    /// the memory. The child is recorded where it is followed, and sends its own rounds.
    pub(crate) fn become_child(&mut self, saved: &Saved) -> Result<()> {
        let before = self.descriptors();
        let follow = self.follow.as_deref();
        let link = follow.and_then(Follow::announce_child);
        // Without anybody who collects, nothing is logged.
        let log = link.as_ref().map_or(Log::Off, |_| self.vm.log());
        let accesses = link.is_some() && follow.is_some_and(Follow::tracks_accesses);
        let vm = self.vm.create_another(log)?;
        let mut memory = self.memory();
        memory.begin_child(&vm, accesses)?;
        let mut processor = Processor::add(&vm, &mut memory, 0)?;
        processor.restore(&memory, saved)?;
        drop(memory);
        processor.bind_to_this_thread();
        self.is_vforked = false;
        self.run_state.bind_to_this_thread();
        self.recording = Recording::begin(log, &mut processor);
        if let Some(log) = self.log().filter(|_| accesses) {
            log.track_accesses(&mut self.memory());
        }
        let mut descriptors = own_descriptors(&vm, &processor);
        descriptors.extend(self.follow.iter().flat_map(|follow| follow.descriptors()));
        descriptors.sort_unstable();
        self.threads = Arc::new(threads_of_one(&self.run_state, &processor));
        self.processor = processor;
        self.vm = Arc::new(vm);
        // What is left are descriptors of the parent's machine. Threads of the parent own them,
        // which do not exist here. Its recorder would not see the parent's end while this process
        // has the link.
        let kept = |number: &i32| descriptors.contains(number);
        let left = before.into_iter().filter(|number| !kept(number));
        left.for_each(descriptors::close_inherited);
        self.descriptors = Arc::new(Mutex::new(descriptors));
        match link {
            Some(link) => self.connect(link),
            None => Ok(()),
        }
    }

    /// Runs a child that shares this process's memory, on this vCPU, until it has executed another
    /// program or ended. All signals are blocked in the parent meanwhile, and in the child at
    /// first. Returns the child's PID, and a descriptor for it if the flags request one.
    pub(crate) fn run_vfork_child(
        &mut self,
        child: &Saved,
        flags: i32,
        begin: &dyn Fn(&mut Self) -> Result<()>,
    ) -> io::Result<(i32, Option<i32>)> {
        let (recording, signals) = (self.recording.clone(), self.signals.clone());
        self.signals = signals.of_child();
        let was_vforked = std::mem::replace(&mut self.is_vforked, true);
        let pid = child::vfork(flags, &mut || {
            // The child's end is not the program's, so that it sends no final round. What it writes
            // goes to the program's memory, and is still logged.
            if let Some(recording) = &mut self.recording {
                recording.link = None;
            }
            self.run_state.bind_to_this_thread();
            if let Err(error) = self.run_child(child, begin) {
                crate::end_with(&error);
            }
        });
        // The child has overwritten the word, since it shares this memory.
        self.run_state.bind_to_this_thread();
        self.recording = recording;
        self.signals = signals;
        self.is_vforked = was_vforked;
        // What the child has executed a program with.
        self.executing = None;
        signal::discard_pending();
        pid
    }

    fn run_child(&mut self, child: &Saved, begin: &dyn Fn(&mut Self) -> Result<()>) -> Result<()> {
        self.restore(child)?;
        begin(self)?;
        self.run()
    }

    /// Continues from saved state.
    pub(crate) fn restore(&mut self, saved: &Saved) -> Result<()> {
        let memory = self.memory.clone();
        let memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
        self.processor.restore(&memory, saved)
    }
}
