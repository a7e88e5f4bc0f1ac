//! Machine code for a target, x86-64: the code itself, and padding in the target that has room for
//! it.
//!
//! [`Injected`] code is a slot of fixed length. Its end is a tag, so that slots that a killed
//! tracker has left are recognised. No instruction of it changes the flags or needs a stack.

use super::failure::{Attempt, Failure};
use crate::page_set::page_size;
use crate::proc::status::memory_id;
use crate::proc::text;
use crate::sys::own_vec::OwnVec;
use crate::sys::ptrace::{Registers, Tracee};
use crate::sys::remote_memory;
use rustix::io::Errno;

/// How long a slot is, in bytes.
pub(super) const SLOT_BYTES: usize = 224;
/// The last bytes of each slot.
const TAG: [u8; 8] = *b"pagetrl1";

/// What [`create_userfaultfd`] puts in place of a helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Helper {
    /// A thread with an empty descriptor table. Its descriptor can be had from Linux 6.9 on
    /// (`PIDFD_THREAD`).
    Thread,
    /// A process with an empty table, for whose end the thread waits. Such a table can be had from
    /// Linux 5.9 on (`CLOSE_RANGE_UNSHARE`).
    Process,
    /// A process with a copy of the table. A file that the program closes while the helper runs is
    /// closed for good only when the helper ends.
    ProcessWithCopy,
}

impl Helper {
    fn is_thread(self) -> bool {
        self == Self::Thread
    }

    /// The system calls that it and the thread make.
    pub(super) fn calls(self) -> &'static [i64] {
        match self {
            Self::Thread => &[
                libc::SYS_clone,
                libc::SYS_close_range,
                libc::SYS_userfaultfd,
                libc::SYS_exit,
                libc::SYS_rt_sigprocmask,
            ],
            Self::Process => &[
                libc::SYS_clone,
                libc::SYS_close_range,
                libc::SYS_userfaultfd,
                libc::SYS_exit,
                libc::SYS_wait4,
                libc::SYS_rt_sigprocmask,
            ],
            Self::ProcessWithCopy => &[
                libc::SYS_clone,
                libc::SYS_close,
                libc::SYS_userfaultfd,
                libc::SYS_exit,
                libc::SYS_wait4,
                libc::SYS_rt_sigprocmask,
            ],
        }
    }
}

/// A slot that creates a userfaultfd, and the offsets after those of its `syscall` instructions
/// that a tracker follows.
#[derive(Debug)]
pub(super) struct Creation {
    pub(super) slot: [u8; SLOT_BYTES],
    pub(super) after_clone: u64,
    /// The helper has a table of its own.
    pub(super) after_table: u64,
    pub(super) after_create: u64,
    /// The thread has seen the helper's end.
    pub(super) after_helper: u64,
}

