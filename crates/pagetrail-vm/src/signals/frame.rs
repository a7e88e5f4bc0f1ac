//! The frame of a signal handler: `struct rt_sigframe` of x86-64, as
//! arch/x86/include/asm/sigframe.h has it. Pure.

use kvm_bindings::kvm_regs;

use super::{HandlerStack, ON_STACK};
use crate::processor::entry::selector;
use crate::sys::signal::INFO_BYTES;

/// The bytes that a leaf function may use below its stack pointer.
const RED_ZONE: u64 = 128;
/// The offsets in a frame: return address; flags, link and stack; registers; mask.
const CONTEXT_AT: u64 = 8;
const REGISTERS_AT: usize = 8 + 8 + 8 + 24;
const REGISTERS_BYTES: usize = 256;
const MASK_AT: usize = REGISTERS_AT + REGISTERS_BYTES;
const INFO_AT: usize = MASK_AT + 8;
/// The length of a frame without the extended state, which is above.
pub(crate) const FRAME_BYTES: usize = INFO_AT + INFO_BYTES;
/// The flags of a context: it has extended state, RFLAGS and SS.
const FLAGS: u64 = 0b111;

const MAGIC_1: u32 = 0x4650_5853;
pub(crate) const MAGIC_2: u32 = 0x4650_5845;
/// The offset of the software-reserved bytes in the FXSAVE area.
const SOFTWARE_AT: usize = 464;
/// The length of the FXSAVE area.
pub(crate) const FXSAVE_BYTES: usize = 512;
/// The offset of the word after it, which says which components of the extended state are there.
const PARTS_AT: usize = FXSAVE_BYTES;
/// x87 and SSE.
pub(crate) const LEGACY_PARTS: u64 = 0b11;
/// The length of the FXSAVE area and the header after it.
const STATE_BYTES_MIN: u32 = 576;

/// What a handler's frame contains.
#[derive(Debug)]
pub(crate) struct Taken<'a> {
    pub(crate) context: &'a kvm_regs,
    pub(crate) mask: u64,
    pub(crate) stack: HandlerStack,
    pub(crate) info: &'a [u8; INFO_BYTES],
    pub(crate) restorer: u64,
    pub(crate) flags: u64,
    /// The extended state in the processor's format.
    pub(crate) state: &'a [u8],
    /// The components of the extended state.
    pub(crate) parts: u64,
    /// The exception, its error code, and the address of a fault.
    pub(crate) fault: [u64; 3],
}

/// A frame for the program's stack.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// The address, which is the handler's stack pointer.
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

/// Builds a handler's frame, as get_sigframe() of arch/x86/kernel/signal.c does. Returns `None`
/// where it would exceed the alternate stack.
pub(crate) fn build(taken: &Taken<'_>) -> Option<Frame> {
    let now = taken.context.rsp;
    let below = now.wrapping_sub(RED_ZONE);
    let enters =
        taken.flags & ON_STACK != 0 && taken.stack.bytes > 0 && !taken.stack.contains(below);
    let top = match enters {
        true => taken.stack.address.wrapping_add(taken.stack.bytes),
        false => below,
    };
    let state_at = top.wrapping_sub(taken.state.len() as u64 + 4) & !63;
    // A function starts with a stack pointer that is 8 off a multiple of 16, since a return address
    // was pushed.
    let address = (state_at.wrapping_sub(FRAME_BYTES as u64) & !15).wrapping_sub(8);
    if (enters || taken.stack.contains(now)) && !taken.stack.reaches(address) {
        return None;
    }
    let mut bytes = Vec::with_capacity(top.wrapping_sub(address) as usize);
    let mut put = |words: &[u64]| bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    let [stack, stack_flags, stack_bytes] = taken.stack.saved();
    put(&[taken.restorer, FLAGS, 0, stack, stack_flags, stack_bytes]);
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
    let state_in = state_at.wrapping_sub(address) as usize;
    bytes.resize(state_in, 0);
    bytes.extend(taken.state);
    if let Some(parts) = bytes.get_mut(state_in + PARTS_AT) {
        // As in save_xstate_epilog() of the kernel: readers rely on these two.
        *parts |= LEGACY_PARTS as u8;
    }
    let software = state_in + SOFTWARE_AT;
    let length = taken.state.len() as u32;
    bytes[software..software + 4].copy_from_slice(&MAGIC_1.to_le_bytes());
    bytes[software + 4..software + 8].copy_from_slice(&(length + 4).to_le_bytes());
    bytes[software + 8..software + 16].copy_from_slice(&taken.parts.to_le_bytes());
    bytes[software + 16..software + 20].copy_from_slice(&length.to_le_bytes());
    bytes.extend(MAGIC_2.to_le_bytes());
    Some(Frame { address, bytes })
}

