//! Functions on memory of the own program that survives it.

use super::{shared, sized};
use crate::failure::{Failure, Status, guard, invalid, null};
use crate::kept::{Checkpointer, Handle, Kept};
use crate::types::{self, CheckpointerOptions, PAGETRAIL_TECHNIQUE_AUTO};
use pagetrail::Choice;
use std::ffi::{OsStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// Opens a store and makes regions of memory with the contents of its newest checkpoint, or zeros
/// where it has none.
///
/// `options`: which store and which regions; read during the call. `size`:
/// sizeof(pagetrail_checkpointer_options) as the caller knows it. `checkpointer`: gets it, to be
/// freed by pagetrail_checkpointer_free(); NULL on failure.
///
/// The store is a directory, made for its owner alone where there is none. Regions that the store
/// has and that are not described stay in it. One that the store has more pages of is refused.
///
/// PAGETRAIL_STATUS_STORE: the store is damaged, in use by another process, of something else, or
/// fails. REFUSED: two regions have one name, or one is smaller than the store has it. UNAVAILABLE:
/// no technique works here, or not this one. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_checkpointer_start(
    options: *const CheckpointerOptions,
    size: usize,
    checkpointer: Option<&mut MaybeUninit<*mut Checkpointer>>,
) -> Status {
    guard(|| {
        let checkpointer = checkpointer.ok_or_else(|| null("checkpointer is a null pointer"))?;
        checkpointer.write(std::ptr::null_mut());
        let options = sized::read(options, size)?;
        if options.flags != 0 {
            return Err(invalid("an option is not known to this version"));
        }
        let store = path(options.store)?;
        let regions = sized::array(
            options.regions,
            options.region_count,
            "the regions are a null pointer",
        )?;
        if regions.is_empty() {
            return Err(invalid("there are no regions to keep"));
        }
        let technique = match options.technique {
            PAGETRAIL_TECHNIQUE_AUTO => Choice::Auto,
            number => types::technique(number)
                .ok_or_else(|| invalid("no technique has this number"))?
                .into(),
        };
        let mut builder = pagetrail_checkpoint::Checkpointer::builder(store).technique(technique);
        for region in regions {
            if region.bytes == 0 {
                return Err(invalid("a region has no bytes"));
            }
            builder = builder.region(name(region.name)?, region.bytes);
        }
        let kept = Handle::new(Kept {
            checkpointer: builder.start()?,
            saving: None,
        });
        checkpointer.write(Box::into_raw(Box::new(Checkpointer(kept))));
        Ok(())
    })
}

/// Ends it and frees its regions. A checkpoint that is on its way is waited for; what was written
/// since the last one is lost.
///
/// `checkpointer`: must not be used afterwards, nor memory of its regions. NULL does nothing.
///
/// PAGETRAIL_STATUS_BUSY: another thread is inside a call on it; then it is not freed. One thread,
/// once.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_checkpointer_free(checkpointer: *mut Checkpointer) -> Status {
    // SAFETY: made by `pagetrail_checkpointer_start`, and the caller frees it once.
    guard(|| unsafe { free(checkpointer, |checkpointer| checkpointer.0.is_idle()) })
}

/// Frees a handle, if no thread is inside a call on it.
///
/// # Safety
///
/// Null, or made by this library from a box; nobody uses it afterwards.
pub(super) unsafe fn free<T>(handle: *mut T, is_idle: impl Fn(&T) -> bool) -> Result<(), Failure> {
    if handle.is_null() {
        return Ok(());
    }
    // SAFETY: the caller says that it is there.
    if !is_idle(unsafe { &*handle }) {
        return Err(Failure::Misuse(
            Status::Busy,
            "another call on the same object is under way",
        ));
    }
    // SAFETY: made from a box, and the caller does not use it any more.
    drop(unsafe { Box::from_raw(handle) });
    Ok(())
}

/// Gets a region's memory, which is readable and writable until the checkpointer is freed.
///
/// `name`: as in pagetrail_checkpointer_options, or that of a region that the store had. `memory`,
/// `bytes`: get its address, which is that of a page, and its length.
///
/// PAGETRAIL_STATUS_INVALID_ARGUMENT: there is no such region. BUSY, FORKED. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_checkpointer_region(
    checkpointer: *mut Checkpointer,
    name: *const c_char,
    memory: Option<&mut MaybeUninit<*mut c_void>>,
    bytes: Option<&mut MaybeUninit<usize>>,
) -> Status {
    guard(|| {
        let memory = memory.ok_or_else(|| null("memory is a null pointer"))?;
        let bytes = bytes.ok_or_else(|| null("bytes is a null pointer"))?;
        let name = self::name(name)?;
        given(checkpointer)?.with(|kept| {
            if !kept.checkpointer.has_region(name) {
                return Err(invalid("there is no region of this name"));
            }
            let region = kept.checkpointer.region_mut(name);
            memory.write(region.as_mut_ptr().cast());
            bytes.write(region.len());
            Ok(())
        })
    })
}

