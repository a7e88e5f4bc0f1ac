//! The contents of ring 0: a page of code, the descriptor tables, and per vCPU a page with its task
//! state and stack. Pure.
//!
//! | guest-physical | what |
//! |---|---|
//! | 0x1000 | code: system-call entry, return, one entry per exception |
//! | 0x2000 | the interrupt descriptor table |
//! | 0x3000 and on | a page per vCPU: GDT, TSS, stack |
//!
//! Ring 0 sees them from [`SYSTEM_BASE`] on. Each entry writes to a port of its own, which is a VM
//! exit, and returns to the program when the vCPU is run again.

use std::sync::atomic::Ordering;

use kvm_bindings::kvm_regs;

use crate::memory::{PAGE, SYSTEM_BASE, TABLES_FROM};
use crate::sys::system_memory::SystemMemory;

/// The port of a system call.
pub(crate) const PORT_CALL: u16 = 0x10;
/// The port of exception 0; those of the others follow.
const PORT_EXCEPTION: u16 = 0x80;
const VECTORS: u16 = 32;

const CODE: u64 = 0x1000;
/// The entry of `SYSCALL`.
pub(crate) const CALL: u64 = CODE;
/// The code that enters the program with all its registers.
pub(crate) const RETURN: u64 = CODE + 0x40;
const EXCEPTIONS: u64 = CODE + 0x100;
const EXCEPTION_BYTES: u64 = 32;
pub(crate) const IDT: u64 = 0x2000;
pub(crate) const IDT_BYTES: usize = VECTORS as usize * 16;
/// The pages that all vCPUs share.
pub(crate) const COMMON_PAGES: [u64; 2] = [CODE, IDT];
const FIRST_PAGE: u64 = 0x3000;
/// The number of vCPUs for which there is a page.
pub(crate) const PROCESSORS_MAX: u64 = (TABLES_FROM - FIRST_PAGE) / PAGE;

/// Segment selectors, with the numbers of Linux, since programs can see theirs.
pub(crate) mod selector {
    pub(crate) const SYSTEM_CODE: u16 = 0x10;
    pub(crate) const SYSTEM_DATA: u16 = 0x18;
    pub(crate) const USER_32: u16 = 0x23;
    pub(crate) const USER_DATA: u16 = 0x2b;
    pub(crate) const USER_CODE: u16 = 0x33;
    pub(crate) const TSS: u16 = 0x40;
}

/// The length of descriptors 0 to 9, of which the last two are the TSS.
pub(crate) const GDT_BYTES: usize = 10 * 8;
pub(crate) const TSS_BYTES: usize = 104;
const TSS_OFFSET: u64 = 0x100;

/// `out PORT, al; sysretq`
const CALL_CODE: [u8; 5] = [0xe6, PORT_CALL as u8, 0x48, 0x0f, 0x07];
/// `push rax; mov rax, cr3; mov cr3, rax; pop rax; iretq`: writing CR3 flushes the TLB.
const RETURN_CODE: [u8; 10] = [0x50, 0x0f, 0x20, 0xd8, 0x0f, 0x22, 0xd8, 0x58, 0x48, 0xcf];

/// The address after `pop rax`.
const RETURN_POPPED: u64 = RETURN + 8;

/// The code of an exception's entry: it pushes an error code where the processor pushes none, RAX,
/// and CR2, and exits. After the exit it removes them, and the program continues where it was.
fn exception_code(vector: u8) -> Vec<u8> {
    let mut code = Vec::new();
    if !pushes_error(vector) {
        code.extend([0x6a, 0x00]); // push 0
    }
    code.extend([0x50, 0x0f, 0x20, 0xd0, 0x50]); // push rax; mov rax, cr2; push rax
    code.extend([0xe6, PORT_EXCEPTION as u8 + vector]); // out PORT, al
    // pop rax; pop rax; add rsp, 8; iretq
    code.extend([0x58, 0x58, 0x48, 0x83, 0xc4, 0x08, 0x48, 0xcf]);
    code
}

/// Whether the processor pushes an error code (Intel's manual, volume 3, table 6-1).
fn pushes_error(vector: u8) -> bool {
    matches!(vector, 8 | 10..=14 | 17 | 21 | 29 | 30)
}

/// The exception whose entry writes to this port.
pub(crate) fn vector(port: u16) -> Option<u8> {
    let vector = port.checked_sub(PORT_EXCEPTION)?;
    (vector < VECTORS).then_some(vector as u8)
}

