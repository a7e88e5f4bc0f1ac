//! SPML and EPML as the OoH library uses them: fetch what the module collected, and for SPML find
//! the virtual address of each guest-physical one.
//!
//! The paper's library searches the tracked process's page table for each address; its cost grows
//! with the square of the memory (table IV, M17). The search here is a table look-up, and the
//! comparisons that the linear search would have made are counted.

use std::collections::HashMap;

use super::{Target, Technique, TechniqueKind};
use crate::Error;
use crate::guest::ooh::{Design, Fetched};
use crate::host::Host;
use crate::machine::{Gpa, Gva, PAGE_BYTES};
use crate::write_set::WriteSet;

#[derive(Debug)]
pub(super) struct OohTracker {
    target: Target,
    design: Design,
}

impl OohTracker {
    pub(super) fn start(
        host: &mut Host,
        target: Target,
        design: Design,
        ring_pages: u64,
    ) -> Result<Self, Error> {
        host.kernel(target.tracker_vcpu, |kernel, platform| {
            if !platform.has_pml() {
                return Err(Error::Unsupported(
                    "PML, which needs EPT with accessed and dirty flags",
                ));
            }
            kernel.ooh_start(
                platform,
                target.tracker.pid(),
                target.tracked.pid(),
                design,
                ring_pages,
            )
        })?;
        Ok(Self { target, design })
    }
}

impl Technique for OohTracker {
    fn kind(&self) -> TechniqueKind {
        match self.design {
            Design::Spml => TechniqueKind::Spml,
            Design::Epml => TechniqueKind::Epml,
        }
    }

    fn collect(&mut self, host: &mut Host) -> Result<WriteSet, Error> {
        let (tracker, tracked) = (self.target.tracker.pid(), self.target.tracked.pid());
        let design = self.design;
        let written = host.kernel(self.target.tracker_vcpu, |kernel, platform| {
            let Fetched {
                logged,
                mut fresh,
                lost,
            } = kernel.ooh_fetch(platform, tracker, tracked)?;
            if lost || design == Design::Spml {
                let (present, _) = kernel.pagemap(platform, tracked)?;
                if lost {
                    fresh.extend(present.iter().map(|entry| entry.gva));
                } else {
                    let pagemap = present.iter().map(|entry| (entry.gpa, entry.gva)).collect();
                    let (found, comparisons) = reverse_map(&logged, pagemap);
                    platform.events.reverse_comparisons += comparisons;
                    fresh.extend(found);
                }
            } else {
                fresh.extend(logged.into_iter().map(Gva::new));
            }
            Ok(fresh)
        })?;
        Ok(WriteSet::new(PAGE_BYTES, written))
    }

    fn disarm(&mut self, host: &mut Host) -> Result<(), Error> {
        let tracked = self.target.tracked.pid();
        host.kernel(self.target.tracker_vcpu, |kernel, platform| {
            kernel.ooh_stop(platform, tracked)
        })
    }
}

/// The virtual addresses of those of `logged` that the pagemap knows, and the comparisons of a
/// linear search for each. The others belong to the kernel or are no longer mapped.
fn reverse_map(logged: &[u64], pagemap: Vec<(Gpa, Gva)>) -> (Vec<Gva>, u64) {
    let entries = pagemap.len() as u64;
    let places = pagemap
        .into_iter()
        .zip(1..)
        .map(|((gpa, gva), place)| (gpa, (gva, place)));
    let by_gpa: HashMap<Gpa, (Gva, u64)> = places.collect();
    let mut comparisons = 0;
    let mut found = Vec::new();
    for &address in logged {
        let hit = by_gpa.get(&Gpa::new(address));
        comparisons += hit.map_or(entries, |&(_, place)| place);
        found.extend(hit.map(|&(gva, _)| gva));
    }
    (found, comparisons)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reverse_mapping_counts_a_linear_search() {
        let pagemap = (0..10)
            .map(|i| (Gpa::new(i << 12), Gva::new((i + 100) << 12)))
            .collect();
        let (found, comparisons) = reverse_map(&[0, 9 << 12, 77 << 12], pagemap);
        assert_eq!(found, [Gva::new(100 << 12), Gva::new(109 << 12)]);
        assert_eq!(comparisons, 1 + 10 + 10);
    }
}
