//! Functions on memory that goes back to what it was, again and again.

use super::checkpointer::free;
use super::{shared, sized};
use crate::failure::{Failure, Status, guard, invalid, null};
use crate::kept::{Arena, Handle, Kind};
use crate::types::{self, PAGETRAIL_TECHNIQUE_AUTO, Reset, Technique};
use pagetrail::Choice;
use pagetrail_checkpoint::Snapshot;
use std::ffi::c_void;
use std::mem::MaybeUninit;

/// Makes memory of zeros that can be put back to what it was, at the price of what was written.
///
/// `bytes`: its length, rounded up to whole pages. `arena`: gets it, to be freed by
/// pagetrail_arena_free(); NULL on failure.
///
/// It is shared memory: a child of fork(2) sees the parent's writes, and the other way round.
///
/// PAGETRAIL_STATUS_INVALID_ARGUMENT: no bytes. STORE: memory cannot be had. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_arena_new(
    bytes: usize,
    arena: Option<&mut MaybeUninit<*mut Arena>>,
) -> Status {
    guard(|| {
        let arena = arena.ok_or_else(|| null("arena is a null pointer"))?;
        arena.write(std::ptr::null_mut());
        if bytes == 0 {
            return Err(invalid("there are no bytes"));
        }
        let made = pagetrail_checkpoint::Arena::new(bytes)?;
        arena.write(Box::into_raw(Box::new(Arena(Handle::new(Kind::Plain(
            made,
        ))))));
        Ok(())
    })
}

/// Gets the memory, which is readable and writable until the arena is freed.
///
/// `memory`, `bytes`: get its address, which is that of a page, and its length; it stays there.
///
/// PAGETRAIL_STATUS_REFUSED: a call of pagetrail_arena_keep() has failed. BUSY, FORKED. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_arena_memory(
    arena: *mut Arena,
    memory: Option<&mut MaybeUninit<*mut c_void>>,
    bytes: Option<&mut MaybeUninit<usize>>,
) -> Status {
    guard(|| {
        let memory = memory.ok_or_else(|| null("memory is a null pointer"))?;
        let bytes = bytes.ok_or_else(|| null("bytes is a null pointer"))?;
        given(arena)?.with(|kind| {
            let slice: &mut [u8] = match kind {
                Kind::Plain(arena) => arena,
                Kind::Kept(snapshot) => snapshot,
                Kind::Gone => return Err(gone()),
            };
            memory.write(slice.as_mut_ptr().cast());
            bytes.write(slice.len());
            Ok(())
        })
    })
}

/// Remembers what the memory holds now: pagetrail_arena_reset() puts it back to that. A later call
/// remembers the new contents instead.
///
/// `technique`: how writes are noticed, PAGETRAIL_TECHNIQUE_*. No thread writes to the memory
/// during the call.
///
/// PAGETRAIL_STATUS_UNAVAILABLE: no technique works here, or not this one; the memory is unmapped
/// then. INVALID_ARGUMENT: there is no such technique. REFUSED, BUSY, FORKED. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_arena_keep(arena: *mut Arena, technique: Technique) -> Status {
    guard(|| {
        let technique = match technique {
            PAGETRAIL_TECHNIQUE_AUTO => Choice::Auto,
            number => types::technique(number)
                .ok_or_else(|| invalid("no technique has this number"))?
                .into(),
        };
        given(arena)?.with(|kind| {
            let plain = match std::mem::replace(kind, Kind::Gone) {
                Kind::Plain(arena) => arena,
                Kind::Kept(snapshot) => snapshot.into_arena(),
                Kind::Gone => return Err(gone()),
            };
            *kind = Kind::Kept(Snapshot::take_with(plain, technique)?);
            Ok(())
        })
    })
}

/// Puts the memory back to what it was when pagetrail_arena_keep() was called. Only the pages that
/// were written since are copied; where most are, all.
///
/// `reset`: gets what came of it; may be NULL. `size`: sizeof(pagetrail_reset) as the caller knows
/// it. No thread writes to the memory during the call.
///
/// PAGETRAIL_STATUS_REFUSED: nothing is kept. SYSTEM. BUSY, FORKED. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_arena_reset(
    arena: *mut Arena,
    reset: *mut Reset,
    size: usize,
) -> Status {
    guard(|| {
        given(arena)?.with(|kind| {
            let done = match kind {
                Kind::Kept(snapshot) => snapshot.reset()?,
                Kind::Plain(_) => {
                    let nothing = "nothing was kept that it could be put back to";
                    return Err(Failure::Misuse(Status::Refused, nothing));
                }
                Kind::Gone => return Err(gone()),
            };
            let facts = Reset {
                pages: done.pages,
                whole: done.whole,
            };
            match reset.is_null() {
                true => Ok(()),
                false => sized::write(reset, size, &facts),
            }
        })
    })
}

/// Frees an arena, and its memory.
///
/// `arena`: must not be used afterwards, nor its memory. NULL does nothing.
///
/// PAGETRAIL_STATUS_BUSY: another thread is inside a call on it; then it is not freed. One thread,
/// once. A forked child may free its copy.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_arena_free(arena: *mut Arena) -> Status {
    // SAFETY: made by `pagetrail_arena_new`, and the caller frees it once.
    guard(|| unsafe { free(arena, |arena| arena.0.is_idle()) })
}

fn gone() -> Failure {
    Failure::Misuse(
        Status::Refused,
        "its memory could not be watched, and is gone",
    )
}

fn given<'a>(arena: *mut Arena) -> Result<&'a Handle<Kind>, Failure> {
    let given = shared(arena).map(|arena| &arena.0);
    given.ok_or_else(|| null("arena is a null pointer"))
}
