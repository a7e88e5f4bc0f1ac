//! Memory of the crate `vm-memory`: what is written through it is marked by itself.
//!
//! ```
//! use pagetrail_vmm::{MarkedWrites, MemoryLog, Region, Regions, Start, Tracker};
//! use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};
//! use vm_memory::MemoryRegionAddress;
//! let places = [(GuestAddress(0), 0x10000), (GuestAddress(0x100000), 0x8000)];
//! let memory: GuestMemoryMmap<MarkedWrites> = GuestMemoryMmap::from_ranges(&places).unwrap();
//! let regions = memory.iter().zip(0..).map(|(region, slot)| {
//!     let host = region.get_host_address(MemoryRegionAddress(0)).unwrap();
//!     // SAFETY: the memory is mapped until the end, and its memslots have these numbers.
//!     unsafe { Region::new(slot, region.start_addr().0, host, region.len()) }
//! });
//! let log = MemoryLog::new(&memory);
//! let tracker = Tracker::new(Regions::new(regions)?, vec![Box::new(log)])?;
//! let consumer = tracker.consumer(Start::Now)?;
//!
//! memory.write_slice(&[1; 8], GuestAddress(0x102ffc)).unwrap();
//! let round = consumer.collect()?;
//! let found: Vec<_> = round.ranges().map(|range| (range.guest_address, range.bytes)).collect();
//! assert_eq!(found, [(0x102000, 0x2000)]);
//! # Ok::<(), pagetrail_vmm::Error>(())
//! ```

use crate::error::{Error, Result};
use crate::log::DirtyLog;
use crate::own_writes::AtomicPages;
use crate::pages::DirtyPages;
use crate::regions::Regions;
use std::sync::Arc;
use vm_memory::bitmap::{Bitmap, BitmapSlice, NewBitmap, WithBitmapSlice};
use vm_memory::{Address, GuestMemoryBackend, GuestMemoryRegion};

/// The bitmap of a region of `vm-memory`, for `GuestMemoryMmap<MarkedWrites>`.
#[derive(Clone, Debug, Default)]
pub struct MarkedWrites {
    set: Arc<AtomicPages>,
    /// Where this begins in the region, in bytes.
    base: u64,
}

impl WithBitmapSlice<'_> for MarkedWrites {
    type S = Self;
}

impl BitmapSlice for MarkedWrites {}

impl Bitmap for MarkedWrites {
    fn mark_dirty(&self, offset: usize, len: usize) {
        self.set
            .insert(self.base.saturating_add(offset as u64), len as u64);
    }

    fn dirty_at(&self, offset: usize) -> bool {
        self.set.contains(self.base.saturating_add(offset as u64))
    }

    fn slice_at(&self, offset: usize) -> Self {
        Self {
            set: self.set.clone(),
            base: self.base.saturating_add(offset as u64),
        }
    }
}

impl NewBitmap for MarkedWrites {
    fn with_len(bytes: usize) -> Self {
        Self {
            set: Arc::new(AtomicPages::new(bytes as u64)),
            base: 0,
        }
    }
}

/// The log of what was written through `vm-memory`.
///
/// What a monitor writes to its memory in other ways is to be marked in
/// [`OwnWrites`](crate::OwnWrites).
#[derive(Debug)]
pub struct MemoryLog {
    /// Guest address and length of each region, and its bitmap.
    regions: Vec<(u64, u64, MarkedWrites)>,
}

impl MemoryLog {
    /// Takes the bitmaps of a guest's memory. Regions that are plugged in later are not among them.
    pub fn new<M>(memory: &M) -> Self
    where
        M: GuestMemoryBackend,
        M::R: GuestMemoryRegion<B = MarkedWrites>,
    {
        let described = |region: &M::R| {
            let start = region.start_addr().raw_value();
            (start, region.len(), region.bitmap())
        };
        Self {
            regions: memory.iter().map(described).collect(),
        }
    }
}

impl DirtyLog for MemoryLog {
    fn drain(&mut self, regions: &Regions, dirty: &mut DirtyPages) -> Result<()> {
        for (start, _, writes) in &self.regions {
            let region = regions.at_guest_address(*start);
            if let Some(bitmap) = region.and_then(|region| dirty.of_slot_mut(region.slot())) {
                writes.set.take_into(bitmap);
            }
        }
        Ok(())
    }

    fn regions_changed(&mut self, regions: &Regions) -> Result<()> {
        for region in regions {
            let is_it = |(start, bytes, _): &&(u64, u64, MarkedWrites)| {
                (*start, *bytes) == (region.guest_address(), region.bytes())
            };
            if !self.regions.iter().any(|own| is_it(&own)) {
                let reason = "it is no region of the vm-memory whose writes are logged";
                return Err(Error::region(region.slot(), reason));
            }
        }
        Ok(())
    }
}
