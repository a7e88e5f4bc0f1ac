//! Functions on snapshots of memory that the program goes on writing to.

use super::checkpointer::{free, name, path};
use super::{shared, sized};
use crate::failure::{Failure, Status, guard, invalid, null};
use crate::kept::{Handle, Snapshot, Taken};
use crate::types::Range;
use pagetrail::{PageRange, PageSet};
use pagetrail_checkpoint::{CowSnapshot, Store, WorldWritable, WriterOptions};
use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;

/// Takes a snapshot of ranges of this process's memory: what they hold at one instant, to be read
/// while all threads go on writing to them. A save without fork(2).
///
/// `ranges`, `count`: whole pages. `snapshot`: gets it, to be freed by pagetrail_snapshot_free();
/// NULL on failure.
///
/// A thread that writes to a page that was not read yet waits until a thread of the library has
/// kept what the page held. The stacks of the threads that take and read the snapshot must not be
/// part of it; what is unmapped, moved or discarded before it is read is lost or reads as zeros.
/// Linux 6.4.
///
/// PAGETRAIL_STATUS_REFUSED: the kernel is older, or this process may not handle the kernel's own
/// faults (CAP_SYS_PTRACE, or the sysctl vm.unprivileged_userfaultfd=1), or a range cannot be had.
/// INVALID_ARGUMENT: no ranges, or empty ones. SYSTEM. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_snapshot_take(
    ranges: *const Range,
    count: usize,
    snapshot: Option<&mut MaybeUninit<*mut Snapshot>>,
) -> Status {
    guard(|| {
        let snapshot = snapshot.ok_or_else(|| null("snapshot is a null pointer"))?;
        snapshot.write(std::ptr::null_mut());
        let ranges = sized::ranges(ranges, count)?.iter();
        let ranges: Option<PageSet> = ranges
            .map(|range| PageRange::new(range.start, range.end))
            .collect();
        let ranges = ranges
            .filter(|ranges| !ranges.is_empty())
            .ok_or_else(|| invalid("there are no ranges, or one is empty"))?;
        let taken = Handle::new(Taken {
            snapshot: Some(CowSnapshot::take(&ranges)?),
            contents: Vec::new(),
        });
        snapshot.write(Box::into_raw(Box::new(Snapshot(taken))));
        Ok(())
    })
}

/// Reads what comes next of a snapshot, from its lowest address to its highest, each page once.
///
/// `range`: gets its addresses; an empty range at the end. `contents`: gets where the library has
/// what these addresses held, until the next call on this snapshot.
///
/// PAGETRAIL_STATUS_REFUSED: the memory was unmapped, or the snapshot was saved. BUSY, FORKED. Any
/// thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_snapshot_read(
    snapshot: *mut Snapshot,
    range: Option<&mut MaybeUninit<Range>>,
    contents: Option<&mut MaybeUninit<*const c_void>>,
) -> Status {
    guard(|| {
        let range = range.ok_or_else(|| null("range is a null pointer"))?;
        let contents = contents.ok_or_else(|| null("contents is a null pointer"))?;
        given(snapshot)?.with(|taken| {
            let reading = taken.snapshot.as_mut().ok_or_else(saved)?;
            let (start, end) = match reading.read_next(&mut taken.contents)? {
                Some(read) => (read.start(), read.end()),
                None => (0, 0),
            };
            range.write(Range { start, end });
            contents.write(taken.contents.as_ptr().cast());
            Ok(())
        })
    })
}

/// Saves all of a snapshot that was not read yet as a checkpoint of a store. The snapshot has been
/// read then, also on failure; the memory is written to at full speed again.
///
/// `store`: a directory, made for its owner alone where there is none. `name`: what the ranges are
/// called in the checkpoint. `number`: gets the number of the checkpoint; may be NULL.
///
/// PAGETRAIL_STATUS_STORE: the store is damaged, in use by another process, or fails, and is as it
/// was. REFUSED: the memory was unmapped, or the snapshot was saved. BUSY, FORKED. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_snapshot_save(
    snapshot: *mut Snapshot,
    store: *const c_char,
    name: *const c_char,
    number: Option<&mut MaybeUninit<u64>>,
) -> Status {
    guard(|| {
        let (store, name) = (path(store)?, self::name(name)?);
        given(snapshot)?.with(|taken| {
            let snapshot = taken.snapshot.take().ok_or_else(saved)?;
            let mut writer =
                Store::create(store, WorldWritable::Refuse)?.writer(WriterOptions::default())?;
            let manifest = snapshot.save(&mut writer, name)?;
            if let Some(number) = number {
                number.write(manifest.number);
            }
            Ok(())
        })
    })
}

/// Frees a snapshot, read or not. The memory is written to at full speed again.
///
/// `snapshot`: must not be used afterwards, nor what was read last. NULL does nothing.
///
/// PAGETRAIL_STATUS_BUSY: another thread is inside a call on it; then it is not freed. One thread,
/// once. A forked child may free its copy.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_snapshot_free(snapshot: *mut Snapshot) -> Status {
    // SAFETY: made by `pagetrail_snapshot_take`, and the caller frees it once.
    guard(|| unsafe { free(snapshot, |snapshot| snapshot.0.is_idle()) })
}

fn saved() -> Failure {
    Failure::Misuse(Status::Refused, "the snapshot was saved already")
}

fn given<'a>(snapshot: *mut Snapshot) -> Result<&'a Handle<Taken>, Failure> {
    let given = shared(snapshot).map(|snapshot| &snapshot.0);
    given.ok_or_else(|| null("snapshot is a null pointer"))
}
