//! [`Ring`]: KVM's dirty ring per vCPU.

use crate::error::{Error, Result};
use crate::kvm::{Log, LogProtection};
use crate::log::DirtyLog;
use crate::pages::DirtyPages;
use crate::regions::Regions;
use crate::sys::{kvm, ring};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

/// The rings of a virtual machine's vCPUs. Its copies are one set, so that a monitor can add vCPUs
/// while they are tracked.
#[derive(Clone, Debug)]
pub struct VcpuRings {
    rings: Arc<Mutex<Vec<ring::Ring>>>,
    bytes: usize,
}

impl VcpuRings {
    /// Makes an empty set; `bytes` is what [`enable_ring`](super::enable_ring) was called with.
    pub fn new(bytes: u32) -> Self {
        Self {
            rings: Arc::default(),
            bytes: bytes as usize,
        }
    }

    /// Adds the ring of a vCPU. To be called before the vCPU runs: a full ring keeps it from
    /// running.
    ///
    /// # Errors
    ///
    /// The descriptor is not of a vCPU with a ring of this length.
    pub fn add(&self, vcpu: BorrowedFd<'_>) -> Result<()> {
        let mapped = ring::Ring::map(vcpu, self.bytes);
        let mapped = mapped.map_err(Error::kvm("map the dirty ring of a vCPU"))?;
        let mut rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        rings.push(mapped);
        Ok(())
    }

    /// Whether KVM has filled a ring to its last entry. It should stop the vCPU before; a KVM that
    /// does not (one that emulates many instructions at once, say) may have overwritten entries.
    /// From then on all pages are reported each time: make the rings longer, or take [`Log`].
    pub fn was_overrun(&self) -> bool {
        let rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        rings.iter().any(ring::Ring::was_overrun)
    }
}

/// KVM's dirty rings.
///
/// The tracker must be the only one that empties them and calls `KVM_RESET_DIRTY_RINGS`. Where KVM
/// has a bitmap beside the rings ([`Offers::ring_with_bitmap`](super::Offers::ring_with_bitmap)),
/// each call takes that, too.
#[derive(Debug)]
pub struct Ring {
    vm: OwnedFd,
    rings: VcpuRings,
    /// The bitmap of pages that were written without a vCPU.
    bitmap: Option<Log>,
    /// Whether entries were given back whose pages are not write-protected again.
    must_reset: bool,
    outside: u64,
}

impl Ring {
    /// Takes the rings of a virtual machine, whose descriptor is duplicated. `protection` is that
    /// of the bitmap beside the rings.
    ///
    /// # Errors
    ///
    /// KVM does not answer, or the descriptor cannot be duplicated.
    pub fn new(vm: BorrowedFd<'_>, rings: VcpuRings, protection: LogProtection) -> Result<Self> {
        let with_bitmap = super::Offers::of(vm)?.ring_with_bitmap;
        let owned = vm.try_clone_to_owned();
        Ok(Self {
            vm: owned.map_err(Error::kvm("have its descriptor duplicated"))?,
            rings,
            bitmap: with_bitmap.then(|| Log::new(vm, protection)).transpose()?,
            must_reset: false,
            outside: 0,
        })
    }

    /// How many entries named pages that are in no tracked region, as those of memslots that the
    /// tracker was not given.
    pub fn outside(&self) -> u64 {
        self.outside
    }
}

impl DirtyLog for Ring {
    fn drain(&mut self, regions: &Regions, dirty: &mut DirtyPages) -> Result<()> {
        let mut outside = 0;
        let mut rings = self
            .rings
            .rings
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for ring in rings.iter_mut() {
            let taken = ring.take(|slot, page| match dirty.of_slot_mut(slot) {
                Some(bitmap) if page < bitmap.pages() => bitmap.insert(page..page + 1),
                _ => outside += 1,
            });
            self.must_reset |= taken != 0;
        }
        drop(rings);
        self.outside += outside;
        if self.rings.was_overrun() {
            dirty.union_with(&DirtyPages::all_of(regions));
        }
        // Before anybody reads the pages' contents: a page that is written after that must fault.
        if self.must_reset {
            kvm::reset_rings(self.vm.as_fd()).map_err(Error::kvm("reset its dirty rings"))?;
            self.must_reset = false;
        }
        match &mut self.bitmap {
            Some(bitmap) => bitmap.drain(regions, dirty),
            None => Ok(()),
        }
    }
}
