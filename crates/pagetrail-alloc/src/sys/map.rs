//! Memory from the kernel: `mmap(2)`, `mremap(2)`, `madvise(2)`. No call here changes `errno`, nor
//! needs libc to be ready.
//!
//! Memory with several aliases is shared anonymous memory: the kernel makes a file in memory for
//! it, as `memfd_create(2)` does, and it needs no descriptor. So a heap grows when the program has
//! no descriptor left, whatever size of files its limits allow (`RLIMIT_FSIZE`), and nothing breaks
//! when the program closes descriptors that it does not know.

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};
use std::ffi::c_void;
use std::ptr::null_mut;

fn read_write() -> ProtFlags {
    ProtFlags::READ | ProtFlags::WRITE
}

/// Private zeroed memory at a multiple of `align`. With `reserved`, only some of it will be used,
/// and the kernel does not account for all of it (`MAP_NORESERVE`).
pub(crate) fn private(bytes: usize, align: usize, reserved: bool) -> Result<*mut u8, Errno> {
    let mut flags = MapFlags::PRIVATE;
    if reserved {
        flags |= MapFlags::NORESERVE;
    }
    aligned(bytes, align, read_write(), flags)
}

/// Reserves addresses at a multiple of `align`, without memory.
pub(crate) fn addresses(bytes: usize, align: usize) -> Result<*mut u8, Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    aligned(bytes, align, ProtFlags::empty(), flags)
}

fn aligned(
    bytes: usize,
    align: usize,
    protection: ProtFlags,
    flags: MapFlags,
) -> Result<*mut u8, Errno> {
    let map = |bytes| {
        // SAFETY: a fresh mapping where the kernel finds room.
        unsafe { rustix::mm::mmap_anonymous(null_mut(), bytes, protection, flags) }
    };
    let first = map(bytes)?;
    if (first as usize).is_multiple_of(align) {
        return Ok(first.cast());
    }
    // SAFETY: it was mapped a moment ago, and no other thread has its address.
    unsafe { rustix::mm::munmap(first, bytes)? };
    let wide = bytes.checked_add(align).ok_or(Errno::NOMEM)?;
    let start = map(wide)? as usize;
    let kept = start.next_multiple_of(align);
    for (from, to) in [(start, kept), (kept + bytes, start + wide)] {
        if from < to {
            // SAFETY: of the fresh mapping, what is not kept.
            let _ = unsafe { rustix::mm::munmap(from as *mut c_void, to - from) };
        }
    }
    Ok(kept as *mut u8)
}

/// Maps the same fresh memory `count` times, one alias after the other, over addresses from
/// [`addresses`].
///
/// # Safety
///
/// `count * bytes` from `base` on belong to the caller, and are not in use.
pub(crate) unsafe fn map_aliases(base: *mut u8, bytes: usize, count: usize) -> Result<(), Errno> {
    let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the addresses belong to the caller and are not in use, so the fixed mapping replaces
    // nothing that is needed.
    unsafe { rustix::mm::mmap_anonymous(base.cast(), bytes, read_write(), flags)? };
    // SAFETY: alias 0 is shared memory from the call above, and the other addresses belong to the
    // caller.
    unsafe { alias_first(base, bytes, count) }
}

/// Maps shared memory as [`map_aliases`] does, once, wherever there is room.
pub(crate) fn shared(bytes: usize) -> Result<*mut u8, Errno> {
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: a fresh mapping where the kernel finds room.
    let mapped = unsafe { rustix::mm::mmap_anonymous(null_mut(), bytes, read_write(), flags)? };
    Ok(mapped.cast())
}

/// Makes aliases 1 to `count` show the memory of alias 0.
///
/// # Safety
///
/// Alias 0 is shared memory; the addresses of the others belong to the caller, and their contents
/// may be replaced.
pub(crate) unsafe fn alias_first(base: *mut u8, bytes: usize, count: usize) -> Result<(), Errno> {
    let flags = MremapFlags::MAYMOVE;
    for alias in 1..count {
        // SAFETY: an old size of 0 leaves the old mapping alone and maps the same memory again
        // (`mremap(2)`).
        unsafe {
            let to = base.add(alias * bytes);
            rustix::mm::mremap_fixed(base.cast(), 0, bytes, flags, to.cast())?;
        }
    }
    Ok(())
}

