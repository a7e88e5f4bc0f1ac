//! [`Regions`]: the memory of one guest, checked once, so that nothing after it must doubt a
//! number.

use crate::error::{Error, Result};
use crate::sys::memory::Region;
#[cfg(feature = "store")]
use pagetrail::PageRange;
use pagetrail::page_size;

/// The memory regions of a guest, by ascending guest address.
///
/// They neither overlap nor share memory of this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Regions {
    regions: Vec<Region>,
}

impl Regions {
    /// Checks regions.
    ///
    /// # Errors
    ///
    /// [`Error::Region`]: a region is empty, not aligned to pages or beyond the end of the address
    /// space; two have one number, or guest addresses or memory of this process in common. (A write
    /// through one of two memslots with the same memory is logged for that one alone.)
    pub fn new(regions: impl IntoIterator<Item = Region>) -> Result<Self> {
        let mut regions: Vec<Region> = regions.into_iter().collect();
        for region in &regions {
            check(region)?;
        }
        let shares = |first: &Region, second: &Region, start: fn(&Region) -> u64| {
            let (start, other) = (start(first), start(second));
            start < other + second.bytes() && other < start + first.bytes()
        };
        for (at, second) in regions.iter().enumerate() {
            for first in &regions[..at] {
                let other = first.slot();
                let reason = if first.slot() == second.slot() {
                    "two regions have this number".to_owned()
                } else if shares(first, second, Region::guest_address) {
                    format!("it shares guest addresses with slot {other}")
                } else if shares(first, second, Region::host_address) {
                    format!("it shares memory with slot {other}, whose log misses its writes")
                } else {
                    continue;
                };
                return Err(Error::region(second.slot(), reason));
            }
        }
        regions.sort_by_key(Region::guest_address);
        Ok(Self { regions })
    }

    /// The regions, by ascending guest address.
    pub fn iter(&self) -> std::slice::Iter<'_, Region> {
        self.regions.iter()
    }

    /// The region of a memslot.
    pub fn of_slot(&self, slot: u32) -> Option<&Region> {
        self.iter().find(|region| region.slot() == slot)
    }

    /// The region with an address of this process.
    pub fn at_host_address(&self, address: u64) -> Option<&Region> {
        self.iter()
            .find(|region| host_range(region).contains(&address))
    }

    /// The region with a guest-physical address.
    pub fn at_guest_address(&self, address: u64) -> Option<&Region> {
        self.iter()
            .find(|region| guest_range(region).contains(&address))
    }

    /// The length of all regions in bytes.
    pub fn bytes(&self) -> u64 {
        self.iter().map(Region::bytes).sum()
    }
}

impl<'a> IntoIterator for &'a Regions {
    type Item = &'a Region;
    type IntoIter = std::slice::Iter<'a, Region>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

fn check(region: &Region) -> Result<()> {
    let numbers = [
        region.guest_address(),
        region.host_address(),
        region.bytes(),
    ];
    let mut starts = numbers[..2].iter().copied().chain(region.file_offset());
    if region.bytes() == 0 {
        return Err(Error::region(region.slot(), "it has no bytes"));
    }
    if numbers.iter().any(|number| number % page_size() != 0) {
        let reason = format!("an address or its length is no multiple of {}", page_size());
        return Err(Error::region(region.slot(), reason));
    }
    if starts.any(|start| start.checked_add(region.bytes()).is_none()) {
        return Err(Error::region(region.slot(), "it ends beyond all addresses"));
    }
    Ok(())
}

pub(crate) fn guest_range(region: &Region) -> std::ops::Range<u64> {
    region.guest_address()..region.guest_address() + region.bytes()
}

pub(crate) fn host_range(region: &Region) -> std::ops::Range<u64> {
    region.host_address()..region.host_address() + region.bytes()
}

/// The guest addresses of a region, which is not empty.
#[cfg(feature = "store")]
pub(crate) fn guest_pages(region: &Region) -> PageRange {
    PageRange::new(
        region.guest_address(),
        region.guest_address() + region.bytes(),
    )
    .expect("a checked region has pages")
}
