//! What a thread of the program does for the holder of the program ([`crate::standing`]): it shows
//! its registers, takes others, and makes a system call anew that was ended.

use std::sync::PoisonError;

use kvm_bindings::kvm_regs;

use crate::calls::{self, Next};
use crate::error::Result;
use crate::guest::Guest;
use crate::standing::{CALL_BYTES, held_thread};
use crate::sys::call::Call;
use crate::sys::signal;

impl Guest {
    /// Performs a call. Returns also whether it is to be made anew, since the holder of the program
    /// has ended it.
    pub(crate) fn perform_held(&mut self, call: &Call) -> Result<(Next, bool)> {
        // A child of `vfork(2)` is in a call of its parent's, which waits in it.
        if self.is_vforked || !calls::may_begin_anew(call) {
            return Ok((calls::perform(self, call)?, false));
        }
        self.run_state.standing.begin_call(self.signals.mask);
        let next = calls::perform(self, call);
        let was_ended = self.run_state.standing.end_call();
        let next = next?;
        let is_anew = was_ended && next == Next::Return(signal::EINTR) && !signal::is_pending();
        Ok((next, is_anew))
    }

    /// The registers at a call that is to be made again: at the instruction `syscall`, with its
    /// arguments.
    pub(crate) fn call_anew(&mut self, call: &Call) -> kvm_regs {
        let context = self.processor.at_call();
        kvm_regs {
            rip: context.rip - CALL_BYTES,
            rax: call.number,
            ..context
        }
    }

    /// Shows the program's registers to its holder, or takes those that were set. Returns false
    /// where the vCPU must first run on in ring 0, to a place where the program has registers.
    pub(crate) fn stand(&mut self) -> Result<bool> {
        if let Some(thread) = self.run_state.standing.take_new() {
            let memory = self.memory.clone();
            let memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
            self.processor.resume_with(&memory, &thread)?;
            drop(memory);
            self.signals.set_mask(thread.blocked_signals);
            return Ok(true);
        }
        // A vCPU that has exited at an instruction completes that when it is run again, also where
        // it exits at once, before it runs anything of the guest.
        signal::request_exit();
        self.processor.run();
        signal::request_run();
        let Some(context) = self.at_stop()? else {
            return Ok(false);
        };
        signal::clear_run_request();
        self.enter(&context);
        let (fs, gs) = self.processor.bases()?;
        let thread = held_thread(
            self.run_state.thread(),
            &context,
            [fs, gs],
            self.signals.mask,
            self.processor.state()?,
            self.processor.state_parts(),
        );
        self.run_state.standing.show(thread);
        Ok(true)
    }
}
