//! How a signal reaches a thread of the program: its handler begins, or the process ends.

use kvm_bindings::kvm_regs;

use super::frame::{self, Taken};
use super::{Action, never_restarts};
use crate::error::Result;
use crate::guest::Guest;
use crate::processor::fault::Fault;
use crate::sys::call::Call;
use crate::sys::signal::{self, KICK};
use crate::sys::{child, program_memory};

const EINTR: i64 = -(libc::EINTR as i64);

/// The number of a signal in a `siginfo_t`.
fn info_number(info: &[u8; signal::INFO_BYTES]) -> u32 {
    u32::from_le_bytes([info[0], info[1], info[2], info[3]])
}

impl Guest {
    /// Whether a call has ended, or not begun, because a signal has arrived.
    pub(crate) fn was_interrupted(&self, result: i64) -> bool {
        signal::has_arrived() && matches!(result, signal::NOT_BEGUN | EINTR)
    }

    /// Whether such a call is made again, when the handler has returned.
    pub(crate) fn begins_anew(&self, call: &Call, result: i64) -> bool {
        let number = signal::arrived_number().unwrap_or_default();
        let restarts = self
            .signals
            .action(number)
            .is_some_and(|action| action.restarts());
        result == signal::NOT_BEGUN || restarts && !never_restarts(call)
    }

    /// Begins the handler of the signal that has arrived, behind which these registers are restored.
    pub(crate) fn take_signal(&mut self, context: kvm_regs) -> Result<()> {
        let Some(info) = signal::take() else {
            return Ok(());
        };
        let number = info_number(&info);
        if number == KICK && !self.signals.takes_fault(number) {
            // It is the machine's signal as soon as there are threads, and comes in spite of what is blocked.
            let action = self.signals.action(number).unwrap_or_default();
            if !self.signals.blocks(number) && !action.is_handler() && !action.is_ignored() {
                self.part()?;
                child::die_of(number as i32)
            }
            self.enter(&context);
            self.signals.set_mask(self.signals.mask);
            return Ok(());
        }
        match self.signals.begin(number) {
            Some(action) => self.begin_handler(number, &action, &context, &info, [0; 3]),
            None => {
                // The program has changed its mind since: the kernel decides.
                self.enter(&context);
                signal::send_again(&info);
                self.signals.set_mask(self.signals.mask);
                Ok(())
            }
        }
    }

    /// A signal for what the program did itself: its handler begins, or it ends.
    pub(crate) fn deliver(&mut self, fault: Fault, context: &kvm_regs) -> Result<()> {
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
}
