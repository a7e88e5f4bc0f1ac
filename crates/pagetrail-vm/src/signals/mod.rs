//! Signals for the program: the action for each signal, and the frame on the stack with which a
//! handler starts ([`frame`]).
//!
//! The process's signals are the program's. The kernel performs default actions and ignores what is
//! ignored. A signal that the program handles is stored by [`crate::sys::signal`] until the program
//! is between two instructions at a known place.

mod deliver;
pub(crate) mod frame;
mod handler_stack;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::calls::table::{self, WaitMask};
use crate::sys::call::Call;
use crate::sys::program_memory::read_word;
use crate::sys::signal;
pub(crate) use handler_stack::HandlerStack;

const SIGNALS: u32 = 64;
const DEFAULT: u64 = 0;
const IGNORE: u64 = 1;
const NO_DEFER: u64 = libc::SA_NODEFER as u64;
/// `SA_ONSTACK`: the handler runs on the alternate stack.
pub(crate) const ON_STACK: u64 = libc::SA_ONSTACK as u64;
const RESET: u64 = libc::SA_RESETHAND as u32 as u64;
const RESTART: u64 = libc::SA_RESTART as u64;
/// The flags of a handler that the kernel needs: they decide when it sends SIGCHLD.
const CHILD_FLAGS: u64 = (libc::SA_NOCLDSTOP | libc::SA_NOCLDWAIT) as u64;
/// `SA_RESTORER`, without which a handler cannot return on x86.
pub(crate) const RESTORER: u64 = 0x0400_0000;
/// The flags that the kernel keeps (`UAPI_SA_FLAGS`), `SA_EXPOSE_TAGBITS` included.
const KNOWN_FLAGS: u64 = 0x800
    | RESTORER
    | CHILD_FLAGS
    | libc::SA_SIGINFO as u64
    | NO_DEFER
    | ON_STACK
    | RESET
    | RESTART;
/// `SIGKILL` and `SIGSTOP`, which no program can block.
const UNBLOCKABLE: u64 = bit(libc::SIGKILL as u32) | bit(libc::SIGSTOP as u32);

const fn bit(signal: u32) -> u64 {
    1 << (signal - 1)
}

/// The action for a signal: `struct kernel_sigaction`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Action {
    pub(crate) handler: u64,
    pub(crate) flags: u64,
    pub(crate) restorer: u64,
    pub(crate) mask: u64,
}

impl Action {
    /// Decodes the kernel's layout.
    pub(crate) fn from_bytes(bytes: &[u8; 32]) -> Self {
        let word = |n: usize| {
            bytes[n * 8..n * 8 + 8]
                .try_into()
                .map_or(0, u64::from_le_bytes)
        };
        Self {
            handler: word(0),
            flags: word(1) & KNOWN_FLAGS,
            restorer: word(2),
            mask: word(3) & !UNBLOCKABLE,
        }
    }

    pub(crate) fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        let words = [self.handler, self.flags, self.restorer, self.mask];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn is_handler(&self) -> bool {
        self.handler > IGNORE
    }

    pub(crate) fn is_ignored(&self) -> bool {
        self.handler == IGNORE
    }

    /// Whether system calls that the handler interrupts are restarted (`SA_RESTART`).
    pub(crate) fn restarts(&self) -> bool {
        self.flags & RESTART != 0
    }
}

/// The actions of the program, and the mask and alternate stack of one of its threads.
#[derive(Clone, Debug)]
pub(crate) struct Signals {
    /// The actions, which all threads share.
    actions: Arc<Mutex<Vec<Action>>>,
    /// The thread's signal mask.
    pub(crate) mask: u64,
    pub(crate) stack: HandlerStack,
}

impl Signals {
    /// The signals of a new program: ignored signals stay ignored.
    pub(crate) fn inherited() -> Self {
        let action = |signal| Action {
            handler: match signal::action_now(signal) {
                IGNORE => IGNORE,
                _ => DEFAULT,
            },
            ..Action::default()
        };
        Self {
            actions: Arc::new(Mutex::new((1..=SIGNALS).map(action).collect())),
            mask: signal::mask(),
            stack: HandlerStack::default(),
        }
    }

    /// The signals of a thread that this one starts.
    pub(crate) fn of_new_thread(&self) -> Self {
        Self {
            stack: HandlerStack::default(),
            ..self.clone()
        }
    }

    /// The signals of a child process, which has its own copy of the actions.
    pub(crate) fn of_child(&self) -> Self {
        let actions = self.actions().clone();
        Self {
            actions: Arc::new(Mutex::new(actions)),
            ..self.clone()
        }
    }

