//! The programs that run in the kernel, as instructions. Pure: descriptors of maps in, code out.
//!
//! Maps: `members` has the threads that count (key: thread ID as the kernel's own, value: [`ROOT`]
//! or [`MEMBER`]); `flights` the calls that are being timed (key: thread and function, value: which
//! call, since when); `functions` what is known of each function, per processor; `counts` how often
//! something happened, per processor.

use crate::code::{Code, FP, Helper, If, Label, Op, R0, R1, R2, R3, R4, R6, R7, R8, R9, Width};
use crate::format::Field;
use crate::interval::{FACTOR, INCREMENT, Interval};

/// A thread whose children count, and that does not count itself.
pub(crate) const ROOT: u32 = 2;
/// A thread that counts, as its children do.
pub(crate) const MEMBER: u32 = 1;

/// What is known of a function on a processor: offsets of numbers of 64 bits.
pub(crate) mod slot {
    /// Calls.
    pub(crate) const CALLS: i16 = 0;
    /// Calls to the next timed one.
    pub(crate) const LEFT: i16 = 8;
    /// The state of the generator.
    pub(crate) const STATE: i16 = 16;
    /// Timed calls.
    pub(crate) const SAMPLES: i16 = 24;
    /// The sum of their times.
    pub(crate) const SUM: i16 = 32;
    /// The sum of the squares, 128 bits.
    pub(crate) const SQUARES: i16 = 40;
    pub(crate) const SQUARES_HIGH: i16 = 48;
    /// The longest.
    pub(crate) const MOST: i16 = 56;
    /// All ones minus the shortest, so that 0 is no time yet.
    pub(crate) const LEAST_FROM_ABOVE: i16 = 64;
    /// Bytes of all.
    pub(crate) const BYTES: usize = 72;
}

/// The longest time whose square fits 64 bits, as an exclusive bound: 4.3 s.
const SQUARE_BITS: i32 = 32;

/// Descriptors of the maps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Maps {
    pub(crate) members: i32,
    pub(crate) flights: i32,
    pub(crate) functions: i32,
    pub(crate) counts: i32,
}

/// Looks a key up that stands on the stack; a value that is not there leads to `end`.
fn lookup(code: &mut Code, map: i32, key: i16, end: Label) {
    code.map(R1, map);
    code.reg(Op::Mov, R2, FP);
    code.imm(Op::Add, R2, key.into());
    code.call(Helper::Lookup);
    code.jump_imm(If::Eq, R0, 0, end);
}

/// Adds to a number.
fn add(code: &mut Code, at: crate::code::Reg, offset: i16, by: i32) {
    code.load(Width::B8, R1, at, offset);
    code.imm(Op::Add, R1, by);
    code.store(Width::B8, at, offset, R1);
}

/// Ends unless the current thread counts; its ID is in `R7` and at -4 then.
fn only_members(code: &mut Code, maps: &Maps, end: Label) {
    code.call(Helper::CurrentThread);
    code.imm(Op::Shl, R0, 32);
    code.imm(Op::Shr, R0, 32);
    code.reg(Op::Mov, R7, R0);
    code.store(Width::B4, FP, -4, R7);
    lookup(code, maps.members, -4, end);
    code.load(Width::B4, R1, R0, 0);
    code.jump_imm(If::Ne, R1, MEMBER as i32, end);
}

