//! The border to C: every exported function, and all `unsafe` of this crate. `pagetrail.h` is
//! generated from here, so the comments are written for readers of C.
//!
//! A reference in an `Option` is a pointer that may be null; what it points to is the caller's
//! word, as everywhere in C. Structs that may grow come with their size, and cross the border byte
//! by byte (`sized`).
#![allow(
    unsafe_code,
    reason = "the fence: exported names and C's pointers are unsafe, everything above is safe"
)]
#![allow(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "these functions are for C, where every call is as unsafe as any"
)]

pub mod arena;
pub mod checkpointer;
pub mod general;
pub mod guest;
pub mod overhead;
pub mod restore;
pub mod round;
pub mod set;
pub(crate) mod sized;
pub mod snapshot;
pub mod subpages;
pub mod watch;

/// What a pointer points to that is not `const` in C because the call changes something; threads
/// may share it.
fn shared<'a, T>(pointer: *mut T) -> Option<&'a T> {
    // SAFETY: null, or made by this library and not freed yet, which the header requires of the
    // caller; what changes is behind a lock.
    unsafe { pointer.as_ref() }
}