/// Code that has a helper, with a descriptor table of its own, create a userfaultfd and end; the
/// thread waits for that, then blocks the signals `blocked` and no others, loads its registers, and
/// goes on at the place that `back` says.
pub(super) fn create_userfaultfd(
    helper: Helper,
    flags: u32,
    blocked: u64,
    back: &Registers,
) -> Creation {
    let mut code = Assembler::default();
    // The helper runs in the same memory, on the same stack, which it does not use; meanwhile the
    // thread stands still.
    let shared = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FS;
    let clone = match helper {
        Helper::Thread => shared | libc::CLONE_FILES | libc::CLONE_SIGHAND | libc::CLONE_THREAD,
        // Without a signal at its end; other threads that wait for children do not see it.
        Helper::Process => shared | libc::CLONE_FILES,
        Helper::ProcessWithCopy => shared,
    };
    code.eax(libc::SYS_clone);
    code.edi(clone as u32);
    code.esi(0);
    code.syscall();
    let after_clone = code.offset();
    code.put(&[0x48, 0x89, 0xc1]); // mov rcx, rax
    let to_helper = code.jump_if_rcx_zero();
    let to_thread = code.jump();
    code.lands(to_helper);
    let (after_table, after_create) = helper_part(&mut code, helper, flags);
    code.lands(to_thread);
    let after_helper = match helper.is_thread() {
        true => after_clone,
        false => {
            // Of a failed clone the result is no process: -1 would mean any child.
            code.put(&[0x48, 0x99]); // cqo: rdx = -1 if rax < 0, else 0
            code.put(&[0x48, 0x89, 0xd1]); // mov rcx, rdx
            let to_wait = code.jump_if_rcx_zero();
            let past = code.jump();
            code.lands(to_wait);
            code.put(&[0x89, 0xc7]); // mov edi, eax
            code.put(&[0x89, 0xd6]); // mov esi, edx, which is 0
            code.put(&[0x41, 0x89, 0xd2]); // mov r10d, edx
            code.edx(libc::__WALL as u32);
            code.eax(libc::SYS_wait4);
            code.syscall();
            let after_wait = code.offset();
            code.lands(past);
            after_wait
        }
    };
    code.eax(libc::SYS_rt_sigprocmask);
    code.edi(libc::SIG_SETMASK as u32);
    code.put(&[0x48, 0x8d, 0x35]); // lea rsi, [rip + the mask]
    let mask_at = SLOT_BYTES - TAG.len() - 8;
    code.put(&((mask_at - code.len - 4) as u32).to_le_bytes());
    code.put(&[0x99]); // cdq: edx = 0, since eax is positive
    code.r10d(8);
    code.syscall();
    // The kernel's entry uses up rcx and r11.
    for (opcode, value) in [
        ([0x48, 0xbf], back.rdi),
        ([0x48, 0xbe], back.rsi),
        ([0x48, 0xba], back.rdx),
        ([0x49, 0xba], back.r10),
        ([0x48, 0xb9], back.rcx),
        ([0x49, 0xbb], back.r11),
        ([0x48, 0xb8], back.rax),
    ] {
        code.put(&opcode); // movabs reg, imm64
        code.put(&value.to_le_bytes());
    }
    code.put(&[0xff, 0x25, 0, 0, 0, 0]); // jmp [rip + 0]
    code.put(&back.rip.to_le_bytes());
    code.skip_to(mask_at);
    code.put(&blocked.to_le_bytes());
    Creation {
        slot: code.slot(),
        after_clone,
        after_table,
        after_create,
        after_helper,
    }
}

/// What the helper executes, whose flags are its own; gives the offsets after its first two calls.
fn helper_part(code: &mut Assembler, helper: Helper, flags: u32) -> (u64, u64) {
    let may_fail = match helper {
        Helper::Thread | Helper::Process => {
            // An empty table of its own. All descriptors are in the range to be closed, so none
            // but the first 64 are copied (`sane_fdtable_size` in fs/file.c), and these are closed
            // before the call returns. None of the program's is closed, whose table this is no
            // longer.
            code.eax(libc::SYS_close_range);
            code.put(&[0x31, 0xff]); // xor edi, edi
            code.put(&[0x83, 0xce, 0xff]); // or esi, -1
            code.edx(libc::CLOSE_RANGE_UNSHARE);
            code.syscall();
            true
        }
        Helper::ProcessWithCopy => {
            // Closing one makes room where the limit on descriptors is used up.
            code.eax(libc::SYS_close);
            code.edi(0);
            code.syscall();
            false
        }
    };
    let after_table = code.offset();
    let to_end = may_fail.then(|| {
        // The table is still the program's: nothing may be put there.
        code.put(&[0x89, 0xc1]); // mov ecx, eax
        let go_on = code.jump_if_rcx_zero();
        let to_end = code.jump();
        code.lands(go_on);
        to_end
    });
    code.eax(libc::SYS_userfaultfd);
    code.edi(flags);
    code.syscall();
    let after_create = code.offset();
    if let Some(to_end) = to_end {
        code.lands(to_end);
    }
    code.eax(libc::SYS_exit);
    code.put(&[0x31, 0xff]); // xor edi, edi
    code.syscall();
    (after_table, after_create)
}

