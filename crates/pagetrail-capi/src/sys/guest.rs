//! Functions for programs that run virtual machines.

use super::checkpointer::{free, path};
use super::{shared, sized};
use crate::failure::{Failure, Status, guard, invalid, null};
use crate::guest::{
    Guest, GuestOptions, GuestRange, GuestRegion, GuestRestore, PAGETRAIL_GUEST_KVM, Restoring,
};
use crate::kept::Handle;
use pagetrail_checkpoint::{Store, WorldWritable, WriterOptions};
use pagetrail_vmm::store::{LazyRestore, Snapshots};
use pagetrail_vmm::{Region, Regions, Start};
use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

/// Begins to track the memory of a virtual machine for the program that runs it.
///
/// `options`: read during the call. `size`: sizeof(pagetrail_guest_options) as the caller knows it.
/// `guest`: gets it, to be freed by pagetrail_guest_free(); NULL on failure. Its first round has
/// all pages.
///
/// PAGETRAIL_STATUS_INVALID_ARGUMENT: regions that overlap or are not of whole pages, or vCPUs
/// without KVM. SYSTEM: KVM refuses. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_guest_start(
    options: *const GuestOptions,
    size: usize,
    guest: Option<&mut MaybeUninit<*mut Guest>>,
) -> Status {
    guard(|| {
        let guest = guest.ok_or_else(|| null("guest is a null pointer"))?;
        guest.write(std::ptr::null_mut());
        let options = sized::read(options, size)?;
        if options.flags & !PAGETRAIL_GUEST_KVM != 0 || options.reserved != 0 {
            return Err(invalid("an option is not known to this version"));
        }
        let regions = self::regions(options.regions, options.region_count)?;
        let vcpus = sized::array(
            options.vcpu_fds,
            options.vcpu_count,
            "the vCPUs are a null pointer",
        )?;
        let vcpus: Result<Vec<BorrowedFd<'_>>, Failure> =
            vcpus.iter().map(|vcpu| descriptor(*vcpu)).collect();
        let is_kvm = options.flags & PAGETRAIL_GUEST_KVM != 0;
        let vm = is_kvm.then(|| descriptor(options.vm_fd)).transpose()?;
        let made = Guest::new(regions, vm, &vcpus?, options.ring_bytes)?;
        guest.write(Box::into_raw(Box::new(made)));
        Ok(())
    })
}

/// Says that this program has written to the guest's memory: its devices, say. Call it after the
/// write. So do for pages that were discarded.
///
/// `guest_address`, `bytes`: what was written. What is not memory of the guest is ignored.
///
/// PAGETRAIL_STATUS_NULL_POINTER. Any thread, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_guest_wrote(
    guest: *mut Guest,
    guest_address: u64,
    bytes: u64,
) -> Status {
    guard(|| {
        given(guest)?.own.mark(guest_address, bytes);
        Ok(())
    })
}

/// Empties the logs of KVM; what they have is in the next round. A thread that runs a vCPU calls it
/// at KVM_EXIT_DIRTY_RING_FULL.
///
/// PAGETRAIL_STATUS_SYSTEM: KVM refuses; what was found is in the next round. Any thread, at any
/// time.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_guest_drain(guest: *mut Guest) -> Status {
    guard(|| Ok(given(guest)?.tracker.drain()?))
}

/// Collects the pages that were written since the last committed round, and opens a round. Read
/// their contents after it. A round that must have everything needs the vCPUs outside KVM_RUN.
///
/// `ranges`, `count`: get the pages, by ascending guest address; valid until the next call of this
/// function.
///
/// PAGETRAIL_STATUS_ROUND_OPEN. SYSTEM: KVM refuses; what was found is in the next round. BUSY,
/// FORKED. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_guest_collect(
    guest: *mut Guest,
    ranges: Option<&mut MaybeUninit<*const GuestRange>>,
    count: Option<&mut MaybeUninit<usize>>,
) -> Status {
    guard(|| {
        let ranges = ranges.ok_or_else(|| null("ranges is a null pointer"))?;
        let count = count.ok_or_else(|| null("count is a null pointer"))?;
        given(guest)?.handle.with(|inside| {
            let found = inside.collect()?;
            ranges.write(found.as_ptr());
            count.write(found.len());
            Ok(())
        })
    })
}

