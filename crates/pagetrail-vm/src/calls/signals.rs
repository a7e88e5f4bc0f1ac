//! The system calls about signals: `sigaction(2)`, `sigprocmask(2)`, `sigaltstack(2)`, `sigreturn(2)`.

use super::Next;
use super::identity::write_or_fault;
use crate::error::Result;
use crate::guest::Guest;
use crate::signals::frame::{self, FRAME_BYTES};
use crate::signals::{Action, HandlerStack};
use crate::sys::call::Call;
use crate::sys::program_memory::{read, read_word};

const EFAULT: i64 = -(libc::EFAULT as i64);
const EINVAL: i64 = -(libc::EINVAL as i64);
const EPERM: i64 = -(libc::EPERM as i64);
const ENOMEM: i64 = -(libc::ENOMEM as i64);
const SET_BYTES: u64 = 8;
const STACK_BYTES_MIN: u64 = 2048;
const DISABLE: u64 = 2;

/// Does a call about signals; `None` if it is about something else.
pub(super) fn perform(guest: &mut Guest, call: &Call) -> Result<Option<Next>> {
    let result = match call.number as i64 {
        libc::SYS_rt_sigreturn => return sigreturn(guest).map(Some),
        libc::SYS_rt_sigaction => sigaction(guest, call),
        libc::SYS_rt_sigprocmask => sigprocmask(guest, call),
        libc::SYS_sigaltstack => sigaltstack(guest, call),
        _ => return Ok(None),
    };
    // None of them has a list.
    super::note(guest, call, super::expect(guest, call).as_ref(), result);
    Ok(Some(Next::Return(result)))
}

fn sigaction(guest: &mut Guest, call: &Call) -> i64 {
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

fn sigprocmask(guest: &mut Guest, call: &Call) -> i64 {
    let [how, new, old, set_bytes, ..] = call.arguments;
    if set_bytes != SET_BYTES {
        return EINVAL;
    }
    let before = guest.signals.mask;
    if new != 0 {
        let Ok(set) = read_word(new) else {
            return EFAULT;
        };
        match how as i32 {
            libc::SIG_BLOCK => guest.signals.set_mask(before | set),
            libc::SIG_UNBLOCK => guest.signals.set_mask(before & !set),
            libc::SIG_SETMASK => guest.signals.set_mask(set),
            _ => return EINVAL,
        }
    }
    match old {
        0 => 0,
        old => write_or_fault(old, &before.to_le_bytes()),
    }
}

fn sigaltstack(guest: &mut Guest, call: &Call) -> i64 {
    let [new, old, ..] = call.arguments;
    let before = guest.signals.stack;
    let is_on_it = before.contains(guest.processor.at_call().rsp);
    if new != 0 {
        let mut words = [0; 3];
        for (n, word) in words.iter_mut().enumerate() {
            match read_word(new + n as u64 * 8) {
                Ok(read) => *word = read,
                Err(_) => return EFAULT,
            }
        }
        let [address, flags, bytes] = words;
        match flags & 0xffff_ffff {
            _ if is_on_it => return EPERM,
            DISABLE => guest.signals.stack = HandlerStack::default(),
            0 | 1 if bytes < STACK_BYTES_MIN => return ENOMEM,
            0 | 1 => guest.signals.stack = HandlerStack { address, bytes },
            _ => return EINVAL,
        }
    }
    if old == 0 {
        return 0;
    }
    let flags = match before.bytes {
        0 => DISABLE,
        _ => u64::from(is_on_it),
    };
    let words = [before.address, flags, before.bytes];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    write_or_fault(old, &bytes)
}

fn sigreturn(guest: &mut Guest) -> Result<Next> {
    let at = frame::address_after_return(guest.processor.at_call().rsp);
    let mut bytes = [0; FRAME_BYTES];
    if read(at, &mut bytes).is_err() {
        return guest.kill_by_fault().map(|()| Next::Entered);
    }
    let restored = frame::parse(&bytes);
    if restored.state_at != 0 {
        let mut state = vec![0; guest.processor.state_bytes()];
        if read(restored.state_at, &mut state).is_err() {
            return guest.kill_by_fault().map(|()| Next::Entered);
        }
        guest.processor.set_state(&state)?;
    }
    guest.signals.stack = restored.stack;
    guest.enter(&restored.context);
    guest.signals.set_mask(restored.mask);
    Ok(Next::Entered)
}