/// Where a vCPU is between the program and this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the program.
    Program,
    /// A system call is done, and the program has not been entered yet.
    AfterCall,
    /// In [`RETURN`], with the program's RAX in its register.
    Returning,
    /// In [`RETURN`], with the program's RAX on the stack.
    ReturningWithoutRax,
    /// An exception is resolved, and the program has not been entered yet.
    AfterException,
    /// Elsewhere in ring 0.
    Within,
}

/// Determines the place by the instruction pointer.
pub(crate) fn place(rip: u64) -> Place {
    let Some(offset) = rip.checked_sub(SYSTEM_BASE) else {
        return Place::Program;
    };
    let exceptions_end = EXCEPTIONS + u64::from(VECTORS) * EXCEPTION_BYTES;
    match offset {
        // After `out`.
        _ if offset == CALL + 2 => Place::AfterCall,
        // The first and the last instruction; after that one is the program.
        _ if offset == RETURN || offset == RETURN_POPPED => Place::Returning,
        _ if (RETURN..RETURN_POPPED).contains(&offset) => Place::ReturningWithoutRax,
        _ if (EXCEPTIONS..exceptions_end).contains(&offset) => {
            let vector = (offset - EXCEPTIONS) / EXCEPTION_BYTES;
            // The length of the code up to and with `out`. The frame stays until the program is
            // entered.
            let done = if pushes_error(vector as u8) { 7 } else { 9 };
            match (offset - EXCEPTIONS) % EXCEPTION_BYTES >= done {
                true => Place::AfterException,
                false => Place::Within,
            }
        }
        _ => Place::Within,
    }
}

/// Writes what all vCPUs share.
pub(crate) fn write_common(system: &SystemMemory) {
    system.write(CALL, &CALL_CODE);
    system.write(RETURN, &RETURN_CODE);
    for vector in 0..VECTORS as u8 {
        let offset = EXCEPTIONS + u64::from(vector) * EXCEPTION_BYTES;
        system.write(offset, &exception_code(vector));
        system.write(
            IDT + u64::from(vector) * 16,
            &gate(SYSTEM_BASE + offset, vector),
        );
    }
}

/// An interrupt gate. The program may raise breakpoint and overflow itself.
fn gate(handler: u64, vector: u8) -> [u8; 16] {
    let privilege = if matches!(vector, 3 | 4) { 3 } else { 0 };
    let mut gate = [0; 16];
    gate[0..2].copy_from_slice(&(handler as u16).to_le_bytes());
    gate[2..4].copy_from_slice(&selector::SYSTEM_CODE.to_le_bytes());
    gate[5] = 0x8e | privilege << 5;
    gate[6..8].copy_from_slice(&((handler >> 16) as u16).to_le_bytes());
    gate[8..12].copy_from_slice(&((handler >> 32) as u32).to_le_bytes());
    gate
}

/// What is on a vCPU's stack at the exit of an exception, from the lowest address on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) cr2: u64,
    pub(crate) rax: u64,
    pub(crate) error: u64,
    pub(crate) rip: u64,
    pub(crate) cs: u64,
    pub(crate) rflags: u64,
    pub(crate) rsp: u64,
}

/// The length of what `iretq` takes: RIP, CS, RFLAGS, RSP, SS.
const IRET_BYTES: u64 = 5 * 8;
/// The length of an exception's frame, which also has error code, RAX and CR2.
const FRAME_BYTES: u64 = IRET_BYTES + 3 * 8;

/// The page of one vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Page(u64);

impl Page {
    /// The page of vCPU `id`.
    pub(crate) fn of(id: u64) -> Self {
        Self(FIRST_PAGE + id * PAGE)
    }

    pub(crate) fn physical(self) -> u64 {
        self.0
    }

    pub(super) fn gdt(self) -> u64 {
        SYSTEM_BASE + self.0
    }

    pub(super) fn tss(self) -> u64 {
        SYSTEM_BASE + self.0 + TSS_OFFSET
    }

    fn stack(self) -> u64 {
        self.0 + PAGE
    }

