//! The frame of a signal handler: `struct rt_sigframe` of x86-64, as arch/x86/include/asm/sigframe.h has it. Pure.

use kvm_bindings::kvm_regs;

use super::{HandlerStack, ON_STACK};
use crate::processor::entry::selector;
use crate::sys::signal::INFO_BYTES;

/// What a leaf function may use below its stack pointer.
const RED_ZONE: u64 = 128;
/// The return address; flags, link and stack; registers; mask.
const CONTEXT_AT: u64 = 8;
const REGISTERS_AT: usize = 8 + 8 + 8 + 24;
const REGISTERS_BYTES: usize = 256;
const MASK_AT: usize = REGISTERS_AT + REGISTERS_BYTES;
const INFO_AT: usize = MASK_AT + 8;
/// The frame without the extended state, which lies above.
pub(crate) const FRAME_BYTES: usize = INFO_AT + INFO_BYTES;
/// Extended state, RFLAGS and SS: what a reader may count on.
const FLAGS: u64 = 0b111;
const STACK_DISABLED: u32 = 2;

const MAGIC_1: u32 = 0x4650_5853;
const MAGIC_2: u32 = 0x4650_5845;
/// Where the old FXSAVE area has bytes for software.
const SOFTWARE_AT: usize = 464;

/// What a handler is to find.
#[derive(Debug)]
pub(crate) struct Taken<'a> {
    pub(crate) context: &'a kvm_regs,
    pub(crate) mask: u64,
    pub(crate) stack: HandlerStack,
    pub(crate) info: &'a [u8; INFO_BYTES],
    pub(crate) restorer: u64,
    pub(crate) flags: u64,
    /// The extended state in the processor's own format.
    pub(crate) state: &'a [u8],
    /// Its parts.
    pub(crate) parts: u64,
    /// Exception, error code, address: of a fault.
    pub(crate) fault: [u64; 3],
}

/// What goes onto the program's stack.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Where it is: the handler's stack pointer.
    pub(crate) address: u64,
    pub(crate) bytes: Vec<u8>,
}

impl Frame {
    /// The address of the `siginfo_t`.
    pub(crate) fn info(&self) -> u64 {
        self.address + INFO_AT as u64
    }

    /// The address of the `ucontext_t`.
    pub(crate) fn context(&self) -> u64 {
        self.address + CONTEXT_AT
    }
}

/// Lays out a handler's frame.
pub(crate) fn build(taken: &Taken<'_>) -> Frame {
    let now = taken.context.rsp;
    let apart = taken.flags & ON_STACK != 0 && taken.stack.bytes > 0 && !taken.stack.contains(now);
    let top = match apart {
        true => taken.stack.address + taken.stack.bytes,
        false => now - RED_ZONE,
    };
    let state_at = (top - taken.state.len() as u64 - 4) & !63;
    // A function begins with a stack pointer that is 8 off 16: a return address was pushed.
    let address = ((state_at - FRAME_BYTES as u64) & !15) - 8;
    let mut bytes = Vec::with_capacity((top - address) as usize);
    let mut put = |words: &[u64]| bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    let disabled = if taken.stack.bytes == 0 {
        STACK_DISABLED.into()
    } else {
        0
    };
    put(&[
        taken.restorer,
        FLAGS,
        0,
        taken.stack.address,
        disabled,
        taken.stack.bytes,
    ]);
    let context = taken.context;
    put(&[
        context.r8,
        context.r9,
        context.r10,
        context.r11,
        context.r12,
        context.r13,
        context.r14,
        context.r15,
    ]);
    put(&[
        context.rdi,
        context.rsi,
        context.rbp,
        context.rbx,
        context.rdx,
        context.rax,
        context.rcx,
    ]);
    let segments = u64::from(selector::USER_CODE) | u64::from(selector::USER_DATA) << 48;
    let [trap, error, cr2] = taken.fault;
    put(&[
        context.rsp,
        context.rip,
        context.rflags,
        segments,
        error,
        trap,
        taken.mask,
        cr2,
        state_at,
    ]);
    put(&[0; 8]);
    put(&[taken.mask]);
    bytes.extend(taken.info);
    bytes.resize((state_at - address) as usize, 0);
    bytes.extend(taken.state);
    let software = (state_at - address) as usize + SOFTWARE_AT;
    let length = taken.state.len() as u32;
    bytes[software..software + 4].copy_from_slice(&MAGIC_1.to_le_bytes());
    bytes[software + 4..software + 8].copy_from_slice(&(length + 4).to_le_bytes());
    bytes[software + 8..software + 16].copy_from_slice(&taken.parts.to_le_bytes());
    bytes[software + 16..software + 20].copy_from_slice(&length.to_le_bytes());
    bytes.extend(MAGIC_2.to_le_bytes());
    Frame { address, bytes }
}

