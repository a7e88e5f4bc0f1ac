//! [`TableSource`]: a guest's page tables as a source of the tiering loop, in the guest's monitor.

use super::{Accesses, AddressSpace, TableScan};
use crate::error::Error;
use crate::pages::{DirtyPages, DirtyRange};
use crate::regions::{Regions, host_range};
use pagetrail::{Mapped, PageRange, PageSet, mapped_pages, page_size};
use pagetrail_tier::source::{Source, SourceInfo};
use pagetrail_tier::{Result, Sample, SourceCaps};

/// What only the monitor can do with its vCPUs.
pub trait Vcpus: Send {
    /// Has all vCPUs leave `KVM_RUN`, calls `work` with what they have in CR3
    /// ([`AddressSpace::of`], which leaves out those that are in other memory than the guest's),
    /// and lets them go on, whatever `work` returns.
    ///
    /// # Errors
    ///
    /// Those of `work`, and what keeps a vCPU from stopping, as an [`Error::Refused`].
    fn while_they_stand(
        &mut self,
        work: &mut dyn FnMut(&[AddressSpace]) -> crate::Result<()>,
    ) -> crate::Result<()>;
}

/// The accesses of a guest, by addresses of the monitor's memory: what a `TierLoop` in the monitor
/// keeps in fast memory. A `NodeMover` of the monitor's own PID moves it, and
/// [`kvm::pre_fault`](crate::kvm::pre_fault) spares the guest the exits that follow.
#[derive(Debug)]
pub struct TableSource<V> {
    scan: TableScan,
    vcpus: V,
}

impl<V: Vcpus> TableSource<V> {
    /// Makes a source of a scanner.
    pub fn new(scan: TableScan, vcpus: V) -> Self {
        Self { scan, vcpus }
    }

    /// Notes what the vCPUs have in CR3, as [`TableScan::follow`].
    ///
    /// # Errors
    ///
    /// As for that.
    pub fn follow(&mut self) -> crate::Result<()> {
        let scan = &mut self.scan;
        self.vcpus
            .while_they_stand(&mut |loaded| scan.follow(loaded))
    }

    fn regions(&self) -> &Regions {
        self.scan.memory().regions()
    }

    /// The monitor's addresses of guest pages.
    fn in_monitor(&self, pages: &DirtyPages) -> PageSet {
        let mut ranges: Vec<PageRange> = Vec::new();
        for region in self.regions() {
            let bitmap = pages.of_slot(region.slot());
            let runs = bitmap.into_iter().flat_map(|bitmap| bitmap.ranges());
            ranges.extend(runs.filter_map(|pages| {
                let range = DirtyRange::new(region, pages);
                PageRange::new(range.host_address, range.host_address + range.bytes)
            }));
        }
        ranges.sort_unstable();
        ranges.into_iter().collect()
    }

    /// Guest pages at addresses of the monitor.
    fn in_guest(&self, addresses: &PageSet) -> DirtyPages {
        let mut pages = DirtyPages::none_of(self.regions());
        for region in self.regions() {
            let host = host_range(region);
            let own = PageSet::from_iter(PageRange::new(host.start, host.end));
            let Some(bitmap) = pages.of_slot_mut(region.slot()) else {
                continue;
            };
            for range in addresses.intersection(&own).ranges() {
                let page = |address: u64| (address - host.start) / page_size();
                bitmap.insert(page(range.start())..page(range.end()));
            }
        }
        pages
    }

    fn memory(&self) -> PageSet {
        self.in_monitor(&DirtyPages::all_of(self.regions()))
    }
}

/// As an error of the loop.
fn of_loop(error: Error) -> pagetrail_tier::Error {
    pagetrail_tier::Error::Io {
        what: "scanning the guest's page tables".into(),
        source: std::io::Error::other(error),
    }
}

impl<V: Vcpus> Source for TableSource<V> {
    fn info(&self) -> SourceInfo {
        SourceInfo {
            name: "guest page tables",
            caps: SourceCaps {
                accesses: true,
                writes: true,
                in_turns: false,
            },
            pages: true,
            // A page that is not sampled costs the guest no walk of its page tables.
            saves_faults: true,
        }
    }

    fn window(&mut self) -> Result<Sample> {
        let (scan, mut seen) = (&mut self.scan, None::<Accesses>);
        self.vcpus
            .while_they_stand(&mut |loaded| {
                seen = Some(scan.accesses(loaded)?);
                Ok(())
            })
            .map_err(of_loop)?;
        let pages =
            |of: fn(&Accesses) -> &DirtyPages| seen.as_ref().map(|seen| self.in_monitor(of(seen)));
        Ok(Sample {
            accessed: pages(|seen| &seen.accessed),
            written: pages(|seen| &seen.written),
        })
    }

    fn rearm(&mut self, pages: &PageSet) -> Result<()> {
        let pages = self.in_guest(pages);
        let scan = &mut self.scan;
        self.vcpus
            .while_they_stand(&mut |loaded| scan.clear(loaded, &pages))
            .map_err(of_loop)
    }

    fn mapped(&mut self) -> Result<Mapped> {
        self.mapped_within(&self.memory())
    }

    fn mapped_within(&mut self, addresses: &PageSet) -> Result<Mapped> {
        let within = addresses.intersection(&self.memory());
        Ok(mapped_pages(std::process::id(), &within)?)
    }
}
