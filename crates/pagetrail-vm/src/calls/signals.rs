//! The system calls about signals: `sigaction(2)`, `sigprocmask(2)`, `sigaltstack(2)`,
//! `sigreturn(2)`.

use super::Next;
use super::identity::write_or_fault;
use crate::error::Result;
use crate::guest::Guest;
use crate::signals::Action;
use crate::signals::frame::{self, FRAME_BYTES, FXSAVE_BYTES, SavedState};
use crate::sys::call::Call;
use crate::sys::program_memory::{read, read_word};
use crate::sys::signal;

const EFAULT: i64 = -(libc::EFAULT as i64);
const EINVAL: i64 = -(libc::EINVAL as i64);
const SET_BYTES: u64 = 8;

/// `sigaction(2)`.
pub(super) fn sigaction(guest: &mut Guest, call: &Call) -> i64 {
    let [signal, new, old, set_bytes, ..] = call.arguments;
    let signal = signal as u32;
    let Some(before) = guest
        .signals
        .action(signal)
        .filter(|_| set_bytes == SET_BYTES)
    else {
        return EINVAL;
    };
    if new != 0 {
        let mut bytes = [0; 32];
        if read(new, &mut bytes).is_err() {
            return EFAULT;
        }
        let result = guest.signals.set_action(signal, Action::from_bytes(&bytes));
        if result < 0 {
            return result;
        }
    }
    match old {
        0 => 0,
        old => write_or_fault(old, &before.to_bytes()),
    }
}

/// `sigprocmask(2)`.
pub(super) fn sigprocmask(guest: &mut Guest, call: &Call) -> i64 {
    let [how, new, old, set_bytes, ..] = call.arguments;
    if set_bytes != SET_BYTES {
        return EINVAL;
    }
    let before = guest.signals.mask;
    if new != 0 {
        let Ok(set) = read_word(new) else {
            return EFAULT;
        };
        // A signal that has already arrived is taken first: the new mask may block it.
        if !signal::block_all() {
            return signal::NOT_STARTED;
        }
        match how as i32 {
            libc::SIG_BLOCK => guest.signals.set_mask(before | set),
            libc::SIG_UNBLOCK => guest.signals.set_mask(before & !set),
            libc::SIG_SETMASK => guest.signals.set_mask(set),
            _ => {
                guest.signals.set_mask(before);
                return EINVAL;
            }
        }
    }
    match old {
        0 => 0,
        old => write_or_fault(old, &before.to_le_bytes()),
    }
}

/// `sigaltstack(2)`.
pub(super) fn sigaltstack(guest: &mut Guest, call: &Call) -> i64 {
    let [new, old, ..] = call.arguments;
    let (before, stack_pointer) = (guest.signals.stack, guest.processor.at_call().rsp);
    if new != 0 {
        let mut words = [0; 3];
        for (n, word) in words.iter_mut().enumerate() {
            match read_word(new.wrapping_add(n as u64 * 8)) {
                Ok(read) => *word = read,
                Err(_) => return EFAULT,
            }
        }
        let result = guest.signals.stack.set(words, stack_pointer);
        if result < 0 {
            return result;
        }
    }
    if old == 0 {
        return 0;
    }
    let words = before.shown(stack_pointer);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    write_or_fault(old, &bytes)
}

/// `sigreturn(2)`.
pub(super) fn sigreturn(guest: &mut Guest) -> Result<Next> {
    let context = guest.processor.at_call();
    let at = frame::address_after_return(context.rsp);
    let mut bytes = [0; FRAME_BYTES];
    if read(at, &mut bytes).is_err() {
        return guest.refuse_frame(&context).map(|()| Next::Entered);
    }
    let restored = frame::parse(&bytes);
    guest.signals.set_mask(restored.mask);
    if !restore_state(guest, restored.state_at) {
        guest.processor.reset_state()?;
        return guest
            .refuse_frame(&restored.context)
            .map(|()| Next::Entered);
    }
    // The result is ignored, as in the kernel: a stack that cannot be set stays as it is.
    guest
        .signals
        .stack
        .set(restored.stack, restored.context.rsp);
    guest.enter(&restored.context);
    Ok(Next::Entered)
}

/// Restores the extended state of a frame, as restore_fpregs_from_user() of
/// arch/x86/kernel/fpu/signal.c does. Returns false where the frame has no valid state.
fn restore_state(guest: &Guest, at: u64) -> bool {
    if at == 0 {
        return guest.processor.reset_state().is_ok();
    }
    let mut old_area = [0; FXSAVE_BYTES];
    if read(at, &mut old_area).is_err() {
        return false;
    }
    let (bytes, parts) = match frame::saved_state(&old_area, guest.processor.state_bytes()) {
        SavedState::Extended { bytes, parts } => {
            let mut state = vec![0; bytes + 4];
            if read(at, &mut state).is_err() {
                return false;
            }
            match state.split_off(bytes) == frame::MAGIC_2.to_le_bytes() {
                true => (state, parts),
                false => (old_area.into(), frame::LEGACY_PARTS),
            }
        }
        SavedState::Legacy => (old_area.into(), frame::LEGACY_PARTS),
    };
    // KVM refuses a state that the processor would refuse.
    guest.processor.set_state(&bytes, parts).is_ok()
}
