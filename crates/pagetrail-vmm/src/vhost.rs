//! [`VhostLog`]: what devices write that are not in the monitor: those of the kernel (vhost) and of
//! other processes (vhost-user).
//!
//! Both log by a bitmap that the monitor gives them: a bit for each 4 KiB of guest-physical memory,
//! from address 0 on (`log_write` in the kernel's `drivers/vhost/vhost.c`; "Migration" in QEMU's
//! `docs/interop/vhost-user.rst`). They set a bit after the write, and before they tell the guest
//! of it.

use crate::error::{Error, Result};
use crate::log::DirtyLog;
use crate::pages::DirtyPages;
use crate::regions::Regions;
use crate::sys::shared::SharedWords;
use pagetrail::page_size;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// `VHOST_LOG_PAGE`.
const LOG_PAGE: u64 = 4096;

/// The bitmap of vhost devices; its copies are one. One bitmap serves all devices of a guest.
///
/// The monitor gives [`address`](Self::address) to `VHOST_SET_LOG_BASE`, or [`file`](Self::file)
/// with `VHOST_USER_SET_LOG_BASE`, and switches logging on: the feature `VHOST_F_LOG_ALL`, and
/// `VHOST_VRING_F_LOG` with the guest-physical address of each used ring (`log_guest_addr`).
#[derive(Clone, Debug)]
pub struct VhostLog {
    words: Arc<SharedWords>,
}

impl VhostLog {
    /// Makes a bitmap for guest-physical addresses below `guest_addresses`.
    ///
    /// # Errors
    ///
    /// There is no memory for it.
    pub fn new(guest_addresses: u64) -> Result<Self> {
        let pages = guest_addresses.div_ceil(LOG_PAGE);
        let words = SharedWords::new(pages.div_ceil(64).max(1) as usize);
        let words = words
            .map_err(|error| Error::Refused(format!("no memory for the log of vhost: {error}")))?;
        Ok(Self {
            words: Arc::new(words),
        })
    }

    /// Where the bitmap is in this process.
    pub fn address(&self) -> u64 {
        self.words.address()
    }

    /// The length of the bitmap in bytes.
    pub fn bytes(&self) -> u64 {
        self.words.words().len() as u64 * 8
    }

    /// The bitmap's memfd, from its beginning on.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.words.file().as_fd()
    }

    fn guest_addresses(&self) -> u64 {
        self.bytes() * 8 * LOG_PAGE
    }
}

impl DirtyLog for VhostLog {
    fn drain(&mut self, regions: &Regions, dirty: &mut DirtyPages) -> Result<()> {
        for (at, word) in self.words.words().iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            // What was written before a bit was set is visible to who takes it.
            let mut bits = u64::from_le(word.swap(0, Ordering::AcqRel));
            while bits != 0 {
                let page = at as u64 * 64 + u64::from(bits.trailing_zeros());
                bits &= bits - 1;
                insert(page * LOG_PAGE, regions, dirty);
            }
        }
        Ok(())
    }

    fn regions_changed(&mut self, regions: &Regions) -> Result<()> {
        let logged = self.guest_addresses();
        let ends = |region: &crate::Region| region.guest_address() + region.bytes();
        match regions.iter().find(|region| ends(region) > logged) {
            None => Ok(()),
            Some(region) => {
                let reason = format!("it ends beyond {logged:#x}, where the log of vhost ends");
                Err(Error::region(region.slot(), reason))
            }
        }
    }
}

/// Adds the page with a guest-physical address. What is in no region is none of the guest's.
fn insert(guest_address: u64, regions: &Regions, dirty: &mut DirtyPages) {
    let Some(region) = regions.at_guest_address(guest_address) else {
        return;
    };
    let page = (guest_address - region.guest_address()) / page_size();
    if let Some(bitmap) = dirty.of_slot_mut(region.slot()) {
        bitmap.insert(page..page + 1);
    }
}