/// Ends the open round: its pages are the caller's affair from now on.
///
/// PAGETRAIL_STATUS_NO_ROUND, BUSY, FORKED. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_guest_commit(guest: *mut Guest) -> Status {
    guard(|| given(guest)?.handle.with(|inside| inside.close(true)))
}

/// Gives the open round back: its pages are in the next one.
///
/// PAGETRAIL_STATUS_NO_ROUND, BUSY, FORKED. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_guest_give_back(guest: *mut Guest) -> Status {
    guard(|| given(guest)?.handle.with(|inside| inside.close(false)))
}

/// Saves the guest's memory as a checkpoint of a store: what was written since the last one. It
/// copies while the guest runs, has it stopped, copies what is left, and lets it go on.
///
/// `store`: a directory, made for its owner alone where there is none; the same for all saves of a
/// guest. `copies_ahead`: how often to copy while the guest runs; 0 for a guest that stands still.
/// `stop`: called then, has all vCPUs leave KVM_RUN and devices rest; not 0 if that failed.
/// `resume`: called when all is copied, also if that failed, but not if `stop` has. Both may be
/// NULL, get `context`, and are called by this thread. `number`: gets the number of the checkpoint;
/// may be NULL. The state of vCPUs and devices is the caller's to save, while they are stopped.
///
/// Rounds of pagetrail_guest_collect() are apart from this: neither takes pages from the other.
///
/// PAGETRAIL_STATUS_STORE: the store is damaged, in use by another process, or fails. REFUSED:
/// `stop` has failed. On failure the next checkpoint has what this one lacks. BUSY, FORKED. Any
/// thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_guest_save(
    guest: *mut Guest,
    store: *const c_char,
    copies_ahead: u32,
    stop: Option<extern "C" fn(*mut c_void) -> c_int>,
    resume: Option<extern "C" fn(*mut c_void)>,
    context: *mut c_void,
    number: Option<&mut MaybeUninit<u64>>,
) -> Status {
    guard(|| {
        let (guest, store) = (given(guest)?, path(store)?);
        guest.handle.with(|inside| {
            if inside.snapshots.is_none() {
                let writer = Store::create(store, WorldWritable::Refuse)?;
                let writer = writer.writer(WriterOptions::default())?;
                let consumer = guest.tracker.consumer(Start::Everything)?;
                inside.snapshots = Some(Snapshots::new(writer, consumer));
            }
            let Some(snapshots) = &mut inside.snapshots else {
                return Err(invalid("there is no store"));
            };
            let mut snapshot = snapshots.begin()?;
            for _ in 0..copies_ahead {
                snapshot.copy()?;
            }
            if stop.is_some_and(|stop| stop(context) != 0) {
                let text = "the guest was not stopped";
                return Err(Failure::Misuse(Status::Refused, text));
            }
            let copied = snapshot.copy();
            if let Some(resume) = resume {
                resume(context);
            }
            copied?;
            let manifest = snapshot.publish()?;
            if let Some(number) = number {
                number.write(manifest.number);
            }
            Ok(())
        })
    })
}

/// Ends the tracking.
///
/// `guest`: must not be used afterwards, nor what was collected last. NULL does nothing.
///
/// PAGETRAIL_STATUS_BUSY: another thread is inside a call on it; then it is not freed. One thread,
/// once.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_guest_free(guest: *mut Guest) -> Status {
    // SAFETY: made by `pagetrail_guest_start`, and the caller frees it once.
    guard(|| unsafe { free(guest, |guest| guest.handle.is_idle()) })
}

