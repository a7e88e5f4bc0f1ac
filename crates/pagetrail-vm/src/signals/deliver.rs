//! Delivers a signal to a thread of the program: its handler starts, or the process ends.

use kvm_bindings::kvm_regs;

use super::frame::{self, Taken};
use super::{Action, RESTORER, Signals, never_restarts};
use crate::error::Result;
use crate::guest::Guest;
use crate::processor::fault::Fault;
use crate::sys::call::Call;
use crate::sys::signal::{self, KICK};
use crate::sys::{child, program_memory};

/// The number of a signal in a `siginfo_t`.
fn info_number(info: &[u8; signal::INFO_BYTES]) -> u32 {
    u32::from_le_bytes([info[0], info[1], info[2], info[3]])
}

/// The state that a handler interrupts.
struct Interrupted<'a> {
    context: &'a kvm_regs,
    /// The mask that was in force when the signal was taken.
    mask: u64,
    info: &'a [u8; signal::INFO_BYTES],
    /// The exception, its error code, and the address of a fault.
    fault: [u64; 3],
}

impl Guest {
    /// Whether a call has ended, or not started, because a signal has arrived.
    pub(crate) fn was_interrupted(&self, result: i64) -> bool {
        signal::is_pending() && matches!(result, signal::NOT_STARTED | signal::EINTR)
    }

    /// Whether an interrupted call is made again when the handler has returned.
    pub(crate) fn restarts_call(&self, call: &Call, result: i64) -> bool {
        let number = signal::pending_number().unwrap_or_default();
        let restarts = self
            .signals
            .action(number)
            .is_some_and(|action| action.restarts());
        result == signal::NOT_STARTED || restarts && !never_restarts(call)
    }

    /// Starts the handler of the pending signal. When it returns, these registers are restored.
    /// `during` is the mask that was in force while a call waited, where it differs from the
    /// thread's own.
    pub(crate) fn take_signal(&mut self, context: kvm_regs, during: Option<u64>) -> Result<()> {
        let Some(info) = signal::take() else {
            return Ok(());
        };
        let number = info_number(&info);
        let mask = during.unwrap_or(self.signals.mask);
        if mask & super::bit(number) != 0 && number != KICK {
            // The handler of a trap has started since, and its mask blocks this signal.
            self.enter(&context);
            signal::requeue(&info);
            self.signals.set_mask(self.signals.mask);
            return Ok(());
        }
        if number == KICK && !self.signals.takes_fault(number) {
            // It is the machine's signal once there are several threads or a recorder, and arrives
            // in spite of what is blocked.
            let action = self.signals.action(number).unwrap_or_default();
            if !self.signals.blocks(number) && !action.is_handler() && !action.is_ignored() {
                self.send_final_round()?;
                child::die_of(number as i32)
            }
            self.enter(&context);
            self.signals.set_mask(self.signals.mask);
            return Ok(());
        }
        match self.signals.begin(number) {
            Some(action) => {
                let interrupted = Interrupted {
                    context: &context,
                    mask,
                    info: &info,
                    fault: [0; 3],
                };
                self.begin_handler(number, &action, &interrupted)
            }
            None => {
                // The program has changed the action since: the kernel decides.
                self.enter(&context);
                signal::requeue(&info);
                self.signals.set_mask(self.signals.mask);
                Ok(())
            }
        }
    }

    /// Delivers a signal that the program caused itself: its handler starts, or the process ends.
    pub(crate) fn deliver(&mut self, fault: Fault, context: &kvm_regs) -> Result<()> {
        let number = fault.signal as u32;
        if !self.signals.takes_fault(number) {
            self.send_final_round()?;
            child::die_of(fault.signal)
        }
        let mut info = [0; signal::INFO_BYTES];
        info[..4].copy_from_slice(&fault.signal.to_le_bytes());
        info[8..12].copy_from_slice(&fault.code.to_le_bytes());
        info[16..24].copy_from_slice(&fault.address.to_le_bytes());
        let action = self.signals.begin(number).unwrap_or_default();
        let interrupted = Interrupted {
            context,
            mask: self.signals.mask,
            info: &info,
            fault: [fault.vector.into(), fault.error, fault.address],
        };
        self.begin_handler(number, &action, &interrupted)
    }

    fn begin_handler(
        &mut self,
        number: u32,
        action: &Action,
        interrupted: &Interrupted<'_>,
    ) -> Result<()> {
        let context = interrupted.context;
        let Some(frame) = self.write_frame(action, interrupted)? else {
            // As in force_sigsegv() of the kernel: nothing is left to try for the frame of SIGSEGV
            // itself.
            if number == libc::SIGSEGV as u32 {
                return self.kill_by_fault();
            }
            return self.refuse_frame(context);
        };
        // A handler starts with x87 and SSE as a program does (fpu__clear_user_states() of the
        // kernel). Otherwise a handler that leaves by siglongjmp(3) would cause a pending exception
        // again.
        self.processor.reset_state()?;
        let begun = kvm_regs {
            rip: action.handler,
            rsp: frame.address,
            rdi: number.into(),
            rsi: frame.info(),
            rdx: frame.context(),
            rax: 0,
            // Direction, trap and resume flags are clear in a handler.
            rflags: context.rflags & !0x1_0500,
            ..*context
        };
        self.enter(&begun);
        self.signals.stack = self.signals.stack.in_handler();
        let mask = Signals::mask_in(interrupted.mask, number, action);
        self.signals.set_mask(mask);
        Ok(())
    }

    /// Writes a handler's frame to the stack. Returns `None` where there is no room for it, or no
    /// restorer to return by.
    fn write_frame(
        &mut self,
        action: &Action,
        interrupted: &Interrupted<'_>,
    ) -> Result<Option<frame::Frame>> {
        let frame = frame::build(&Taken {
            context: interrupted.context,
            // The mask of sigsuspend(2) and similar calls ends with the call.
            mask: self.signals.mask,
            stack: self.signals.stack,
            info: interrupted.info,
            restorer: action.restorer,
            flags: action.flags,
            state: &self.processor.state()?,
            parts: self.processor.state_parts(),
            fault: interrupted.fault,
        });
        let Some(frame) = frame.filter(|_| action.flags & RESTORER != 0) else {
            return Ok(None);
        };
        // Grow the stack as far as the frame needs.
        self.memory().grow_stack(frame.address);
        if program_memory::write(frame.address, &frame.bytes).is_err() {
            return Ok(None);
        }
        self.note_written(frame.address, frame.bytes.len() as u64)?;
        Ok(Some(frame))
    }

    /// Delivers SIGSEGV, whose handler may have its own stack, for a frame that could not be
    /// written or is not valid.
    pub(crate) fn refuse_frame(&mut self, context: &kvm_regs) -> Result<()> {
        self.deliver(Fault::of_the_kernel(libc::SIGSEGV), context)
    }

    /// Ends the program by SIGSEGV, since its stack has no room for a frame.
    fn kill_by_fault(&self) -> Result<()> {
        self.send_final_round()?;
        child::die_of(libc::SIGSEGV)
    }
}