/// Before a function: counts the call, and begins to time one of so many.
pub(crate) fn entry(maps: &Maps, function: u32, interval: Interval) -> Vec<[u8; 8]> {
    let mut code = Code::default();
    let end = code.label();
    code.reg(Op::Mov, R6, R1);
    only_members(&mut code, maps, end);
    code.store_imm(Width::B4, FP, -4, function as i32);
    lookup(&mut code, maps.functions, -4, end);
    code.reg(Op::Mov, R8, R0);
    add(&mut code, R8, slot::CALLS, 1);
    code.load(Width::B8, R1, R8, slot::LEFT);
    code.imm(Op::Sub, R1, 1);
    code.store(Width::B8, R8, slot::LEFT, R1);
    code.jump_imm(If::Ne, R1, 0, end);
    // As `interval::draw` does.
    code.load(Width::B8, R1, R8, slot::STATE);
    code.wide(R2, FACTOR);
    code.reg(Op::Mul, R1, R2);
    code.wide(R2, INCREMENT);
    code.reg(Op::Add, R1, R2);
    code.store(Width::B8, R8, slot::STATE, R1);
    code.imm(Op::Shr, R1, 33);
    code.imm(Op::Mul, R1, interval.span() as i32);
    code.imm(Op::Shr, R1, 31);
    code.imm(Op::Add, R1, interval.low() as i32);
    code.store(Width::B8, R8, slot::LEFT, R1);
    // The call is known by its context, which is one place on the stack before and after it; so a
    // function that calls itself is not taken for the caller.
    code.store(Width::B4, FP, -16, R7);
    code.store_imm(Width::B4, FP, -12, function as i32);
    code.store(Width::B8, FP, -32, R6);
    code.store_imm(Width::B8, FP, -24, 0);
    code.map(R1, maps.flights);
    code.reg(Op::Mov, R2, FP);
    code.imm(Op::Add, R2, -16);
    code.reg(Op::Mov, R3, FP);
    code.imm(Op::Add, R3, -32);
    code.imm(Op::Mov, R4, 0);
    code.call(Helper::Update);
    lookup(&mut code, maps.flights, -16, end);
    code.reg(Op::Mov, R9, R0);
    // Last, so that as little as can be is timed.
    code.call(Helper::Nanoseconds);
    code.store(Width::B8, R9, 8, R0);
    code.here(end);
    code.exit();
    code.finish()
}

/// After a function: ends the timing of this call, if it is one that is timed.
pub(crate) fn leave(maps: &Maps, function: u32) -> Vec<[u8; 8]> {
    let mut code = Code::default();
    let end = code.label();
    code.reg(Op::Mov, R6, R1);
    code.call(Helper::CurrentThread);
    code.store(Width::B4, FP, -16, R0);
    code.store_imm(Width::B4, FP, -12, function as i32);
    lookup(&mut code, maps.flights, -16, end);
    code.load(Width::B8, R1, R0, 0);
    code.jump_reg(If::Ne, R1, R6, end);
    code.load(Width::B8, R9, R0, 8);
    code.call(Helper::Nanoseconds);
    code.reg(Op::Sub, R0, R9);
    code.reg(Op::Mov, R9, R0);
    code.map(R1, maps.flights);
    code.reg(Op::Mov, R2, FP);
    code.imm(Op::Add, R2, -16);
    code.call(Helper::Delete);
    code.store_imm(Width::B4, FP, -4, function as i32);
    lookup(&mut code, maps.functions, -4, end);
    code.reg(Op::Mov, R8, R0);
    add(&mut code, R8, slot::SAMPLES, 1);
    code.load(Width::B8, R1, R8, slot::SUM);
    code.reg(Op::Add, R1, R9);
    code.store(Width::B8, R8, slot::SUM, R1);
    let not_most = code.label();
    code.load(Width::B8, R1, R8, slot::MOST);
    code.jump_reg(If::Ge, R1, R9, not_most);
    code.store(Width::B8, R8, slot::MOST, R9);
    code.here(not_most);
    let not_least = code.label();
    code.imm(Op::Mov, R2, -1);
    code.reg(Op::Sub, R2, R9);
    code.load(Width::B8, R1, R8, slot::LEAST_FROM_ABOVE);
    code.jump_reg(If::Ge, R1, R2, not_least);
    code.store(Width::B8, R8, slot::LEAST_FROM_ABOVE, R2);
    code.here(not_least);
    let fits = code.label();
    code.wide(R1, (1 << SQUARE_BITS) - 1);
    code.jump_reg(If::Ge, R1, R9, fits);
    code.reg(Op::Mov, R9, R1);
    code.here(fits);
    code.reg(Op::Mul, R9, R9);
    let no_carry = code.label();
    code.load(Width::B8, R1, R8, slot::SQUARES);
    code.reg(Op::Add, R1, R9);
    code.store(Width::B8, R8, slot::SQUARES, R1);
    code.jump_reg(If::Ge, R1, R9, no_carry);
    add(&mut code, R8, slot::SQUARES_HIGH, 1);
    code.here(no_carry);
    code.here(end);
    code.exit();
    code.finish()
}