/// Fills the memory of a guest from a checkpoint as it is touched, and meanwhile all the rest, by a
/// thread of the library. The guest may run at once.
///
/// `regions`, `count`: its memory, which nobody has touched yet, registered for missing pages
/// (UFFDIO_REGISTER_MODE_MISSING) at `userfaultfd`, whose descriptor is duplicated. It does not
/// block, and has the kernel's faults, too. `store`, `number`: the checkpoint; 0 is the newest.
/// `restore`: gets it, to be freed by pagetrail_guest_restore_free(); NULL on failure.
///
/// PAGETRAIL_STATUS_STORE: the store is damaged, or has no such checkpoint. INVALID_ARGUMENT: the
/// checkpoint has no such regions. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_guest_restore(
    regions: *const GuestRegion,
    count: usize,
    userfaultfd: c_int,
    store: *const c_char,
    number: u64,
    restore: Option<&mut MaybeUninit<*mut GuestRestore>>,
) -> Status {
    guard(|| {
        let restore = restore.ok_or_else(|| null("restore is a null pointer"))?;
        restore.write(std::ptr::null_mut());
        let regions = self::regions(regions, count)?;
        let store = Store::open(path(store)?)?;
        let image = match number {
            0 => store.newest_image()?,
            number => store.image(number)?,
        };
        let mut lazy = LazyRestore::new(image, regions, descriptor(userfaultfd)?)?;
        let made = Restoring {
            stopper: lazy.stopper(),
            thread: Some(std::thread::spawn(move || lazy.serve())),
        };
        let made = GuestRestore(Handle::new(made));
        restore.write(Box::into_raw(Box::new(made)));
        Ok(())
    })
}

/// Waits until all of the guest's memory is there.
///
/// PAGETRAIL_STATUS_STORE, SYSTEM: what kept pages from coming; who touches them waits. BUSY,
/// FORKED. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_guest_restore_wait(restore: *mut GuestRestore) -> Status {
    guard(|| {
        let restore = shared(restore).ok_or_else(|| null("restore is a null pointer"))?;
        restore.0.with(|restoring| {
            let Some(thread) = restoring.thread.take() else {
                return Ok(());
            };
            match thread.join() {
                Ok(served) => {
                    served?;
                    Ok(())
                }
                Err(_) => Err(Failure::Misuse(
                    Status::Panicked,
                    "the library panicked while it restored a guest; free it",
                )),
            }
        })
    })
}

/// Ends a restore. Pages that are missing stay missing: who touches them waits for ever.
///
/// `restore`: must not be used afterwards. NULL does nothing.
///
/// PAGETRAIL_STATUS_BUSY: another thread is inside a call on it; then it is not freed. One thread,
/// once.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_guest_restore_free(restore: *mut GuestRestore) -> Status {
    // SAFETY: made by `pagetrail_guest_restore`, and the caller frees it once.
    guard(|| unsafe { free(restore, |restore| restore.0.is_idle()) })
}

fn given<'a>(guest: *mut Guest) -> Result<&'a Guest, Failure> {
    shared(guest).ok_or_else(|| null("guest is a null pointer"))
}

fn descriptor<'a>(number: c_int) -> Result<BorrowedFd<'a>, Failure> {
    if number < 0 {
        return Err(invalid("a descriptor is negative"));
    }
    // SAFETY: the caller says that the descriptor is open during the call.
    Ok(unsafe { BorrowedFd::borrow_raw(number) })
}

fn regions(from: *const GuestRegion, count: usize) -> Result<Regions, Failure> {
    let regions = sized::array(from, count, "the regions are a null pointer")?;
    let regions = regions.iter().map(|region| {
        // SAFETY: the caller says that the memory is mapped, stays so, and is written as a guest
        // writes it.
        unsafe {
            Region::new(
                region.slot,
                region.guest_address,
                region.memory.cast(),
                region.bytes,
            )
        }
    });
    Ok(Regions::new(regions)?)
}