/// Instructions one after the other, at most a slot of them.
pub(super) struct Assembler {
    bytes: [u8; SLOT_BYTES],
    len: usize,
}

impl Default for Assembler {
    fn default() -> Self {
        Self {
            bytes: [0; SLOT_BYTES],
            len: 0,
        }
    }
}

/// The place of a jump's distance that is not known yet.
pub(super) struct Jump(usize);

impl Assembler {
    pub(super) fn put(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        self.bytes[self.len..end].copy_from_slice(bytes);
        self.len = end;
    }

    /// How many bytes there are so far.
    pub(super) fn offset(&self) -> u64 {
        self.len as u64
    }

    pub(super) fn eax(&mut self, call: i64) {
        self.load(&[0xb8], call as u32);
    }

    fn edi(&mut self, value: u32) {
        self.load(&[0xbf], value);
    }

    fn esi(&mut self, value: u32) {
        self.load(&[0xbe], value);
    }

    fn edx(&mut self, value: u32) {
        self.load(&[0xba], value);
    }

    fn r10d(&mut self, value: u32) {
        self.load(&[0x41, 0xba], value);
    }

    /// `mov r32, imm32`.
    fn load(&mut self, opcode: &[u8], value: u32) {
        self.put(opcode);
        self.put(&value.to_le_bytes());
    }

    pub(super) fn syscall(&mut self) {
        self.put(&[0x0f, 0x05]);
    }

    /// `jrcxz`: a condition that is not a flag.
    pub(super) fn jump_if_rcx_zero(&mut self) -> Jump {
        self.put(&[0xe3, 0]);
        Jump(self.len)
    }

    pub(super) fn jump(&mut self) -> Jump {
        self.put(&[0xeb, 0]);
        Jump(self.len)
    }

    /// A conditional jump, by its opcode.
    pub(super) fn jump_if(&mut self, opcode: u8) -> Jump {
        self.put(&[opcode, 0]);
        Jump(self.len)
    }

    /// A place for jumps back.
    pub(super) fn here(&self) -> Jump {
        Jump(self.len)
    }

    /// A jump back to a place, by its opcode.
    pub(super) fn jump_back(&mut self, opcode: u8, to: Jump) {
        let distance = to.0 as i64 - (self.len as i64 + 2);
        debug_assert!(distance >= i64::from(i8::MIN));
        self.put(&[opcode, distance as i8 as u8]);
    }

    /// A jump comes here.
    pub(super) fn lands(&mut self, jump: Jump) {
        let distance = self.len - jump.0;
        debug_assert!(distance <= i8::MAX as usize);
        self.bytes[jump.0 - 1] = distance as u8;
    }

    /// Leaves zeros up to an offset.
    fn skip_to(&mut self, offset: usize) {
        debug_assert!(self.len <= offset);
        self.len = offset;
    }

    /// Fills the slot up.
    pub(super) fn slot(mut self) -> [u8; SLOT_BYTES] {
        self.skip_to(SLOT_BYTES - TAG.len());
        self.put(&TAG);
        self.bytes
    }
}

/// The end of an executable mapping.
struct End {
    /// Which is tried first.
    rank: (bool, bool, u64),
    at: u64,
}

/// The ends of the executable private mappings of a process: of the vDSO first, of writable ones
/// last. Allocates nothing.
fn ends(pid: u32) -> Attempt<OwnVec<End>> {
    let mut ends = OwnVec::new();
    let mut outcome = Ok(());
    let path = memory_id(pid);
    let listed = text::lines(format_args!("/proc/{path}/maps"), |line| {
        // As `559e79e77000-559e79e98000 r-xp 00000000 00:00 0        [vdso]`.
        let mut fields = line.split(|&byte| byte == b' ');
        let (Some(range), Some(rights)) = (fields.next(), fields.next()) else {
            return;
        };
        let is_private_code = rights.get(2..4) == Some(b"xp");
        let end = range.split(|&byte| byte == b'-').nth(1).and_then(text::hex);
        if let Some(at) = end
            && is_private_code
            && !line.ends_with(b"[vsyscall]")
        {
            let is_vdso = line.ends_with(b" [vdso]");
            let rank = (!is_vdso, rights[1] == b'w', at);
            outcome = outcome.and(ends.push(End { rank, at }));
        }
    });
    listed
        .and(outcome)
        .map_err(Failure::of("read the mappings"))?;
    ends.sort_unstable_by_key(|end| end.rank);
    Ok(ends)
}

