//! [`HandlerStack`]: a thread's alternate stack for handlers, by the rules of `sigaltstack(2)`
//! (kernel/signal.c). Pure.

const EPERM: i64 = -(libc::EPERM as i64);
const EINVAL: i64 = -(libc::EINVAL as i64);
const ENOMEM: i64 = -(libc::ENOMEM as i64);
const ON_IT: u32 = 1;
const DISABLED: u32 = 2;
/// `SS_AUTODISARM`: there is no alternate stack while a handler runs.
const DISARMS: u32 = 1 << 31;
/// `MINSIGSTKSZ`.
const BYTES_MIN: u64 = 2048;

/// A thread's alternate stack for handlers, as the program has set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HandlerStack {
    pub(crate) address: u64,
    /// The length; 0 for no stack.
    pub(crate) bytes: u64,
    pub(crate) flags: u32,
}

impl Default for HandlerStack {
    fn default() -> Self {
        Self {
            address: 0,
            bytes: 0,
            flags: DISABLED,
        }
    }
}

impl HandlerStack {
    /// Whether a stack pointer is within it, whatever the flags are.
    pub(super) fn reaches(&self, stack_pointer: u64) -> bool {
        stack_pointer.wrapping_sub(self.address).wrapping_sub(1) < self.bytes
    }

    /// Whether a thread with this stack pointer runs on it. A stack that is disarmed in handlers
    /// never counts.
    pub(crate) fn contains(&self, stack_pointer: u64) -> bool {
        self.flags & DISARMS == 0 && self.reaches(stack_pointer)
    }

    /// What `sigaltstack(2)` shows: address, flags, length.
    pub(crate) fn shown(&self, stack_pointer: u64) -> [u64; 3] {
        let state = match self.bytes {
            0 => DISABLED,
            _ if self.contains(stack_pointer) => ON_IT,
            _ => 0,
        };
        [
            self.address,
            u64::from(state | self.flags & DISARMS),
            self.bytes,
        ]
    }

    /// The words for a handler's frame: address, flags, length.
    pub(super) fn saved(&self) -> [u64; 3] {
        [self.address, self.flags.into(), self.bytes]
    }

    /// Sets it as `sigaltstack(2)` does, and returns the kernel's result.
    pub(crate) fn set(&mut self, [address, flags, bytes]: [u64; 3], stack_pointer: u64) -> i64 {
        let flags = flags as u32;
        let wanted = match flags & !DISARMS {
            _ if self.contains(stack_pointer) => return EPERM,
            DISABLED => Self {
                address: 0,
                bytes: 0,
                flags,
            },
            0 | ON_IT if bytes < BYTES_MIN => {
                let same = (self.address, self.bytes, self.flags) == (address, bytes, flags);
                return if same { 0 } else { ENOMEM };
            }
            0 | ON_IT => Self {
                address,
                bytes,
                flags,
            },
            _ => return EINVAL,
        };
        *self = wanted;
        0
    }

    /// The alternate stack while a handler runs that has just started.
    pub(super) fn in_handler(self) -> Self {
        match self.flags & DISARMS {
            0 => self,
            _ => Self::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x1000_0000;

    fn set(flags: u32) -> HandlerStack {
        let mut stack = HandlerStack::default();
        assert_eq!(stack.set([AT, flags.into(), 0x4000], 0), 0);
        stack
    }

    #[test]
    fn what_is_refused_changes_nothing() {
        let mut stack = set(0);
        assert_eq!(stack.set([AT, 0, 100], 0), ENOMEM);
        assert_eq!(stack.set([AT, 4, 0x4000], 0), EINVAL);
        assert_eq!(stack.set([0, 2, 0], AT + 0x100), EPERM);
        assert_eq!(stack, set(0));
        assert_eq!(stack.shown(AT + 0x100), [AT, 1, 0x4000]);
        assert_eq!(stack.shown(AT), [AT, 0, 0x4000]);
        assert_eq!(stack.set([7, 2, 7], 0), 0);
        assert_eq!(stack.shown(0), [0, 2, 0]);
    }

    #[test]
    fn one_that_disarms_is_gone_in_a_handler() {
        let mut stack = set(DISARMS);
        assert!(!stack.contains(AT + 0x100));
        assert_eq!(stack.shown(AT + 0x100), [AT, DISARMS.into(), 0x4000]);
        assert_eq!(stack.in_handler(), HandlerStack::default());
        assert_eq!(stack.set([0, 2, 0], AT + 0x100), 0);
        assert_eq!(set(0).in_handler(), set(0));
    }
}
