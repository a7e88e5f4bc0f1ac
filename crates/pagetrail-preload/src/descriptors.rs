//! Which of the program's descriptors are files that we answer for.
//!
//! Looked up without a lock on every read and write of the process once one such file was opened.
//! Closing is not followed (libc closes in places that cannot be interposed, and a `vfork`ed child
//! closes numbers of its own): an entry holds as long as the number is the very file that was
//! entered, which is asked each time. Of a guest, where asking is a VM exit, the machine knows
//! whether any descriptor was closed since.
//!
//! For the same reason the position of a collector's own `pagemap` is kept here once the program
//! has set it, until somebody needs the kernel's ([`settle_position`]).

use crate::machine;
use crate::sys::guard;
use crate::sys::kernel::{self, Identity};
use rustix::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// A file that we answer for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Pagemap,
    ClearRefs,
}

/// What is known of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) kind: Kind,
    /// Whose memory it is.
    pub(crate) pid: u32,
}

const SLOTS: usize = 1024;

struct Slot {
    /// The descriptor plus one; 0 when free.
    number: AtomicU32,
    /// The kind above the process.
    known: AtomicU64,
    device: AtomicU64,
    inode: AtomicU64,
    /// One more than the number of changes of descriptors at which the file was last looked up; 0
    /// where that says nothing.
    asked_at: AtomicU64,
    /// The position in bytes, if the kernel's is another one; otherwise [`THE_KERNELS`] or
    /// [`SHARED`].
    position: AtomicU64,
}

/// No position of ours.
const THE_KERNELS: u64 = u64::MAX;

/// No position of ours, and never one: other descriptors have the same position.
const SHARED: u64 = u64::MAX - 1;

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        number: AtomicU32::new(0),
        known: AtomicU64::new(0),
        device: AtomicU64::new(0),
        inode: AtomicU64::new(0),
        asked_at: AtomicU64::new(0),
        position: AtomicU64::new(THE_KERNELS),
    }
}; SLOTS];

/// Slots that have ever been used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Whether there is anything to look for: the whole cost for programs that open none of these
/// files.
#[inline]
pub(crate) fn any() -> bool {
    USED.load(Ordering::Relaxed) != 0
}

/// What a descriptor is, if it is one of ours.
pub(crate) fn find(fd: RawFd) -> Option<Known> {
    found(fd).map(|(_, known)| known)
}

/// The entry by which a descriptor is one of ours, and what it is.
fn found(fd: RawFd) -> Option<(&'static Slot, Known)> {
    let number = number(fd)?;
    of_number(number).find_map(|slot| Some((slot, look_up(slot, fd, number)?)))
}

/// The entries of a number: more than one where a child of vfork(2) has it for another file.
fn of_number(number: u32) -> impl Iterator<Item = &'static Slot> {
    let slots = TABLE[..USED.load(Ordering::Acquire)].iter();
    slots.filter(move |slot| slot.number.load(Ordering::Acquire) == number)
}

/// What a descriptor is by an entry of its number, if that is still its.
fn look_up(slot: &Slot, fd: RawFd, number: u32) -> Option<Known> {
    let changes = machine::descriptor_changes().map(|changes| changes.wrapping_add(1));
    let asked_at = slot.asked_at.load(Ordering::Acquire);
    let identity = slot.identity();
    let known = slot.known.load(Ordering::Acquire);
    // What was read is of one entry only where this is, before and after.
    if slot.number.load(Ordering::Acquire) != number {
        return None;
    }
    if changes == Some(asked_at) && asked_at != 0 {
        return Some(unpack(known));
    }
    if kernel::identity(fd) != Some(identity) {
        return None;
    }
    let now = machine::descriptor_changes().map(|changes| changes.wrapping_add(1));
    if let Some(now) = now.filter(|_| now == changes) {
        slot.asked_at.store(now, Ordering::Release);
    }
    Some(unpack(known))
}

/// The entry of a descriptor, which may be another file by now if it is the only one of its number.
fn slot(fd: RawFd) -> Option<&'static Slot> {
    let mut slots = of_number(number(fd)?);
    let first = slots.next()?;
    match slots.next() {
        None => Some(first),
        // The position of the other one is the parent's, or the child's.
        Some(_) => found(fd).map(|(slot, _)| slot),
    }
}