    /// Locks all actions.
    pub(crate) fn actions(&self) -> MutexGuard<'_, Vec<Action>> {
        self.actions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The action for a signal; `None` if there is no such signal.
    pub(crate) fn action(&self, signal: u32) -> Option<Action> {
        let index = signal.checked_sub(1)?;
        self.actions().get(index as usize).copied()
    }

    /// `sigaction(2)`; the kernel's result.
    pub(crate) fn set_action(&self, signal: u32, action: Action) -> i64 {
        set(&mut self.actions(), signal, action)
    }

    /// Resets all signals with handlers to the default action, as a new program does.
    pub(crate) fn clear_handlers(&self) {
        let mut actions = self.actions();
        for signal in 1..=SIGNALS {
            if actions[signal as usize - 1].is_handler() {
                set(&mut actions, signal, Action::default());
            }
        }
    }

    /// Sets the thread's mask to exactly these signals.
    pub(crate) fn set_mask(&mut self, mask: u64) {
        self.mask = mask & !UNBLOCKABLE;
        signal::set_mask(self.mask);
    }

    /// The action for a signal that the program takes now, and resets it for `SA_RESETHAND`.
    /// Returns `None` without a handler.
    pub(crate) fn begin(&self, signal: u32) -> Option<Action> {
        let mut actions = self.actions();
        let index = signal.checked_sub(1)? as usize;
        let action = actions.get(index).copied().filter(Action::is_handler)?;
        if action.flags & RESET != 0 {
            // The other fields stay, as in get_signal() of the kernel.
            let reset = Action {
                handler: DEFAULT,
                ..action
            };
            set(&mut actions, signal, reset);
        }
        Some(action)
    }

    /// The mask while a handler runs, which has interrupted a thread with the mask `before`.
    pub(crate) fn mask_in(before: u64, signal: u32, action: &Action) -> u64 {
        let own = if action.flags & NO_DEFER == 0 {
            bit(signal)
        } else {
            0
        };
        before | action.mask | own
    }

    /// Whether the program can handle a signal that it caused itself now.
    pub(crate) fn takes_fault(&self, signal: u32) -> bool {
        !self.blocks(signal)
            && self
                .action(signal)
                .is_some_and(|action| action.is_handler())
    }

    pub(crate) fn blocks(&self, signal: u32) -> bool {
        self.mask & bit(signal) != 0
    }
}

fn set(actions: &mut [Action], signal: u32, action: Action) -> i64 {
    let result = match action.is_handler() {
        true if UNBLOCKABLE & bit(signal) != 0 => -i64::from(libc::EINVAL),
        true => signal::install_handler(signal, action.flags & CHILD_FLAGS),
        false => signal::leave_to_kernel(signal, action.handler, action.flags),
    };
    if result == 0 {
        actions[signal as usize - 1] = action;
    }
    result
}

/// The signal mask that is in force while a call waits (`sigsuspend(2)`, `ppoll(2)`). The handlers
/// that end the call start with it; when they have returned, the thread's own mask is in force
/// again.
pub(crate) fn mask_during(call: &Call) -> Option<u64> {
    let at = match table::row(call.number).wait_mask {
        WaitMask::None => 0,
        WaitMask::At(argument) => call.arguments[argument],
        WaitMask::Indirect(argument) => match call.arguments[argument] {
            0 => 0,
            pair => read_word(pair).ok()?,
        },
    };
    let mask = (at != 0).then(|| read_word(at).ok()).flatten()?;
    Some(mask & !UNBLOCKABLE)
}

/// Whether a call ends with `EINTR` whatever a handler's flags are (`signal(7)`).
pub(crate) fn never_restarts(call: &Call) -> bool {
    let row = table::row(call.number);
    row.never_restarts_with(&call.arguments)
        || row
            .socket_timeout
            .is_some_and(|option| has_socket_timeout(call.arguments[0], option))
}

/// Whether a descriptor is a socket with a time limit (`SO_RCVTIMEO`, `SO_SNDTIMEO`).
fn has_socket_timeout(descriptor: u64, option: libc::c_int) -> bool {
    let (mut limit, mut bytes) = ([0i64; 2], 16u32);
    let socket_option = [
        descriptor,
        libc::SOL_SOCKET as u64,
        option as u64,
        limit.as_mut_ptr() as u64,
        &raw mut bytes as u64,
    ];
    crate::sys::call::call(libc::SYS_getsockopt, &socket_option) == 0 && limit != [0; 2]
}
