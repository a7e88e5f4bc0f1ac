//! [`Exception`]: what the processor refused to do, and the signal that says so to a program. Pure.

use super::entry::Frame;
use crate::memory::Resolved;
use crate::memory::areas::Access;

const PAGE_FAULT: u8 = 14;
// include/uapi/asm-generic/siginfo.h, of which the crate `libc` has a part.
const FPE_INTDIV: i32 = 1;
const FPE_FLTINV: i32 = 7;
const ILL_ILLOPN: i32 = 2;
const SEGV_MAPERR: i32 = 1;
const SEGV_ACCERR: i32 = 2;
/// The kernel says so, about no address in particular.
const SI_KERNEL: i32 = 128;

/// An exception of the program's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exception {
    pub(crate) vector: u8,
    pub(crate) frame: Frame,
}

/// A signal that the program gets for what it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) signal: i32,
    pub(crate) code: i32,
    pub(crate) address: u64,
    /// The exception and its error code.
    pub(crate) vector: u8,
    pub(crate) error: u64,
}

impl Exception {
    /// Whether ring 0 made it, which nothing the program does should cause.
    pub(crate) fn is_ours(&self) -> bool {
        self.frame.cs & 3 != 3
    }

    /// The address and the kind of access, for a page fault.
    pub(crate) fn access(&self) -> Option<(u64, Access)> {
        if self.vector != PAGE_FAULT {
            return None;
        }
        let access = match self.frame.error {
            error if error & 1 << 4 != 0 => Access::Execute,
            error if error & 1 << 1 != 0 => Access::Write,
            _ => Access::Read,
        };
        Some((self.frame.cr2, access))
    }

    /// The signal for a page that is mapped, and has no memory.
    pub(crate) fn beyond_the_file(&self) -> Fault {
        Fault {
            signal: libc::SIGBUS,
            code: libc::BUS_ADRERR,
            ..self.signal(None)
        }
    }

    /// The signal that Linux sends for it (arch/x86/kernel/traps.c); for a page fault, after what `resolved` says.
    pub(crate) fn signal(&self, resolved: Option<Resolved>) -> Fault {
        let here = self.frame.rip;
        let (signal, code, address) = match self.vector {
            0 => (libc::SIGFPE, FPE_INTDIV, here),
            1 => (libc::SIGTRAP, libc::TRAP_TRACE, here),
            3 => (libc::SIGTRAP, SI_KERNEL, 0),
            6 => (libc::SIGILL, ILL_ILLOPN, here),
            11 | 12 => (libc::SIGBUS, SI_KERNEL, 0),
            PAGE_FAULT if resolved == Some(Resolved::Forbidden) => {
                (libc::SIGSEGV, SEGV_ACCERR, self.frame.cr2)
            }
            PAGE_FAULT => (libc::SIGSEGV, SEGV_MAPERR, self.frame.cr2),
            16 | 19 => (libc::SIGFPE, FPE_FLTINV, here),
            17 => (libc::SIGBUS, libc::BUS_ADRALN, 0),
            _ => (libc::SIGSEGV, SI_KERNEL, 0),
        };
        Fault {
            signal,
            code,
            address,
            vector: self.vector,
            error: self.frame.error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exception(vector: u8, error: u64) -> Exception {
        let frame = Frame {
            cr2: 0x1234,
            rip: 0x40_0000,
            error,
            ..Frame::default()
        };
        Exception { vector, frame }
    }

    #[test]
    fn signals_are_those_of_a_native_run() {
        let missing = exception(14, 0b110);
        assert_eq!(missing.access(), Some((0x1234, Access::Write)));
        assert_eq!(
            exception(14, 0b10100).access(),
            Some((0x1234, Access::Execute))
        );
        let fault = missing.signal(Some(Resolved::NothingThere));
        assert_eq!(
            (fault.signal, fault.code, fault.address),
            (libc::SIGSEGV, SEGV_MAPERR, 0x1234)
        );
        assert_eq!(missing.signal(Some(Resolved::Forbidden)).code, SEGV_ACCERR);
        let division = exception(0, 0).signal(None);
        assert_eq!(
            (division.signal, division.address),
            (libc::SIGFPE, 0x40_0000)
        );
        assert_eq!(exception(6, 0).signal(None).signal, libc::SIGILL);
        assert_eq!(exception(13, 0).signal(None).address, 0);
    }
}
