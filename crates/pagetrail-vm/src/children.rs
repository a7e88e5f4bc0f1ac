//! Child processes: one with a machine of its own over its copy of the memory, or one that borrows the processor of the
//! thread that waits for it.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::Result;
use crate::guest::{Guest, own_descriptors, threads_of_one};
use crate::processor::{Processor, Saved};
use crate::sys::child::{self, Side};
use crate::sys::kvm::Log;
use crate::sys::{descriptors, signal};

impl Guest {
    /// `fork(2)`, while nothing of the machine is in the middle of something; with these flags and this signal at the child's end
    /// (`clone(2)`).
    pub(crate) fn fork(&self, flags: i32) -> io::Result<Side> {
        let mut table = self.threads.table();
        let memory = self.memory();
        let actions = self.signals.actions();
        let side = child::fork(flags)?;
        drop((memory, actions));
        if side == Side::Child {
            for descriptor in table.abandon_others(&self.run_state) {
                descriptors::close_inherited(descriptor);
            }
        }
        Ok(side)
    }

    /// In a forked child, which has this thread only: a machine of its own, over its copy of the memory. Nobody records it.
    pub(crate) fn become_child(&mut self, saved: &Saved) -> Result<()> {
        self.recording = None;
        let vm = self.vm.create_another(Log::Off)?;
        let mut memory = self.memory();
        memory.begin_child(&vm)?;
        let mut processor = Processor::add(&vm, &mut memory, 0)?;
        processor.restore(&memory, saved)?;
        drop(memory);
        processor.bind_to_this_thread();
        self.is_vforked = false;
        self.run_state.bind_to_this_thread();
        self.descriptors = Arc::new(Mutex::new(own_descriptors(&vm, &processor)));
        self.threads = Arc::new(threads_of_one(&self.run_state, &processor));
        self.processor = processor;
        self.vm = Arc::new(vm);
        Ok(())
    }

    /// Runs a child that shares this process's memory, on this processor, until it has another program or none. All
    /// signals are blocked meanwhile here, and at first there. Its PID, and a descriptor for it if the flags want one.
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
            // Its end is not the program's. What it writes is still written to the program's memory.
            if let Some(recording) = &mut self.recording {
                recording.link = None;
            }
            self.run_state.bind_to_this_thread();
            if let Err(error) = self.run_child(child, begin) {
                crate::end_with(&error);
            }
        });
        // The child has had its own, but in the same memory.
        self.run_state.bind_to_this_thread();
        self.recording = recording;
        self.signals = signals;
        self.is_vforked = was_vforked;
        signal::discard_pending();
        pid
    }

    fn run_child(&mut self, child: &Saved, begin: &dyn Fn(&mut Self) -> Result<()>) -> Result<()> {
        self.restore(child)?;
        begin(self)?;
        self.run()
    }

    /// Goes on from what was kept.
    pub(crate) fn restore(&mut self, saved: &Saved) -> Result<()> {
        let memory = self.memory.clone();
        let memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
        self.processor.restore(&memory, saved)
    }
}
