//! [`Layout`]: where guest-physical memory lies in a monitor.
//!
//! No interface of the kernel tells the memslots of another process. What the guest says of its
//! memory, and the mappings that the monitor has for it, leave few ways to lay one into the other;
//! pages of the agent, whose random contents are looked for in the monitor's memory, decide.

use pagetrail::{PageRange, PageSet};

use super::wire::{PAGE_BYTES, PROOF_BYTES};

/// Below it PCs have a hole for devices; memory goes on at it.
const HOLE_END: u64 = 1 << 32;
/// Where memory of machines begins that do not begin at 0 (arm64) is a multiple of this.
const BASE_STEP: u64 = 1 << 30;
/// More mappings than this are not tried in every order.
const MAPPINGS_MAX: usize = 4;

/// A page of the guest's agent, and its first bytes.
pub(super) type Proof = (u64, [u8; PROOF_BYTES]);

/// Where guest-physical memory lies in a monitor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Guest-physical ranges, ascending, and the addresses where they begin in the monitor.
    parts: Vec<(PageRange, u64)>,
}

impl Layout {
    /// The one that all proofs confirm; `read` reads memory of the monitor.
    pub(super) fn find(
        ram: &PageSet,
        mappings: &[PageRange],
        proofs: &[Proof],
        read: &dyn Fn(u64, &mut [u8]) -> bool,
    ) -> Option<Self> {
        if proofs.is_empty() {
            return None;
        }
        let mut largest = mappings.to_vec();
        largest.sort_by_key(|mapping| std::cmp::Reverse(mapping.bytes()));
        largest.truncate(MAPPINGS_MAX);
        let orders = orders(&largest);
        let layouts = orders.iter().flat_map(|order| Self::possible(ram, order));
        layouts
            .into_iter()
            .find(|layout| layout.is_confirmed(proofs, read))
    }

    /// Ways to lay a guest's memory into mappings, one after the other.
    fn possible(ram: &PageSet, mappings: &[PageRange]) -> Vec<Self> {
        let Some((first, last)) = ram.ranges().first().zip(ram.ranges().last()) else {
            return Vec::new();
        };
        let base = first.start() / BASE_STEP * BASE_STEP;
        let bytes: u64 = mappings.iter().map(PageRange::bytes).sum();
        if !ram.ranges().iter().any(|range| range.start() == HOLE_END) {
            let whole = PageRange::new(base, base.saturating_add(bytes));
            let fits = whole.filter(|whole| whole.end() >= last.end());
            return fits
                .into_iter()
                .map(|whole| Self::of(mappings, &[whole]))
                .collect();
        }
        // All that is above the hole is memory; what is left is below it.
        let above = last.end() - HOLE_END;
        let below = bytes.checked_sub(above).filter(|bytes| *bytes > 0);
        let low = below.and_then(|below| PageRange::new(base, base.saturating_add(below)));
        let high = PageRange::new(HOLE_END, last.end());
        let (Some(low), Some(high)) = (low.filter(|low| low.end() <= HOLE_END), high) else {
            return Vec::new();
        };
        // Of neighbouring mappings the kernel makes one; the later one lies below.
        vec![
            Self::of(mappings, &[low, high]),
            Self::of(mappings, &[high, low]),
        ]
    }

    /// Fills mappings with guest-physical ranges of the same size, one after the other.
    fn of(mappings: &[PageRange], ranges: &[PageRange]) -> Self {
        let mut parts = Vec::new();
        let mut mappings = mappings.iter().copied();
        let mut room = mappings.next();
        for range in ranges {
            let mut at = range.start();
            while let (true, Some(mapping)) = (at < range.end(), room) {
                let bytes = mapping.bytes().min(range.end() - at);
                parts.extend(PageRange::new(at, at + bytes).map(|part| (part, mapping.start())));
                at += bytes;
                room = PageRange::new(mapping.start() + bytes, mapping.end())
                    .or_else(|| mappings.next());
            }
        }
        parts.sort_unstable();
        Self { parts }
    }