/// Keeps the position of a descriptor that is known here, in place of the kernel's. False where
/// other descriptors have the same.
pub(crate) fn set_position(fd: RawFd, position: u64) -> bool {
    slot(fd).is_some_and(|slot| {
        let set = |now: u64| (now != SHARED).then_some(position);
        let position = &slot.position;
        position
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, set)
            .is_ok()
    })
}

/// Moves a position that is kept here on; what it was before. Threads that read at the same time
/// get different entries, as from the kernel.
pub(crate) fn advance(fd: RawFd, bytes: u64) -> Option<u64> {
    let on = |now: u64| (now < SHARED).then(|| bytes.saturating_add(now).min(SHARED - 1));
    let position = &slot(fd)?.position;
    position
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, on)
        .ok()
}

/// Leaves the position of a descriptor to the kernel for good: a duplicate has the same.
pub(crate) fn share_position(fd: RawFd) {
    settle_position(fd);
    if let Some(slot) = slot(fd) {
        slot.position.store(SHARED, Ordering::Release);
    }
}

/// Leaves all positions to the kernel for good: another process will have the same.
pub(crate) fn share_positions() {
    all().for_each(share_position);
}

/// Gives the kernel all positions that are kept here.
pub(crate) fn settle_positions() {
    all().for_each(settle_position);
}

/// All numbers that were entered.
fn all() -> impl Iterator<Item = RawFd> {
    let used = USED.load(Ordering::Acquire);
    let numbers = TABLE[..used]
        .iter()
        .map(|slot| slot.number.load(Ordering::Acquire));
    numbers.filter_map(|number| RawFd::try_from(number.checked_sub(1)?).ok())
}

/// The position of a descriptor that is known, if it is kept here.
fn position(fd: RawFd) -> Option<u64> {
    let position = slot(fd)?.position.load(Ordering::Acquire);
    (position < SHARED).then_some(position)
}

/// Gives the kernel a position that is kept here: before it reads by the descriptor, or gives
/// the file another one.
pub(crate) fn settle_position(fd: RawFd) {
    if position(fd).is_some()
        && find(fd).is_some()
        && let Some(slot) = slot(fd)
    {
        let settled = |now: u64| (now < SHARED).then_some(THE_KERNELS);
        let position = &slot.position;
        let before = position.fetch_update(Ordering::AcqRel, Ordering::Acquire, settled);
        if let Ok(position) = before {
            kernel::seek(fd, position);
        }
    }
}

/// Enters a descriptor; false when the table is full of open ones. Only inside
/// [`crate::sys::guard::with_state`].
pub(crate) fn enter(fd: RawFd, known: Known) -> bool {
    let (Some(number), Some(identity)) = (number(fd), kernel::identity(fd)) else {
        return false;
    };
    let used = USED.load(Ordering::Relaxed);
    let mut places = 0..used;
    let place = match guard::is_in_borrowed_memory() {
        // A child of vfork(2) has numbers of its own: what is another file here, or none, its
        // parent goes on reading by.
        true => places.find(|&place| TABLE[place].is(number, identity)),
        false => places
            .clone()
            .find(|&place| TABLE[place].number.load(Ordering::Relaxed) == number)
            .or_else(|| places.find(|&place| TABLE[place].is_stale())),
    };
    let Some(place) = place.or_else(|| (used < SLOTS).then_some(used)) else {
        return false;
    };
    TABLE[place].fill(number, known, identity);
    USED.store(used.max(place + 1), Ordering::Release);
    true
}

fn number(fd: RawFd) -> Option<u32> {
    u32::try_from(fd).ok()?.checked_add(1)
}

impl Slot {
    fn identity(&self) -> Identity {
        Identity {
            device: self.device.load(Ordering::Acquire),
            inode: self.inode.load(Ordering::Acquire),
        }
    }

    fn fill(&self, number: u32, known: Known, identity: Identity) {
        // No thread sees the entry half changed.
        self.number.store(0, Ordering::Release);
        self.asked_at.store(0, Ordering::Release);
        self.position.store(THE_KERNELS, Ordering::Release);
        self.known.store(pack(known), Ordering::Release);
        self.device.store(identity.device, Ordering::Release);
        self.inode.store(identity.inode, Ordering::Release);
        self.number.store(number, Ordering::Release);
    }