/// Gets the number of the checkpoint from which the regions were restored; 0 if there was none.
///
/// PAGETRAIL_STATUS_BUSY, FORKED. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_checkpointer_restored(
    checkpointer: *mut Checkpointer,
    number: Option<&mut MaybeUninit<u64>>,
) -> Status {
    guard(|| {
        let number = number.ok_or_else(|| null("number is a null pointer"))?;
        given(checkpointer)?.with(|kept| {
            number.write(kept.checkpointer.restored().unwrap_or(0));
            Ok(())
        })
    })
}

/// Saves what was written to the regions since the last checkpoint. When this returns it survives
/// the end of the program and a loss of power. No thread may write to a region meanwhile.
///
/// `number`: gets the number of the checkpoint; may be NULL.
///
/// PAGETRAIL_STATUS_STORE: the store fails, and is as it was; the next checkpoint has everything.
/// BUSY, FORKED. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_checkpointer_save(
    checkpointer: *mut Checkpointer,
    number: Option<&mut MaybeUninit<u64>>,
) -> Status {
    guard(|| {
        given(checkpointer)?.with(|kept| {
            let saved = kept.checkpointer.checkpoint()?;
            // It waits for one that is on its way, of which nobody asks any more.
            kept.saving = None;
            if let Some(number) = number {
                number.write(saved.number);
            }
            Ok(())
        })
    })
}

/// Begins to save what was written since the last checkpoint: it is copied now, and a thread of the
/// library compresses and writes it while the program goes on writing to the regions. No thread may
/// write to a region during this call. One that is on its way is waited for first.
///
/// It takes as much memory as has pages that were written, and the first as much as all regions.
///
/// PAGETRAIL_STATUS_STORE: the store cannot be written to. SYSTEM: no thread could be started.
/// BUSY, FORKED. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_checkpointer_begin(checkpointer: *mut Checkpointer) -> Status {
    guard(|| {
        given(checkpointer)?.with(|kept| {
            kept.saving = Some(kept.checkpointer.checkpoint_in_background()?);
            Ok(())
        })
    })
}

/// Waits until the checkpoint that pagetrail_checkpointer_begin() has begun survives the end of the
/// program, or for a time.
///
/// `timeout_ms`: how long, in milliseconds; 0 only looks. `number`: gets the number of the
/// checkpoint; 0 while it is on its way, and if none is.
///
/// PAGETRAIL_STATUS_STORE: the store has failed, and is as it was; the next checkpoint has
/// everything. BUSY; calls of other threads on the same checkpointer get it while this one waits.
/// FORKED. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_checkpointer_wait(
    checkpointer: *mut Checkpointer,
    timeout_ms: u32,
    number: Option<&mut MaybeUninit<u64>>,
) -> Status {
    guard(|| {
        let number = number.ok_or_else(|| null("number is a null pointer"))?;
        number.write(0);
        given(checkpointer)?.with(|kept| {
            let Some(saving) = kept.saving.take() else {
                return Ok(());
            };
            match saving.ended_within(Duration::from_millis(timeout_ms.into())) {
                Ok(outcome) => {
                    number.write(outcome?.number);
                }
                Err(saving) => kept.saving = Some(saving),
            }
            Ok(())
        })
    })
}

fn given<'a>(checkpointer: *mut Checkpointer) -> Result<&'a Handle<Kept>, Failure> {
    let given = shared(checkpointer).map(|checkpointer| &checkpointer.0);
    given.ok_or_else(|| null("checkpointer is a null pointer"))
}

/// A path of the caller's.
pub(super) fn path<'a>(text: *const c_char) -> Result<&'a Path, Failure> {
    let text = sized::text(text, "store is a null pointer")?;
    match text.is_empty() {
        true => Err(invalid("the store has no name")),
        false => Ok(Path::new(OsStr::from_bytes(text.to_bytes()))),
    }
}

/// A name of the caller's.
pub(super) fn name<'a>(text: *const c_char) -> Result<&'a str, Failure> {
    let text = sized::text(text, "name is a null pointer")?;
    text.to_str().map_err(|_| invalid("the name is not UTF-8"))
}