/// Puts a mapping in another one's place.
///
/// # Safety
///
/// Both mappings belong to the caller, and `from` is not in use.
pub(crate) unsafe fn replace(to: *mut u8, from: *mut u8, bytes: usize) -> Result<(), Errno> {
    // SAFETY: both mappings belong to the caller, which does not use `from`; `to` is replaced on
    // purpose.
    unsafe {
        rustix::mm::mremap_fixed(from.cast(), bytes, bytes, MremapFlags::MAYMOVE, to.cast())?;
    }
    Ok(())
}

/// Fails where [`replace`] and [`aliases`] would for want of mappings: mremap(2) wants a few more
/// than it needs (`mremap_to` in mm/mremap.c), and a forked child has as many as its parent.
pub(crate) fn can_replace() -> Result<(), Errno> {
    const BYTES: usize = 4096;
    let to = shared(BYTES)?;
    let from = shared(BYTES);
    // SAFETY: both were mapped a moment ago, and no other thread has their addresses.
    let replaced = from.and_then(|from| unsafe { replace(to, from, BYTES) });
    // SAFETY: neither is in use; where one has replaced the other, one mapping is left.
    unsafe {
        unmap(to, BYTES);
        if let (Ok(from), Err(_)) = (from, replaced) {
            unmap(from, BYTES);
        }
    }
    replaced
}

/// Makes a private mapping longer or shorter where it is.
///
/// # Safety
///
/// The mapping is the caller's, and the part that is cut off is not used any more.
pub(crate) unsafe fn resize(start: *mut u8, from: usize, to: usize) -> Result<(), Errno> {
    // SAFETY: the mapping of `from` bytes belongs to the caller, and what is cut off is not in use.
    unsafe { rustix::mm::mremap(start.cast(), from, to, MremapFlags::empty())? };
    Ok(())
}

/// Moves a private mapping over addresses of the caller's, and makes it longer.
///
/// # Safety
///
/// Both belong to the caller, neither is in use, and `to` has room for `to_bytes`.
pub(crate) unsafe fn relocate(
    from: *mut u8,
    from_bytes: usize,
    to: *mut u8,
    to_bytes: usize,
) -> Result<(), Errno> {
    let flags = MremapFlags::MAYMOVE;
    // SAFETY: both mappings belong to the caller and are not in use, and `to` has room for
    // `to_bytes`.
    unsafe { rustix::mm::mremap_fixed(from.cast(), from_bytes, to_bytes, flags, to.cast())? };
    Ok(())
}

/// Unmaps memory.
///
/// # Safety
///
/// The mapping belongs to the caller, and is not in use any more.
pub(crate) unsafe fn unmap(start: *mut u8, bytes: usize) {
    // SAFETY: the mapping belongs to the caller and is not in use.
    let _ = unsafe { rustix::mm::munmap(start.cast(), bytes) };
}

/// Enters memory in the page tables before it is touched, as written; its contents stay what they
/// are.
///
/// # Safety
///
/// The memory is mapped, and writable.
pub(crate) unsafe fn populate(start: usize, bytes: usize) {
    // SAFETY: the memory is mapped and writable, and `MADV_POPULATE_WRITE` keeps its contents.
    // Before Linux 5.14 it fails, and faults come one by one.
    let _ = unsafe { rustix::mm::madvise(start as *mut c_void, bytes, Advice::LinuxPopulateWrite) };
}

/// Frees the pages of shared memory, in all aliases; they read as zeros then.
///
/// # Safety
///
/// The contents are not needed any more.
pub(crate) unsafe fn remove(start: usize, bytes: usize) {
    // SAFETY: the contents are not needed, so that `MADV_REMOVE` may zero them; where it fails,
    // memory is kept.
    let _ = unsafe { rustix::mm::madvise(start as *mut c_void, bytes, Advice::LinuxRemove) };
}

/// Frees the pages of private memory; they read as zeros then. Returns false if the kernel refuses.
///
/// # Safety
///
/// The contents are not needed any more.
pub(crate) unsafe fn discard(start: usize, bytes: usize) -> bool {
    // SAFETY: the contents are not needed, so that `MADV_DONTNEED` may zero them.
    unsafe { rustix::mm::madvise(start as *mut c_void, bytes, Advice::LinuxDontNeed).is_ok() }
}