/// Room for a slot: zeros at the end of an executable private mapping, the vDSO first, such that
/// there is room for as many more as are `spare`. Or a slot with this `content`, if there is one.
pub(super) fn find(pid: u32, content: Option<&[u8]>, spare: usize) -> Attempt<(u64, bool)> {
    const PAGE_BYTES_MAX: usize = 1 << 16;
    let page = (page_size() as usize).min(PAGE_BYTES_MAX);
    let mut bytes = [0xff; PAGE_BYTES_MAX];
    let bytes = &mut bytes[..page];
    let mut room = None;
    for end in ends(pid)?.iter() {
        let last_page = end.at - page as u64;
        if remote_memory::read(pid, last_page, bytes) != Ok(page) {
            continue;
        }
        let mut end = page;
        while let Some(start) = end.checked_sub(SLOT_BYTES) {
            let slot = &bytes[start..end];
            let at = last_page + start as u64;
            if content == Some(slot) {
                return Ok((at, true));
            }
            if slot.iter().all(|&byte| byte == 0) {
                let more = start
                    .checked_sub(spare * SLOT_BYTES)
                    .map(|from| &bytes[from..start]);
                if more.is_some_and(|more| more.iter().all(|&byte| byte == 0)) {
                    room = room.or(Some(at));
                }
                break;
            }
            // Below code of ours there may be more room.
            if !is_ours(slot) {
                break;
            }
            end = start;
        }
        if room.is_some() && content.is_none() {
            break;
        }
    }
    room.map(|at| (at, false)).ok_or(Failure::NoPadding)
}

/// Whether this is a slot in use.
fn is_ours(slot: &[u8]) -> bool {
    slot.ends_with(&TAG)
}

/// Writes a slot, the tag first: one that is written in part is recognised as well.
pub(super) fn write(tracee: &Tracee, at: u64, slot: &[u8]) -> Result<(), Errno> {
    poke(tracee, at, slot.chunks_exact(8).enumerate().rev(), slot)
}

/// Makes a slot padding again, the tag last.
pub(super) fn clear(tracee: &Tracee, at: u64) -> Result<(), Errno> {
    let nothing = [0; SLOT_BYTES];
    poke(tracee, at, nothing.chunks_exact(8).enumerate(), &nothing)
}

fn poke<'a>(
    tracee: &Tracee,
    at: u64,
    words: impl Iterator<Item = (usize, &'a [u8])>,
    slot: &[u8],
) -> Result<(), Errno> {
    debug_assert_eq!(slot.len(), SLOT_BYTES);
    for (index, word) in words {
        let mut eight = [0; 8];
        eight.copy_from_slice(word);
        tracee.poke(at + 8 * index as u64, eight)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::ptrace;

    #[test]
    fn code_is_recognised_whatever_it_does() {
        let mut back = ptrace::no_registers();
        back.rip = 0x1234_5678_9abc;
        back.rax = u64::MAX;
        for helper in [Helper::Thread, Helper::Process, Helper::ProcessWithCopy] {
            let creation = create_userfaultfd(helper, 1, u64::MAX, &back);
            assert_eq!(creation.slot.len(), SLOT_BYTES);
            assert!(is_ours(&creation.slot));
            for after in [
                creation.after_clone,
                creation.after_table,
                creation.after_create,
            ] {
                assert_eq!(creation.slot[after as usize - 2..][..2], [0x0f, 0x05]);
            }
        }
        assert!(!is_ours(&[0; SLOT_BYTES]));
        assert!(!is_ours(&[0x90; SLOT_BYTES]));
    }
}