    /// Writes descriptors and task state.
    pub(super) fn write(self, system: &SystemMemory) {
        let mut tss = [0; TSS_BYTES];
        tss[4..12].copy_from_slice(&(SYSTEM_BASE + self.stack()).to_le_bytes());
        // There is no map of permitted ports: its offset is beyond the end.
        tss[102..104].copy_from_slice(&(TSS_BYTES as u16).to_le_bytes());
        system.write(self.0 + TSS_OFFSET, &tss);
        let base = self.tss();
        let tss_low = (TSS_BYTES as u64 - 1)
            | (base & 0xff_ffff) << 16
            | 0x8b << 40
            | (base >> 24 & 0xff) << 56;
        let mut gdt = [0u64; GDT_BYTES / 8];
        for (selector, descriptor) in [
            (selector::SYSTEM_CODE, 0x00af_9b00_0000_ffff),
            (selector::SYSTEM_DATA, 0x00cf_9300_0000_ffff),
            (selector::USER_DATA, 0x00cf_f300_0000_ffff),
            (selector::USER_CODE, 0x00af_fb00_0000_ffff),
            (selector::TSS, tss_low),
            (selector::TSS + 8, base >> 32),
        ] {
            gdt[usize::from(selector / 8)] = descriptor;
        }
        let bytes: Vec<u8> = gdt.iter().flat_map(|word| word.to_le_bytes()).collect();
        system.write(self.0, &bytes);
    }

    /// The frame of the exception with which this vCPU has exited.
    pub(crate) fn frame(self, system: &SystemMemory) -> Frame {
        let first = (self.stack() - FRAME_BYTES) / 8;
        let word = |n: u64| system[(first + n) as usize].load(Ordering::Relaxed);
        Frame {
            cr2: word(0),
            rax: word(1),
            error: word(2),
            rip: word(3),
            cs: word(4),
            rflags: word(5),
            rsp: word(6),
        }
    }

    /// The program's RAX, where [`RETURN`] has pushed it.
    pub(super) fn rax_in_return(self, system: &SystemMemory) -> u64 {
        let at = self.stack() - IRET_BYTES - 8;
        system[(at / 8) as usize].load(Ordering::Relaxed)
    }

    /// Writes what [`RETURN`] takes, and returns its stack pointer.
    pub(super) fn write_return(self, system: &SystemMemory, context: &kvm_regs) -> u64 {
        let at = self.stack() - IRET_BYTES;
        let words = [
            context.rip,
            u64::from(selector::USER_CODE),
            // Interrupts are on in a program, and it cannot turn them off.
            context.rflags | 0x202,
            context.rsp,
            u64::from(selector::USER_DATA),
        ];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        system.write(at, &bytes);
        SYSTEM_BASE + at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exception_has_room_for_its_code_and_a_port() {
        for vector in 0..VECTORS as u8 {
            assert!(exception_code(vector).len() as u64 <= EXCEPTION_BYTES);
            assert_eq!(
                super::vector(PORT_EXCEPTION + u16::from(vector)),
                Some(vector)
            );
        }
        let end = EXCEPTIONS + u64::from(VECTORS) * EXCEPTION_BYTES;
        assert!(end <= CODE + PAGE);
        assert_eq!(vector(PORT_CALL), None);
        assert_eq!(vector(PORT_EXCEPTION + VECTORS), None);
    }

    #[test]
    fn places_are_found_by_the_instruction_pointer() {
        let at = |offset| place(SYSTEM_BASE + offset);
        assert_eq!(place(0x40_1000), Place::Program);
        assert_eq!([at(CALL), at(CALL + 2)], [Place::Within, Place::AfterCall]);
        assert_eq!([at(RETURN), at(RETURN + 8)], [Place::Returning; 2]);
        for within in [1, 4, 7] {
            assert_eq!(at(RETURN + within), Place::ReturningWithoutRax);
        }
        assert_eq!(RETURN_CODE[7..], [0x58, 0x48, 0xcf], "pop rax; iretq");
        for vector in 0..VECTORS as u8 {
            let code = exception_code(vector);
            let out = code.iter().position(|byte| *byte == 0xe6).unwrap() as u64;
            let entry = EXCEPTIONS + u64::from(vector) * EXCEPTION_BYTES;
            assert_eq!(
                [at(entry + out), at(entry + out + 2)],
                [Place::Within, Place::AfterException]
            );
        }
    }

    #[test]
    fn what_is_written_for_the_return_is_read_as_a_frame() {
        let system = SystemMemory::reserve(1 << 20, 1 << 20).unwrap();
        let page = Page::of(3);
        page.write(&system);
        let context = kvm_regs {
            rip: 0x40_1000,
            rsp: 0x7fff_0000,
            rflags: 0x44,
            ..Default::default()
        };
        let stack = page.write_return(&system, &context);
        assert_eq!(stack + IRET_BYTES, SYSTEM_BASE + page.physical() + PAGE);
        let frame = page.frame(&system);
        assert_eq!(
            (frame.rip, frame.rsp, frame.rflags),
            (0x40_1000, 0x7fff_0000, 0x246)
        );
        assert_eq!(frame.cs, 0x33);
    }
}
