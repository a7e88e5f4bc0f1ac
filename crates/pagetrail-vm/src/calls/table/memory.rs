//! Calls on memory: mappings, and what is about mappings.

use super::super::special;
use super::super::written::Output as Out;
use super::{Row, writes_nothing};
use crate::memory::Memory;
use crate::memory::mapping::Mmap;

/// `map_shadow_stack(2)`, which the crate `libc` does not have yet.
const SYS_MAP_SHADOW_STACK: libc::c_long = 453;

pub(super) const CALLS: &[Row] = &[
    Row::memory(
        libc::SYS_mmap,
        |memory, [address, bytes, protection, flags, descriptor, offset]| {
            memory.mmap(Mmap {
                address,
                bytes,
                protection,
                flags,
                descriptor,
                offset,
            })
        },
    ),
    Row::memory(libc::SYS_munmap, |memory, [address, bytes, ..]| {
        memory.munmap(address, bytes)
    }),
    Row::memory(
        libc::SYS_mprotect,
        |memory, [address, bytes, protection, ..]| memory.mprotect(address, bytes, protection),
    ),
    Row::memory(libc::SYS_mremap, Memory::mremap),
    Row::memory(libc::SYS_madvise, |memory, [address, bytes, advice, ..]| {
        memory.madvise(address, bytes, advice)
    }),
    Row::memory(libc::SYS_brk, |memory, [address, ..]| memory.brk(address)),
    Row::memory(libc::SYS_shmat, |memory, [segment, address, flags, ..]| {
        memory.attach(segment, address, flags)
    }),
    Row::memory(libc::SYS_shmdt, |memory, [address, ..]| {
        memory.detach(address)
    }),
    Row::perform(libc::SYS_mincore, |guest, call| {
        Ok(special::on_mapped(guest, call))
    })
    .writes(&[Out::PerPage(2, 1)]),
    Row::perform(libc::SYS_msync, |guest, call| {
        Ok(special::on_mapped(guest, call))
    })
    .writes(&[]),
    Row::perform(libc::SYS_mlock, |guest, call| {
        Ok(special::on_mapped(guest, call))
    })
    .writes(&[]),
    Row::perform(libc::SYS_mlock2, |guest, call| {
        Ok(special::on_mapped(guest, call))
    })
    .writes(&[]),
    Row::perform(libc::SYS_munlock, |guest, call| {
        Ok(special::on_mapped(guest, call))
    })
    .writes(&[]),
    Row::absent(libc::SYS_remap_file_pages),
    Row::absent(libc::SYS_pkey_alloc),
    Row::absent(libc::SYS_pkey_mprotect),
    Row::absent(SYS_MAP_SHADOW_STACK),
    Row::absent(libc::SYS_mseal),
    Row::absent(libc::SYS_modify_ldt),
    Row::absent(libc::SYS_iopl),
    Row::absent(libc::SYS_ioperm),
    writes_nothing(libc::SYS_membarrier),
    Row::forward(libc::SYS_getrandom).writes(&[Out::Filled(0, 1, 1)]),
];
