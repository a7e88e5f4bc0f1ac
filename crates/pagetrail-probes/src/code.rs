//! [`Code`]: BPF instructions (`linux/bpf.h`; RFC 9669), and jumps to one end. Pure.

/// A register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reg(u8);

/// Results of calls.
pub(crate) const R0: Reg = Reg(0);
/// The first argument of calls, and on entry the program's.
pub(crate) const R1: Reg = Reg(1);
pub(crate) const R2: Reg = Reg(2);
pub(crate) const R3: Reg = Reg(3);
pub(crate) const R4: Reg = Reg(4);
/// Calls leave the registers from here on as they are.
pub(crate) const R6: Reg = Reg(6);
pub(crate) const R7: Reg = Reg(7);
pub(crate) const R8: Reg = Reg(8);
pub(crate) const R9: Reg = Reg(9);
/// The end of the stack, which grows down.
pub(crate) const FP: Reg = Reg(10);

/// Functions of the kernel that programs may call: `enum bpf_func_id`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Helper {
    Lookup = 1,
    Update = 2,
    Delete = 3,
    Nanoseconds = 5,
    CurrentThread = 14,
}

/// Operations on a register: `BPF_OP` of arithmetic on 64 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Add = 0x00,
    Sub = 0x10,
    Mul = 0x20,
    Or = 0x40,
    Shl = 0x60,
    Shr = 0x70,
    Mov = 0xb0,
}

/// Comparisons, without sign.
#[derive(Clone, Copy, Debug)]
pub(crate) enum If {
    Eq = 0x10,
    Ge = 0x30,
    Ne = 0x50,
}

/// The width of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    B1 = 0x10,
    B2 = 0x08,
    B4 = 0x00,
    B8 = 0x18,
}

const LD_IMM: u8 = 0x18;
const LDX_MEM: u8 = 0x61;
const STX_MEM: u8 = 0x63;
const ST_MEM: u8 = 0x62;
const ALU64: u8 = 0x07;
const JMP: u8 = 0x05;
const SOURCE_REG: u8 = 0x08;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const PSEUDO_MAP_FD: u8 = 1;

/// A place that jumps lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label(usize);

/// A program while it is written.
#[derive(Debug, Default)]
pub(crate) struct Code {
    instructions: Vec<[u8; 8]>,
    jumps: Vec<(usize, Label)>,
    labels: Vec<Option<usize>>,
}

impl Code {
    fn push(&mut self, code: u8, to: Reg, from: Reg, offset: i16, immediate: i32) {
        let mut bytes = [code, from.0 << 4 | to.0, 0, 0, 0, 0, 0, 0];
        bytes[2..4].copy_from_slice(&offset.to_le_bytes());
        bytes[4..].copy_from_slice(&immediate.to_le_bytes());
        self.instructions.push(bytes);
    }

    pub(crate) fn reg(&mut self, op: Op, to: Reg, from: Reg) {
        self.push(ALU64 | SOURCE_REG | op as u8, to, from, 0, 0);
    }

    pub(crate) fn imm(&mut self, op: Op, to: Reg, value: i32) {
        self.push(ALU64 | op as u8, to, R0, 0, value);
    }

    /// Loads 64 bits that stand in the program.
    pub(crate) fn wide(&mut self, to: Reg, value: u64) {
        self.push(LD_IMM, to, R0, 0, value as u32 as i32);
        self.push(0, R0, R0, 0, (value >> 32) as u32 as i32);
    }

    /// Loads a map, by its descriptor.
    pub(crate) fn map(&mut self, to: Reg, descriptor: i32) {
        self.push(LD_IMM, to, Reg(PSEUDO_MAP_FD), 0, descriptor);
        self.push(0, R0, R0, 0, 0);
    }

    pub(crate) fn load(&mut self, width: Width, to: Reg, base: Reg, offset: i16) {
        self.push(LDX_MEM | width as u8, to, base, offset, 0);
    }

    pub(crate) fn store(&mut self, width: Width, base: Reg, offset: i16, from: Reg) {
        self.push(STX_MEM | width as u8, base, from, offset, 0);
    }

    pub(crate) fn store_imm(&mut self, width: Width, base: Reg, offset: i16, value: i32) {
        self.push(ST_MEM | width as u8, base, R0, offset, value);
    }

    pub(crate) fn call(&mut self, helper: Helper) {
        self.push(CALL, R0, R0, 0, helper as i32);
    }

    pub(crate) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Puts a label here.
    pub(crate) fn here(&mut self, label: Label) {
        self.labels[label.0] = Some(self.instructions.len());
    }

    /// Jumps.
    pub(crate) fn jump(&mut self, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.push(JMP, R0, R0, 0, 0);
    }

    pub(crate) fn jump_imm(&mut self, on: If, reg: Reg, value: i32, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.push(JMP | on as u8, reg, R0, 0, value);
    }

    pub(crate) fn jump_reg(&mut self, on: If, left: Reg, right: Reg, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.push(JMP | SOURCE_REG | on as u8, left, right, 0, 0);
    }

    /// Ends the program with 0.
    pub(crate) fn exit(&mut self) {
        self.imm(Op::Mov, R0, 0);
        self.push(EXIT, R0, R0, 0, 0);
    }

    /// Ends the program with what is in `R0`; the bytes.
    pub(crate) fn finish_with_result(mut self) -> Vec<[u8; 8]> {
        self.push(EXIT, R0, R0, 0, 0);
        self.finish()
    }

    /// The bytes, jumps resolved. A label that stands nowhere leaves a jump to the next
    /// instruction, which the kernel's verifier then sees.
    pub(crate) fn finish(mut self) -> Vec<[u8; 8]> {
        for (at, label) in &self.jumps {
            let target = self.labels[label.0].unwrap_or(at + 1);
            let distance = (target as i64 - *at as i64 - 1) as i16;
            self.instructions[*at][2..4].copy_from_slice(&distance.to_le_bytes());
        }
        self.instructions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_have_the_bytes_that_the_kernel_documents() {
        let mut code = Code::default();
        let end = code.label();
        code.imm(Op::Mov, R1, -2);
        code.reg(Op::Add, R6, R1);
        code.wide(R2, 0x1122_3344_5566_7788);
        code.load(Width::B4, R1, R6, 24);
        code.store(Width::B8, FP, -16, R6);
        code.jump_imm(If::Ne, R0, 5, end);
        code.call(Helper::Nanoseconds);
        code.here(end);
        code.exit();
        let expected: [[u8; 8]; 10] = [
            [0xb7, 0x01, 0, 0, 0xfe, 0xff, 0xff, 0xff],
            [0x0f, 0x16, 0, 0, 0, 0, 0, 0],
            [0x18, 0x02, 0, 0, 0x88, 0x77, 0x66, 0x55],
            [0x00, 0x00, 0, 0, 0x44, 0x33, 0x22, 0x11],
            [0x61, 0x61, 24, 0, 0, 0, 0, 0],
            [0x7b, 0x6a, 0xf0, 0xff, 0, 0, 0, 0],
            [0x55, 0x00, 1, 0, 5, 0, 0, 0],
            [0x85, 0x00, 0, 0, 5, 0, 0, 0],
            [0xb7, 0x00, 0, 0, 0, 0, 0, 0],
            [0x95, 0x00, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(code.finish(), expected);
    }
}
