//! The function that starts a process from a checkpoint.

use super::checkpointer::path;
use super::sized;
use crate::failure::{Failure, Status, guard, invalid, null};
use crate::types::{
    self, PAGETRAIL_RESTORE_ANY_PID, PAGETRAIL_RESTORE_CHANGED_FILES, PAGETRAIL_RESTORE_FOREGROUND,
    PAGETRAIL_RESTORE_NULL_MISSING, PAGETRAIL_RESTORE_NULL_STDIO, Restored,
};
use pagetrail_checkpoint::Store;
use pagetrail_restore::{Missing, PidChoice, RestoreOptions, Stdio};
use std::ffi::c_char;

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
        let options = options(flags)?;
        let store = Store::open(path(store)?)?;
        let mut image = match number {
            0 => store.newest_image()?,
            number => store.image(number)?,
        };
        let started = pagetrail_restore::restore(&mut image, &options)?;
        let facts = Restored {
            number: image.manifest().number,
            pages: started.pages,
            elapsed_ns: types::nanoseconds(started.elapsed),
            pid: started.pid,
            threads: started.threads as u32,
            lost: types::text(started.lost.join("; ")),
        };
        sized::write(restored, size, &facts)
    })
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