    fn is(&self, number: u32, identity: Identity) -> bool {
        self.number.load(Ordering::Relaxed) == number && self.identity() == identity
    }

    /// Whether the number is another file by now, or none.
    fn is_stale(&self) -> bool {
        let Some(number) = self.number.load(Ordering::Relaxed).checked_sub(1) else {
            return true;
        };
        kernel::identity(number as RawFd) != Some(self.identity())
    }
}

fn pack(known: Known) -> u64 {
    let kind = match known.kind {
        Kind::Pagemap => 0,
        Kind::ClearRefs => 1_u64 << 32,
    };
    kind | u64::from(known.pid)
}

fn unpack(packed: u64) -> Known {
    Known {
        kind: match packed >> 32 {
            0 => Kind::Pagemap,
            _ => Kind::ClearRefs,
        },
        pid: packed as u32,
    }
}

/// What a path may lead to, by its last component alone.
pub(crate) fn may_be(path: &[u8]) -> Option<Kind> {
    let kind = |name: &[u8], kind| {
        let rest = path.strip_suffix(name)?;
        (rest.is_empty() || rest.ends_with(b"/")).then_some(kind)
    };
    // The common case is neither, and ends differently.
    match path.last()? {
        b'p' => kind(b"pagemap", Kind::Pagemap),
        b's' => kind(b"clear_refs", Kind::ClearRefs),
        _ => None,
    }
}

/// Whether a text written to `clear_refs` clears soft-dirty bits, as `clear_refs_write` in
/// `fs/proc/task_mmu.c` reads it: 4, with blanks around it, up to the end or a zero byte.
pub(crate) fn clears_soft_dirty(text: &[u8]) -> bool {
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let number = std::str::from_utf8(text.trim_ascii()).map(str::parse::<i32>);
    number == Ok(Ok(4))
}

/// How the memfd is named that takes the place of a descriptor of `clear_refs`.
const SUBSTITUTE: &str = "pagetrail-clear_refs-";

/// The name of the memfd that takes the place of a descriptor of the `clear_refs` of `pid`.
pub(crate) fn substitute_name(pid: u32) -> String {
    format!("{SUBSTITUTE}{pid}")
}

/// The process for whose `clear_refs` an open file, by its path in `/proc/self/fd`, is the
/// substitute.
pub(crate) fn substitute_for(path: &[u8]) -> Option<u32> {
    let name = path
        .strip_prefix(b"/memfd:")?
        .strip_prefix(SUBSTITUTE.as_bytes())?;
    let pid = name.split(|byte| *byte == b' ').next()?;
    std::str::from_utf8(pid).ok()?.parse().ok()
}