    fn is_confirmed(&self, proofs: &[Proof], read: &dyn Fn(u64, &mut [u8]) -> bool) -> bool {
        proofs.iter().all(|(address, proof)| {
            let mut found = [0; PROOF_BYTES];
            let place = self
                .parts
                .iter()
                .find(|(range, _)| range.contains(*address));
            place.is_some_and(|(range, host)| {
                read(host + (address - range.start()), &mut found) && found == *proof
            })
        })
    }

    /// The monitor's addresses of guest-physical memory; of what is none there are none.
    pub(super) fn in_monitor(&self, physical: &PageSet) -> PageSet {
        self.translated(physical, |range, host| (range, host))
    }

    /// Guest-physical addresses of the monitor's memory.
    pub(super) fn physical(&self, addresses: &PageSet) -> PageSet {
        self.translated(addresses, |range, host| {
            let own = PageRange::new(host, host + range.bytes());
            (own.unwrap_or(range), range.start())
        })
    }

    /// By parts, each with the range that it is in and where that begins on the other side.
    fn translated(
        &self,
        set: &PageSet,
        part: impl Fn(PageRange, u64) -> (PageRange, u64),
    ) -> PageSet {
        let mut found = PageSet::new();
        for (range, host) in &self.parts {
            let (from, to) = part(*range, *host);
            let within = set.intersection(&PageSet::from_iter([from]));
            let moved = within.ranges().iter().filter_map(|range| {
                let start = to + (range.start() - from.start());
                PageRange::new(start, start + range.bytes())
            });
            found.union_with(&moved.collect());
        }
        found
    }

    /// How many pages the guest has.
    pub(super) fn pages(&self) -> u64 {
        let bytes: u64 = self.parts.iter().map(|(range, _)| range.bytes()).sum();
        bytes / PAGE_BYTES
    }

    /// All of the monitor's addresses.
    pub(super) fn memory(&self) -> PageSet {
        let mut ranges: Vec<PageRange> = self
            .parts
            .iter()
            .filter_map(|(range, host)| PageRange::new(*host, host + range.bytes()))
            .collect();
        ranges.sort_unstable();
        ranges.into_iter().collect()
    }
}