/// The RFLAGS bits that a program may set itself (`FIX_EFLAGS`): carry to overflow,
/// single-stepping, resume, alignment checks.
const OWN_FLAGS: u64 = 0x5_0dd5;

/// The extended state in a frame that is to be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SavedState {
    /// The state has `bytes`, with a header that says which components are there; those in `parts`
    /// count. The second magic word must be after them.
    Extended { bytes: usize, parts: u64 },
    /// The state is the FXSAVE area only: x87 and SSE.
    Legacy,
}

/// Determines the extended state in a frame by the software-reserved bytes, as
/// check_xstate_in_sigframe() of the kernel does. The processor has `state_bytes` of extended
/// state.
pub(crate) fn saved_state(old_area: &[u8; FXSAVE_BYTES], state_bytes: usize) -> SavedState {
    let word = |at: usize| {
        let at = SOFTWARE_AT + at;
        old_area[at..at + 4]
            .try_into()
            .map_or(0, u32::from_le_bytes)
    };
    let (magic, extended, bytes) = (word(0), word(4), word(16));
    let is_extended = magic == MAGIC_1
        && (STATE_BYTES_MIN..=state_bytes as u32).contains(&bytes)
        && bytes <= extended;
    match is_extended {
        true => SavedState::Extended {
            bytes: bytes as usize,
            parts: u64::from(word(8)) | u64::from(word(12)) << 32,
        },
        false => SavedState::Legacy,
    }
}

/// The contents of a frame for `sigreturn(2)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Restored {
    pub(crate) context: kvm_regs,
    pub(crate) mask: u64,
    /// Address, flags and length of the alternate stack.
    pub(crate) stack: [u64; 3],
    /// The address of the extended state; 0 for none.
    pub(crate) state_at: u64,
}

/// The address of the frame of a handler that has just returned.
pub(crate) fn address_after_return(stack_pointer: u64) -> u64 {
    // The program chooses the stack pointer, and may call sigreturn(2) with any.
    stack_pointer.wrapping_sub(8)
}

/// Decodes a frame's first [`FRAME_BYTES`].
pub(crate) fn parse(bytes: &[u8; FRAME_BYTES]) -> Restored {
    let word = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
    let register = |n: usize| word(REGISTERS_AT + n * 8);
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
        rflags: register(17) & OWN_FLAGS,
    };
    Restored {
        context,
        mask: word(MASK_AT),
        stack: [word(24), word(32), word(40)],
        state_at: register(23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_return_with_any_stack_pointer_has_an_address() {
        assert_eq!(address_after_return(0x1008), 0x1000);
        assert_eq!(address_after_return(0), u64::MAX - 7);
    }

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
            flags: 0,
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
        let frame = build(&taken).unwrap();
        assert_eq!(frame.address % 16, 8);
        assert!(frame.address + frame.bytes.len() as u64 <= context.rsp - RED_ZONE);
        let head =
            |frame: &Frame| <[u8; FRAME_BYTES]>::try_from(&frame.bytes[..FRAME_BYTES]).unwrap();
        let restored = parse(&head(&frame));
        assert_eq!(restored.context, context);
        assert_eq!((restored.mask, restored.stack), (0x55, stack.saved()));
        assert_eq!(restored.state_at % 64, 0);
        let state = (restored.state_at - frame.address) as usize;
        assert_eq!(frame.bytes[state], 0xee);
        let old: [u8; FXSAVE_BYTES] = frame.bytes[state..state + 512].try_into().unwrap();
        let expected = SavedState::Extended {
            bytes: 832,
            parts: 7,
        };
        assert_eq!(saved_state(&old, 832), expected);
        assert_eq!(saved_state(&old, 800), SavedState::Legacy);
        assert_eq!(saved_state(&[0; 512], 832), SavedState::Legacy);
        assert_eq!(frame.bytes[state + 832..], MAGIC_2.to_le_bytes());
        assert_eq!(frame.bytes[..8], 0x40_9999u64.to_le_bytes());
        let info = (frame.info() - frame.address) as usize;
        assert_eq!(frame.bytes[info..info + INFO_BYTES], [7; INFO_BYTES]);

        taken.flags = ON_STACK;
        let frame = build(&taken).unwrap();
        assert!(stack.contains(frame.address));
        // A thread that already runs on it continues below.
        let inner = kvm_regs {
            rsp: frame.address,
            ..context
        };
        taken.context = &inner;
        assert!(build(&taken).unwrap().address < frame.address - RED_ZONE);
        // Near its end there is no room.
        let last = kvm_regs {
            rsp: stack.address + 1000,
            ..context
        };
        taken.context = &last;
        assert_eq!(build(&taken), None);
    }
}
