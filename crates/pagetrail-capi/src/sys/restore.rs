//! Functions that start processes from a checkpoint.

use super::checkpointer::{free, path};
use super::{shared, sized};
use crate::failure::{Failure, Status, guard, invalid, null};
use crate::kept::{Handle, Pager};
use crate::types::{
    self, Given, PAGETRAIL_RESTORE_ANY_PID, PAGETRAIL_RESTORE_CHANGED_FILES,
    PAGETRAIL_RESTORE_FOREGROUND, PAGETRAIL_RESTORE_NULL_MISSING, PAGETRAIL_RESTORE_NULL_STDIO,
    Restored,
};
use pagetrail_checkpoint::{Image, Store};
use pagetrail_restore::{Missing, PidChoice, RestoreOptions, Stdio};
use std::ffi::c_char;
use std::mem::MaybeUninit;

/// Starts a process anew from a checkpoint that `pagetrail checkpoint --restorable=own` has taken;
/// x86-64. It is a child of the caller's, to be waited for by waitpid(2).
///
/// `store`: the directory. `number`: which checkpoint; 0 for the newest. `flags`: some of
/// PAGETRAIL_RESTORE_*, or 0. `restored`: gets what came of it. `size`: sizeof(pagetrail_restored)
/// as the caller knows it.
///
/// An image decides what the new process executes and opens, with the caller's rights: restore only
/// what you trust as you trust a program.
///
/// PAGETRAIL_STATUS_STORE: the store is damaged, or there is no such checkpoint; a damaged page is
/// named before the process runs. REFUSED: a file has changed or is missing, the PID is taken, or
/// the checkpoint was not made for this. PERMISSION: it takes a capability to choose the PID.
/// SYSTEM. After a failure nothing of the process is left. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_restore(
    store: *const c_char,
    number: u64,
    flags: u32,
    restored: *mut Restored,
    size: usize,
) -> Status {
    guard(|| {
        if restored.is_null() {
            return Err(null("restored is a null pointer"));
        }
        let (mut image, options) = wanted(store, number, flags)?;
        let started = pagetrail_restore::restore(&mut image, &options)?;
        let facts = facts(image.manifest().number, &started);
        sized::write(restored, size, &facts)
    })
}

/// Starts a process anew as pagetrail_restore() does, which runs at once, however large it is: it
/// gets its pages by pagetrail_pager_finish(), those first that it touches first.
///
/// `pager`: gets what has its pages, to be given to pagetrail_pager_finish() soon; NULL on failure.
/// Freed before that, or when the caller ends, it ends the process, which would see zeros instead.
///
/// PAGETRAIL_STATUS_REFUSED: as for pagetrail_restore(), or the kernel does not let the caller give
/// pages to another process (CAP_SYS_PTRACE). Others as for pagetrail_restore(). Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_restore_lazily(
    store: *const c_char,
    number: u64,
    flags: u32,
    restored: *mut Restored,
    size: usize,
    pager: Option<&mut MaybeUninit<*mut Pager>>,
) -> Status {
    guard(|| {
        let pager = pager.ok_or_else(|| null("pager is a null pointer"))?;
        pager.write(std::ptr::null_mut());
        if restored.is_null() {
            return Err(null("restored is a null pointer"));
        }
        let (image, options) = wanted(store, number, flags)?;
        let number = image.manifest().number;
        let (started, gives) = pagetrail_restore::restore_lazily(image, &options)?;
        sized::write(restored, size, &facts(number, &started))?;
        let gives = Handle::new(Some(gives));
        pager.write(Box::into_raw(Box::new(Pager(gives))));
        Ok(())
    })
}

/// Gives a process that was restored lazily its pages, until it has all, or has ended. Others of
/// the caller's threads go on meanwhile.
///
/// `given`: gets what it was given; may be NULL. `size`: sizeof(pagetrail_given) as the caller
/// knows it.
///
/// PAGETRAIL_STATUS_STORE: the store is damaged, or fails. SYSTEM: the kernel does not take a page.
/// After both the process has ended, and children that lacked pages as well. REFUSED: it was called
/// before. BUSY, FORKED. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_pager_finish(
    pager: *mut Pager,
    given: *mut Given,
    size: usize,
) -> Status {
    guard(|| {
        let pager = shared(pager).ok_or_else(|| null("pager is a null pointer"))?;
        pager.0.with(|inside| {
            let finished =
                || Failure::Misuse(Status::Refused, "the process has all its pages already");
            let got = inside.take().ok_or_else(finished)?.finish()?;
            let facts = Given {
                pages: got.pages,
                faults: got.faults,
                elapsed_ns: types::nanoseconds(got.elapsed),
            };
            match given.is_null() {
                true => Ok(()),
                false => sized::write(given, size, &facts),
            }
        })
    })
}