/// When a thread starts another one: the child counts if the parent does.
pub(crate) fn fork(maps: &Maps, parent: Field, child: Field) -> Vec<[u8; 8]> {
    let mut code = Code::default();
    let end = code.label();
    code.reg(Op::Mov, R6, R1);
    code.load(parent.width, R1, R6, parent.offset);
    code.store(Width::B4, FP, -4, R1);
    lookup(&mut code, maps.members, -4, end);
    code.load(child.width, R1, R6, child.offset);
    code.store(Width::B4, FP, -4, R1);
    code.store_imm(Width::B4, FP, -8, MEMBER as i32);
    code.map(R1, maps.members);
    code.reg(Op::Mov, R2, FP);
    code.imm(Op::Add, R2, -4);
    code.reg(Op::Mov, R3, FP);
    code.imm(Op::Add, R3, -8);
    code.imm(Op::Mov, R4, 0);
    code.call(Helper::Update);
    code.here(end);
    code.exit();
    code.finish()
}

/// When a thread ends: another one may get its ID.
pub(crate) fn gone(maps: &Maps, thread: Field) -> Vec<[u8; 8]> {
    let mut code = Code::default();
    code.load(thread.width, R1, R1, thread.offset);
    code.store(Width::B4, FP, -4, R1);
    code.map(R1, maps.members);
    code.reg(Op::Mov, R2, FP);
    code.imm(Op::Add, R2, -4);
    code.call(Helper::Delete);
    code.exit();
    code.finish()
}

/// Counts a tracepoint by numbers of its record: `high` (or the event's own number) and `low`.
pub(crate) fn count(maps: &Maps, event: u32, by: Option<(Field, Field)>) -> Vec<[u8; 8]> {
    let mut code = Code::default();
    let end = code.label();
    code.reg(Op::Mov, R6, R1);
    only_members(&mut code, maps, end);
    code.store_imm(Width::B4, FP, -12, event as i32);
    code.store_imm(Width::B4, FP, -16, 0);
    if let Some((high, low)) = by {
        code.load(high.width, R1, R6, high.offset);
        // Beside the event's number.
        code.imm(Op::Shl, R1, 16);
        code.imm(Op::Or, R1, event as i32);
        code.store(Width::B4, FP, -12, R1);
        code.load(low.width, R1, R6, low.offset);
        code.store(Width::B4, FP, -16, R1);
    }
    let (new, done) = (code.label(), code.label());
    lookup(&mut code, maps.counts, -16, new);
    add(&mut code, R0, 0, 1);
    code.jump(done);
    code.here(new);
    code.store_imm(Width::B8, FP, -24, 1);
    code.map(R1, maps.counts);
    code.reg(Op::Mov, R2, FP);
    code.imm(Op::Add, R2, -16);
    code.reg(Op::Mov, R3, FP);
    code.imm(Op::Add, R3, -24);
    code.imm(Op::Mov, R4, 0);
    code.call(Helper::Update);
    code.here(done);
    code.here(end);
    code.exit();
    code.finish()
}

/// Gives the ID of the current thread, as the kernel's own.
pub(crate) fn who() -> Vec<[u8; 8]> {
    let mut code = Code::default();
    code.call(Helper::CurrentThread);
    code.finish_with_result()
}