/// What `sigreturn(2)` finds in a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Restored {
    pub(crate) context: kvm_regs,
    pub(crate) mask: u64,
    pub(crate) stack: HandlerStack,
    /// Where the extended state is; 0 for none.
    pub(crate) state_at: u64,
}

/// Where the frame of a handler is that has just returned.
pub(crate) fn address_after_return(stack_pointer: u64) -> u64 {
    stack_pointer - 8
}

/// Reads a frame's first [`FRAME_BYTES`].
pub(crate) fn parse(bytes: &[u8; FRAME_BYTES]) -> Restored {
    let word = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
    let register = |n: usize| word(REGISTERS_AT + n * 8);
    let stack = match word(32) as u32 & STACK_DISABLED {
        0 => HandlerStack {
            address: word(24),
            bytes: word(40),
        },
        _ => HandlerStack::default(),
    };
    let context = kvm_regs {
        r8: register(0),
        r9: register(1),
        r10: register(2),
        r11: register(3),
        r12: register(4),
        r13: register(5),
        r14: register(6),
        r15: register(7),
        rdi: register(8),
        rsi: register(9),
        rbp: register(10),
        rbx: register(11),
        rdx: register(12),
        rax: register(13),
        rcx: register(14),
        rsp: register(15),
        rip: register(16),
        // What a program may set itself: carry to overflow, and alignment checks.
        rflags: register(17) & 0x4_0cd5,
    };
    Restored {
        context,
        mask: word(MASK_AT),
        stack,
        state_at: register(23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_restored_is_what_was_interrupted() {
        let context = kvm_regs {
            rax: 1,
            rbx: 2,
            rcx: 3,
            rdx: 4,
            rsi: 5,
            rdi: 6,
            rsp: 0x7fff_1230,
            rbp: 8,
            r8: 9,
            r9: 10,
            r10: 11,
            r11: 12,
            r12: 13,
            r13: 14,
            r14: 15,
            r15: 16,
            rip: 0x40_1234,
            rflags: 0x45,
        };
        let stack = HandlerStack {
            address: 0x1000_0000,
            bytes: 0x8000,
        };
        let mut taken = Taken {
            context: &context,
            mask: 0x55,
            stack,
            info: &[7; INFO_BYTES],
            restorer: 0x40_9999,
            flags: 0,
            state: &[0xee; 832],
            parts: 7,
            fault: [14, 6, 0xdead],
        };
        let frame = build(&taken);
        assert_eq!(frame.address % 16, 8);
        assert!(frame.address + frame.bytes.len() as u64 <= context.rsp - RED_ZONE);
        let head =
            |frame: &Frame| <[u8; FRAME_BYTES]>::try_from(&frame.bytes[..FRAME_BYTES]).unwrap();
        let restored = parse(&head(&frame));
        assert_eq!(restored.context, context);
        assert_eq!((restored.mask, restored.stack), (0x55, stack));
        assert_eq!(restored.state_at % 64, 0);
        let state = (restored.state_at - frame.address) as usize;
        assert_eq!(frame.bytes[state], 0xee);
        assert_eq!(frame.bytes[state + 832..], MAGIC_2.to_le_bytes());
        assert_eq!(frame.bytes[..8], 0x40_9999u64.to_le_bytes());
        let info = (frame.info() - frame.address) as usize;
        assert_eq!(frame.bytes[info..info + INFO_BYTES], [7; INFO_BYTES]);

        taken.flags = ON_STACK;
        let frame = build(&taken);
        assert!(stack.contains(frame.address));
        // One that runs there already goes on below.
        let inner = kvm_regs {
            rsp: frame.address,
            ..context
        };
        taken.context = &inner;
        assert!(build(&taken).address < frame.address - RED_ZONE);
    }
}