/// Frees a pager. A process that lacks pages ends.
///
/// `pager`: must not be used afterwards. NULL does nothing.
///
/// PAGETRAIL_STATUS_BUSY: another thread is inside a call on it; then it is not freed. FORKED: in a
/// forked child, where it stays. One thread, once.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_pager_free(pager: *mut Pager) -> Status {
    guard(|| {
        if let Some(pager) = shared(pager) {
            // A child may not end its parent's process.
            pager.0.with(|_| Ok(()))?;
        }
        // SAFETY: made by `pagetrail_restore_lazily`, and the caller frees it once.
        unsafe { free(pager, |pager| pager.0.is_idle()) }
    })
}

/// Starts a process anew as pagetrail_restore() does, `count` times, from one image: the copies
/// share all pages that none of them writes to. Each has a PID of its own, whatever `flags` say.
///
/// `restored`: gets what came of each, `count` structs one after the other, each of `size` bytes.
///
/// PAGETRAIL_STATUS_REFUSED: as for pagetrail_restore(), or the process listens at a socket, which
/// only one copy can. Others as for pagetrail_restore(); after a failure none is left. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_restore_copies(
    store: *const c_char,
    number: u64,
    flags: u32,
    count: u32,
    restored: *mut Restored,
    size: usize,
) -> Status {
    guard(|| {
        if restored.is_null() {
            return Err(null("restored is a null pointer"));
        }
        if size == 0 || count == 0 {
            return Err(invalid("there is no copy, or the size of the struct is 0"));
        }
        let (mut image, options) = wanted(store, number, flags)?;
        let started = pagetrail_restore::restore_copies(&mut image, &options, count)?;
        let number = image.manifest().number;
        for (at, copy) in started.iter().enumerate() {
            let to = restored.wrapping_byte_add(at * size);
            sized::write(to, size, &facts(number, copy))?;
        }
        Ok(())
    })
}

fn facts(number: u64, started: &pagetrail_restore::Restored) -> Restored {
    Restored {
        number,
        pages: started.pages,
        elapsed_ns: types::nanoseconds(started.elapsed),
        pid: started.pid,
        threads: started.threads as u32,
        lost: types::text(started.lost.join("; ")),
    }
}

/// The image that is asked for, and how it is to be restored.
fn wanted(
    store: *const c_char,
    number: u64,
    flags: u32,
) -> Result<(Image, RestoreOptions), Failure> {
    let options = options(flags)?;
    let store = Store::open(path(store)?)?;
    let image = match number {
        0 => store.newest_image()?,
        number => store.image(number)?,
    };
    Ok((image, options))
}

fn options(flags: u32) -> Result<RestoreOptions, Failure> {
    const FLAGS: u32 = PAGETRAIL_RESTORE_ANY_PID
        | PAGETRAIL_RESTORE_NULL_STDIO
        | PAGETRAIL_RESTORE_NULL_MISSING
        | PAGETRAIL_RESTORE_CHANGED_FILES
        | PAGETRAIL_RESTORE_FOREGROUND;
    if flags & !FLAGS != 0 {
        return Err(invalid("a flag is not known to this version"));
    }
    let is_set = |flag| flags & flag != 0;
    Ok(RestoreOptions {
        pid: match is_set(PAGETRAIL_RESTORE_ANY_PID) {
            true => PidChoice::Any,
            false => PidChoice::Same,
        },
        stdio: match is_set(PAGETRAIL_RESTORE_NULL_STDIO) {
            true => Stdio::Null,
            false => Stdio::Inherit,
        },
        on_missing: match is_set(PAGETRAIL_RESTORE_NULL_MISSING) {
            true => Missing::Null,
            false => Missing::Fail,
        },
        allow_changed_files: is_set(PAGETRAIL_RESTORE_CHANGED_FILES),
        foreground: is_set(PAGETRAIL_RESTORE_FOREGROUND),
        keep_touches: false,
    })
}