/// All ways to take some of these, in every order; the largest alone first.
fn orders(mappings: &[PageRange]) -> Vec<Vec<PageRange>> {
    let mut all: Vec<Vec<PageRange>> = vec![Vec::new()];
    let mut begun = 0;
    // Each one grows by every mapping that it lacks.
    while begun < all.len() {
        let order = all[begun].clone();
        begun += 1;
        for mapping in mappings.iter().filter(|mapping| !order.contains(mapping)) {
            let mut longer = order.clone();
            longer.push(*mapping);
            all.push(longer);
        }
    }
    all.remove(0);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;

    fn range(start: u64, bytes: u64) -> PageRange {
        PageRange::new(start, start + bytes).unwrap()
    }

    /// A guest's proofs at these places, and the monitor's memory that has them where `host` says.
    fn find(
        ram: &[PageRange],
        mappings: &[PageRange],
        places: &[u64],
        host: impl Fn(u64) -> u64,
    ) -> Option<Layout> {
        let proof = |place: u64| {
            let mut proof = [0x5a; PROOF_BYTES];
            proof[..8].copy_from_slice(&place.to_le_bytes());
            proof
        };
        let proofs: Vec<Proof> = places.iter().map(|place| (*place, proof(*place))).collect();
        let read = |address: u64, bytes: &mut [u8]| {
            let place = places.iter().find(|place| host(**place) == address);
            place
                .inspect(|place| bytes.copy_from_slice(&proof(**place)))
                .is_some()
        };
        let layout = Layout::find(&ram.iter().copied().collect(), mappings, &proofs, &read)?;
        for place in places {
            let page = PageSet::from_iter([range(*place, 4096)]);
            let there = layout.in_monitor(&page);
            assert_eq!(there, PageSet::from_iter([range(host(*place), 4096)]));
            assert_eq!(layout.physical(&there), page);
        }
        Some(layout)
    }

    #[test]
    fn a_small_guest_lies_in_one_mapping() {
        let ram = [range(0x1000, 0x9e000), range(MIB, 511 * MIB)];
        // Video memory, too.
        let mappings = [
            range(0x7f00_0000_0000, 16 * MIB),
            range(0x7e00_0000_0000, 512 * MIB),
        ];
        let layout = find(&ram, &mappings, &[0x20_0000, 0x1000_0000], |place| {
            0x7e00_0000_0000 + place
        })
        .unwrap();
        let outside = PageSet::from_iter([range(GIB, MIB)]);
        assert!(layout.in_monitor(&outside).is_empty());
        assert_eq!(layout.memory(), PageSet::from_iter([mappings[1]]));
    }

    #[test]
    fn a_large_guest_has_a_hole() {
        // QEMU: one mapping, 3 GiB of it below the hole, whose last page firmware keeps.
        let ram = [
            range(0x1000, 0x9e000),
            range(MIB, 3 * GIB - 2 * MIB),
            range(4 * GIB, 5 * GIB),
        ];
        let base = 0x7e00_0000_0000;
        let qemu = [range(base, 8 * GIB)];
        let linear = |place: u64| match place < 4 * GIB {
            true => base + place,
            false => base + 3 * GIB + (place - 4 * GIB),
        };
        let places = [2 * GIB, 4 * GIB, 8 * GIB];
        assert!(find(&ram, &qemu, &places, linear).is_some());
        // Cloud Hypervisor and Firecracker: two, the later one below, which the kernel may merge.
        let reversed = |place: u64| match place < 4 * GIB {
            true => base + 5 * GIB + place,
            false => base + (place - 4 * GIB),
        };
        let merged = [range(base, 8 * GIB)];
        assert!(find(&ram, &merged, &places, reversed).is_some());
        let two = [range(base, 5 * GIB), range(base + 5 * GIB, 3 * GIB)];
        assert!(find(&ram, &two, &places, reversed).is_some());
        // QEMU with a mapping for each node.
        let apart = |place: u64| match linear(place) - base {
            offset if offset < 4 * GIB => 0x7000_0000_0000 + offset,
            offset => 0x7100_0000_0000 + (offset - 4 * GIB),
        };
        let nodes = [
            range(0x7100_0000_0000, 4 * GIB),
            range(0x7000_0000_0000, 4 * GIB),
        ];
        assert!(find(&ram, &nodes, &places, apart).is_some());
    }

    #[test]
    fn memory_of_arm_machines_begins_later() {
        let ram = [range(GIB, 6 * GIB)];
        let base = 0xff00_0000_0000;
        let mappings = [range(base, 6 * GIB)];
        let places = [GIB, 5 * GIB];
        assert!(find(&ram, &mappings, &places, |place| base + place - GIB).is_some());
    }

    #[test]
    fn what_is_not_proven_is_not_believed() {
        let ram = [range(MIB, 511 * MIB)];
        let mappings = [range(0x7e00_0000_0000, 512 * MIB)];
        assert_eq!(find(&ram, &mappings, &[0x20_0000], |place| place), None);
        assert_eq!(find(&ram, &mappings, &[], |place| place), None);
        // Nothing of it is true, and nothing overflows.
        let absurd = [range(u64::MAX - 8192, 4096), range(4 * GIB, GIB)];
        for ram in [&absurd[..1], &absurd[1..], &absurd, &[]] {
            let everywhere = |place: u64| 0x7e00_0000_0000 + place % (512 * MIB);
            let proofs = [
                (4 * GIB, [0; PROOF_BYTES]),
                (u64::MAX / 2, [0; PROOF_BYTES]),
            ];
            let read = |address: u64, _: &mut [u8]| address == everywhere(4 * GIB);
            let ram = ram.iter().copied().collect();
            assert_eq!(Layout::find(&ram, &mappings, &proofs, &read), None);
        }
    }
}