/// The process whose file in `/proc` a path names: `.../PID/pagemap` or `.../PID/task/TID/pagemap`.
pub(crate) fn process_of(path: &[u8]) -> Option<u32> {
    let mut parts = path.rsplit(|byte| *byte == b'/');
    parts.next()?;
    let id = parts.next()?;
    let id = match parts.next() {
        Some(b"task") => parts.next()?,
        _ => id,
    };
    std::str::from_utf8(id).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Mutex, PoisonError};

    /// Held while an entry is made, as the state is elsewhere.
    static ENTERING: Mutex<()> = Mutex::new(());

    fn entered(fd: RawFd, known: Known) -> bool {
        let _one = ENTERING.lock().unwrap_or_else(PoisonError::into_inner);
        enter(fd, known)
    }

    #[test]
    fn tells_names_by_their_last_component() {
        assert_eq!(may_be(b"/proc/self/pagemap"), Some(Kind::Pagemap));
        assert_eq!(may_be(b"pagemap"), Some(Kind::Pagemap));
        assert_eq!(may_be(b"../1/clear_refs"), Some(Kind::ClearRefs));
        for other in [
            "",
            "s",
            "/proc/self/maps",
            "/tmp/mypagemap",
            "clear_refs/",
            "/proc/1/kpagemap",
        ] {
            assert_eq!(may_be(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn finds_the_process_in_a_resolved_path() {
        assert_eq!(process_of(b"/proc/1234/pagemap"), Some(1234));
        assert_eq!(process_of(b"/proc/12/task/13/pagemap"), Some(12));
        assert_eq!(process_of(b"/12/clear_refs"), Some(12));
        for other in ["/proc/self/pagemap", "/srv/x/pagemap", "pagemap", ""] {
            assert_eq!(process_of(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn finds_the_process_of_a_substitute() {
        let path = format!("/memfd:{} (deleted)", substitute_name(417));
        assert_eq!(substitute_for(path.as_bytes()), Some(417));
        for other in [
            "/memfd:x (deleted)",
            "/memfd:pagetrail-clear_refs-x",
            "/tmp/417",
            "",
        ] {
            assert_eq!(substitute_for(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn reads_numbers_as_the_kernel_does() {
        for text in ["4", "4\n", " 4 ", "4\0", "4\n\0junk", "04"] {
            assert!(clears_soft_dirty(text.as_bytes()), "{text:?}");
        }
        for text in ["", "\0", "1", "5\n", "44", "4 4", "four"] {
            assert!(!clears_soft_dirty(text.as_bytes()), "{text:?}");
        }
    }

    #[test]
    fn an_entry_holds_only_for_the_file_that_was_entered() {
        use std::os::fd::{AsRawFd, IntoRawFd};
        let known = Known {
            kind: Kind::ClearRefs,
            pid: 7,
        };
        let file = std::fs::File::open("/proc/self/maps").unwrap();
        assert_eq!(find(file.as_raw_fd()), None);
        assert!(entered(file.as_raw_fd(), known));
        assert!(any());
        assert_eq!(find(file.as_raw_fd()), Some(known));
        // Another file takes the number, without a close that anybody could see.
        let number = file.into_raw_fd();
        let other = std::fs::File::open("/proc/self/status").unwrap();
        rustix::io::dup2(&other, &mut crate::sys::kernel::own(number)).unwrap();
        assert_eq!(find(number), None);
    }

    #[test]
    fn a_position_is_kept_until_a_duplicate_has_the_same() {
        use std::io::Seek;
        use std::os::fd::AsRawFd;
        let known = Known {
            kind: Kind::Pagemap,
            pid: 7,
        };
        let mut file = std::fs::File::open("/proc/self/status").unwrap();
        let fd = file.as_raw_fd();
        assert!(entered(fd, known));
        assert_eq!(advance(fd, 8), None);
        assert!(set_position(fd, 8));
        // Each read moves it on from where the one before has left it.
        assert_eq!([advance(fd, 16), advance(fd, 16)], [Some(8), Some(24)]);
        assert_eq!(file.stream_position().unwrap(), 0);
        share_position(fd);
        assert_eq!(file.stream_position().unwrap(), 40);
        assert!(!set_position(fd, 8));
        assert_eq!((position(fd), advance(fd, 8)), (None, None));
        settle_position(fd);
        assert!(!set_position(fd, 8));
    }

    #[test]
    fn a_position_is_that_of_the_file_that_a_number_is() {
        use rustix::fd::{AsRawFd, OwnedFd};
        use std::fs::File;
        let known = Known {
            kind: Kind::Pagemap,
            pid: 7,
        };
        let parents = File::open("/proc/self/status").unwrap();
        let childs = File::open("/proc/self/limits").unwrap();
        let mut of_both = OwnedFd::from(parents.try_clone().unwrap());
        let fd = of_both.as_raw_fd();
        assert!(entered(fd, known) && set_position(fd, 8));
        // A child of vfork(2) has the number for another file, and an entry of its own.
        let one = ENTERING.lock().unwrap_or_else(PoisonError::into_inner);
        rustix::io::dup2(&childs, &mut of_both).unwrap();
        let (place, identity) = (USED.load(Ordering::Acquire), kernel::identity(fd).unwrap());
        TABLE[place].fill(number(fd).unwrap(), known, identity);
        USED.store(place + 1, Ordering::Release);
        settle_position(fd);
        assert_eq!(kernel::position(fd), Some(0));
        share_position(fd);
        assert!(!set_position(fd, 16));
        rustix::io::dup2(&parents, &mut of_both).unwrap();
        assert_eq!(position(fd), Some(8));
        TABLE[place].number.store(0, Ordering::Release);
        drop(one);
    }
}
