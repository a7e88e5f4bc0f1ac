//! SPML and EPML as the OoH library uses them: fetch what the module collected, and for SPML find
//! the virtual address of each guest-physical one.
//!
//! The paper's library searches the tracked process's page table for each address; its cost grows
//! with the square of the memory (table IV, M17). The search here is a table look-up, and the
//! comparisons that the linear search would have made are counted.

use std::collections::HashMap;

use super::{Options, Target, Technique, TechniqueKind};
use crate::Error;
use crate::guest::ooh::{Design, Fetched};
use crate::host::Host;
use crate::machine::{Gpa, Gva, PAGE_BYTES};
use crate::write_set::WriteSet;

#[derive(Debug)]
pub(super) struct OohTracker {
    target: Target,
    design: Design,
    /// Where guest-physical addresses were found, or that the process has no such page, if that is
    /// remembered.
    known: Option<HashMap<Gpa, Option<Gva>>>,
}

impl OohTracker {
    pub(super) fn start(
        host: &mut Host,
        target: Target,
        design: Design,
        options: Options,
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
                options.ring_pages,
            )
        })?;
        let remembers = design == Design::Spml && options.remembers_addresses;
        Ok(Self {
            target,
            design,
            known: remembers.then(HashMap::new),
        })
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
        let known = &mut self.known;
        let written = host.kernel(self.target.tracker_vcpu, |kernel, platform| {
            let Fetched {
                mut logged,
                mut fresh,
                lost,
            } = kernel.ooh_fetch(platform, tracker, tracked)?;
            if let Some(known) = known {
                if !fresh.is_empty() {
                    // A page of somebody else may have become the process's since.
                    known.retain(|_, gva| gva.is_some());
                }
                logged.retain(|&address| match known.get(&Gpa::new(address)) {
                    Some(gva) => {
                        fresh.extend(*gva);
                        false
                    }
                    None => true,
                });
            }
            // Where every address is remembered there is nothing to walk or to search for.
            let searches = known.is_none() || !logged.is_empty();
            if lost || (design == Design::Spml && searches) {
                let (present, _) = kernel.pagemap(platform, tracked)?;
                if lost {
                    fresh.extend(present.iter().map(|entry| entry.gva));
                } else {
                    let pagemap = present.iter().map(|entry| (entry.gpa, entry.gva)).collect();
                    let (found, comparisons) = reverse_map(&logged, pagemap);
                    platform.events.reverse_comparisons += comparisons;
                    fresh.extend(found.iter().map(|&(_, gva)| gva));
                    if let Some(known) = known {
                        known.extend(logged.iter().map(|&address| (Gpa::new(address), None)));
                        known.extend(found.into_iter().map(|(gpa, gva)| (gpa, Some(gva))));
                    }
                }
            } else if design == Design::Epml {
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

/// The pages of `logged` that the pagemap knows, with their virtual addresses, and the comparisons
/// of a linear search for each. The others belong to the kernel or are no longer mapped.
fn reverse_map(logged: &[u64], pagemap: Vec<(Gpa, Gva)>) -> (Vec<(Gpa, Gva)>, u64) {
    let entries = pagemap.len() as u64;
    let places = pagemap
        .into_iter()
        .zip(1..)
        .map(|((gpa, gva), place)| (gpa, (gva, place)));
    let by_gpa: HashMap<Gpa, (Gva, u64)> = places.collect();
    let mut comparisons = 0;
    let mut found = Vec::new();
    for &address in logged {
        let gpa = Gpa::new(address);
        let hit = by_gpa.get(&gpa);
        comparisons += hit.map_or(entries, |&(_, place)| place);
        found.extend(hit.map(|&(gva, _)| (gpa, gva)));
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
        let expected = [0, 9].map(|i| (Gpa::new(i << 12), Gva::new((i + 100) << 12)));
        assert_eq!(found, expected);
        assert_eq!(comparisons, 1 + 10 + 10);
    }
}
