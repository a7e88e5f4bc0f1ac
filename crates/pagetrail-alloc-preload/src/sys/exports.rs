//! The malloc family, `fork`, and `errno`.
//!
//! Rust's standard library allocates by `malloc` too, that is, here. Nothing in the heap allocates,
//! so that does no harm.

use heap::global;
use libc::{c_int, c_void, size_t};
use std::ptr::null_mut;

const PAGE: usize = 4096;

#[cold]
fn fail(errno: c_int) -> *mut c_void {
    // SAFETY: this thread's own errno.
    unsafe { *libc::__errno_location() = errno };
    null_mut()
}

#[inline]
fn or_errno(object: *mut u8) -> *mut c_void {
    if object.is_null() {
        return fail(libc::ENOMEM);
    }
    object.cast()
}

#[unsafe(no_mangle)]
extern "C" fn malloc(size: size_t) -> *mut c_void {
    // The first arm is taken nearly always. The rest is in a function of its own, so that this one
    // saves no registers.
    match global::allocate_at_hand(size) {
        Some(object) => object.as_ptr().cast(),
        None => malloc_slowly(size),
    }
}

#[cold]
#[inline(never)]
extern "C" fn malloc_slowly(size: size_t) -> *mut c_void {
    or_errno(global::allocate(size))
}

#[unsafe(no_mangle)]
extern "C" fn calloc(count: size_t, size: size_t) -> *mut c_void {
    match count.checked_mul(size) {
        Some(bytes) => or_errno(global::allocate_zeroed(bytes)),
        None => fail(libc::ENOMEM),
    }
}

/// # Safety
///
/// The conditions of libc's function hold.
#[unsafe(no_mangle)]
unsafe extern "C" fn free(object: *mut c_void) {
    // SAFETY: the program keeps the rules of `free(3)`, which the callees share.
    unsafe {
        if !global::free_at_hand(object.cast()) {
            free_slowly(object);
        }
    }
}

/// # Safety
///
/// The conditions of libc's function hold.
#[cold]
#[inline(never)]
unsafe extern "C" fn free_slowly(object: *mut c_void) {
    if !object.is_null() {
        // SAFETY: the program keeps the rules of `free(3)`, and the object is not null.
        unsafe { global::free(object.cast()) };
    }
}

/// # Safety
///
/// The conditions of libc's function hold.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(object: *mut c_void, size: size_t) -> *mut c_void {
    if object.is_null() {
        return malloc(size);
    }
    if size == 0 {
        // As glibc does.
        // SAFETY: the program keeps the rules of `realloc(3)`: the object is not used any more.
        unsafe { free(object) };
        return null_mut();
    }
    // SAFETY: the program keeps the rules of `realloc(3)`; the object is not null and the size is
    // positive.
    or_errno(unsafe { global::reallocate(object.cast(), size) })
}

/// # Safety
///
/// The conditions of libc's function hold.
#[unsafe(no_mangle)]
unsafe extern "C" fn reallocarray(object: *mut c_void, count: size_t, size: size_t) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the rules of `reallocarray(3)` for the object are those of `realloc(3)`.
        Some(bytes) => unsafe { realloc(object, bytes) },
        None => fail(libc::ENOMEM),
    }
}

/// Allocates at the next power of two, which glibc takes for an alignment that is not one.
fn aligned(align: size_t, size: size_t) -> *mut c_void {
    match align.checked_next_power_of_two() {
        Some(align) => or_errno(global::allocate_aligned(size, align)),
        None => fail(libc::EINVAL),
    }
}

#[unsafe(no_mangle)]
extern "C" fn memalign(align: size_t, size: size_t) -> *mut c_void {
    aligned(align, size)
}

#[unsafe(no_mangle)]
extern "C" fn aligned_alloc(align: size_t, size: size_t) -> *mut c_void {
    aligned(align, size)
}

/// # Safety
///
/// The conditions of libc's function hold.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(place: *mut *mut c_void, align: size_t, size: size_t) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    let object = global::allocate_aligned(size, align);
    if object.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: `posix_memalign(3)` requires that `place` is valid for a write of a pointer.
    unsafe { *place = object.cast() };
    0
}

#[unsafe(no_mangle)]
extern "C" fn valloc(size: size_t) -> *mut c_void {
    aligned(PAGE, size)
}

#[unsafe(no_mangle)]
extern "C" fn pvalloc(size: size_t) -> *mut c_void {
    match size.checked_next_multiple_of(PAGE) {
        Some(size) => aligned(PAGE, size),
        None => fail(libc::ENOMEM),
    }
}

/// # Safety
///
/// The conditions of libc's function hold.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc_usable_size(object: *mut c_void) -> size_t {
    if object.is_null() {
        return 0;
    }
    global::usable(object.cast())
}

/// Fails with `ENOMEM` where the heap cannot be copied for the child, as when `vm.max_map_count` is
/// used up.
///
/// # Safety
///
/// The conditions of libc's function hold.
#[unsafe(no_mangle)]
unsafe extern "C" fn fork() -> libc::pid_t {
    // SAFETY: a constant name; dlsym(3) may allocate, which is served here like any other call.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"fork".as_ptr()) };
    if next.is_null() {
        fail(libc::ENOSYS);
        return -1;
    }
    // SAFETY: the function of this name has this signature; the program keeps the rules of
    // `fork(2)`.
    unsafe {
        let next = std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> libc::pid_t>(next);
        global::fork_or_fail(next)
    }
}
