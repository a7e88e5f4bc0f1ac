//! [`Exception`]: an exception of the program, and the signal that it causes. Pure.

use super::entry::Frame;
use crate::memory::Resolved;
use crate::memory::areas::Access;

const DEBUG: u8 = 1;
const PAGE_FAULT: u8 = 14;
const X87: u8 = 16;
const SIMD: u8 = 19;
// include/uapi/asm-generic/siginfo.h, of which the crate `libc` has a part.
const FPE_INTDIV: i32 = 1;
const FPE_FLTDIV: i32 = 3;
const FPE_FLTOVF: i32 = 4;
const FPE_FLTUND: i32 = 5;
const FPE_FLTRES: i32 = 6;
const FPE_FLTINV: i32 = 7;
const ILL_ILLOPN: i32 = 2;
const SEGV_MAPERR: i32 = 1;
const SEGV_ACCERR: i32 = 2;
/// The code of a signal that the kernel sends about no particular address.
const SI_KERNEL: i32 = 128;

/// An exception of the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exception {
    pub(crate) vector: u8,
    pub(crate) frame: Frame,
}

/// A signal that the program causes itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) signal: i32,
    pub(crate) code: i32,
    pub(crate) address: u64,
    /// The exception and its error code.
    pub(crate) vector: u8,
    pub(crate) error: u64,
}

impl Fault {
    /// A signal that the kernel sends without an address.
    pub(crate) fn of_the_kernel(signal: i32) -> Self {
        Self {
            signal,
            code: SI_KERNEL,
            address: 0,
            vector: 0,
            error: 0,
        }
    }
}

/// The code of a floating-point exception, by the legacy area of the extended state
/// (fpu__exception_code() of the kernel). Returns `None` where the state has no unmasked exception,
/// and the program continues.
fn arithmetic(vector: u8, state: &[u8]) -> Option<i32> {
    let word = |at: usize| match state.get(at..at + 2) {
        Some(&[low, high]) => u16::from_le_bytes([low, high]),
        _ => 0,
    };
    let (control, status, mxcsr) = (word(0), word(2), word(24));
    let raised = match vector {
        X87 => status & !control,
        _ => mxcsr & !(mxcsr >> 7),
    };
    let codes = [
        (0x01, FPE_FLTINV),
        (0x04, FPE_FLTDIV),
        (0x08, FPE_FLTOVF),
        // Denormal operands, and underflow.
        (0x12, FPE_FLTUND),
        (0x20, FPE_FLTRES),
    ];
    let known = codes.iter().find(|(bits, _)| raised & bits != 0);
    known.map(|(_, code)| *code)
}

impl Exception {
    /// Whether the program repeats the instruction when it continues (a fault), or is after it (a
    /// trap).
    pub(crate) fn is_repeated(&self) -> bool {
        !matches!(self.vector, DEBUG | 3 | 4)
    }

    /// Whether this is a floating-point exception, which [`Self::arithmetic`] decodes.
    pub(crate) fn is_arithmetic(&self) -> bool {
        matches!(self.vector, X87 | SIMD)
    }

    /// The signal for a floating-point exception, by the present extended state.
    pub(crate) fn arithmetic(&self, state: &[u8]) -> Option<Fault> {
        let code = arithmetic(self.vector, state)?;
        Some(Fault {
            code,
            error: 0,
            ..self.signal(None)
        })
    }

    /// Whether this is a debug exception.
    pub(crate) fn is_debugging(&self) -> bool {
        self.vector == DEBUG
    }

    /// The signal for a debug exception: a single step, or an instruction that requests a stop.
    pub(crate) fn debugging(&self, steps: bool) -> Fault {
        Fault {
            code: match steps {
                true => libc::TRAP_TRACE,
                false => libc::TRAP_BRKPT,
            },
            ..self.signal(None)
        }
    }

    /// Whether ring 0 caused it, which nothing that the program does should do.
    pub(crate) fn is_ours(&self) -> bool {
        self.frame.cs & 3 != 3
    }

    /// The address and the kind of access of a page fault; `None` for another exception.
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

    /// The signal for an access to a mapped page without memory.
    pub(crate) fn beyond_the_file(&self) -> Fault {
        Fault {
            signal: libc::SIGBUS,
            code: libc::BUS_ADRERR,
            ..self.signal(None)
        }
    }

    /// The signal that Linux sends for the exception (arch/x86/kernel/traps.c); for a page fault,
    /// after `resolved`.
    pub(crate) fn signal(&self, resolved: Option<Resolved>) -> Fault {
        let here = self.frame.rip;
        let (signal, code, address) = match self.vector {
            0 => (libc::SIGFPE, FPE_INTDIV, here),
            DEBUG => (libc::SIGTRAP, libc::TRAP_TRACE, here),
            3 => (libc::SIGTRAP, SI_KERNEL, 0),
            6 => (libc::SIGILL, ILL_ILLOPN, here),
            11 | 12 => (libc::SIGBUS, SI_KERNEL, 0),
            PAGE_FAULT if resolved == Some(Resolved::Forbidden) => {
                (libc::SIGSEGV, SEGV_ACCERR, self.frame.cr2)
            }
            PAGE_FAULT => (libc::SIGSEGV, SEGV_MAPERR, self.frame.cr2),
            X87 | SIMD => (libc::SIGFPE, FPE_FLTINV, here),
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
        assert_eq!(exception(1, 0).debugging(false).code, libc::TRAP_BRKPT);
        assert_eq!(exception(13, 0).signal(None).address, 0);
    }
    #[test]
    fn exceptions_of_arithmetic_say_what_they_are_about() {
        let mut state = [0; 512];
        state[0..2].copy_from_slice(&0x037bu16.to_le_bytes());
        state[2..4].copy_from_slice(&0x8084u16.to_le_bytes());
        assert_eq!(arithmetic(X87, &state), Some(FPE_FLTDIV));
        // The exception is raised, and masked.
        state[0..2].copy_from_slice(&0x037fu16.to_le_bytes());
        assert_eq!(arithmetic(X87, &state), None);
        for (bit, code) in [
            (0, FPE_FLTINV),
            (1, FPE_FLTUND),
            (2, FPE_FLTDIV),
            (3, FPE_FLTOVF),
            (4, FPE_FLTUND),
            (5, FPE_FLTRES),
        ] {
            let mxcsr = 0x1f80u32 & !(0x80 << bit) | 1 << bit | 1 << 5;
            state[24..28].copy_from_slice(&mxcsr.to_le_bytes());
            assert_eq!(arithmetic(SIMD, &state), Some(code));
        }
    }
}
