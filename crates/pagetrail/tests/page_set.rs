//! `PageSet` against a `BTreeSet` of page numbers.

use std::collections::BTreeSet;
use std::ops::Range;

use pagetrail::{PageRange, PageSet, page_size};
use proptest::collection::vec;
use proptest::prelude::*;

/// Few pages, so that ranges often overlap, touch and contain each other.
const PAGES: u64 = 64;

type Model = BTreeSet<u64>;

fn range(pages: &Range<u64>) -> PageRange {
    PageRange::new(pages.start * page_size(), pages.end * page_size()).unwrap()
}

fn a_range() -> impl Strategy<Value = Range<u64>> {
    // Mostly short ranges: long ones leave no gaps to test.
    (0..PAGES, prop_oneof![4 => 1..4_u64, 1 => 1..PAGES])
        .prop_map(|(start, length)| start..(start + length).min(PAGES))
}

fn ranges() -> impl Strategy<Value = Vec<Range<u64>>> {
    vec(a_range(), 0..20)
}

fn set_of(ranges: &[Range<u64>]) -> PageSet {
    ranges.iter().map(range).collect()
}

fn model_of(ranges: &[Range<u64>]) -> Model {
    ranges.iter().flat_map(Clone::clone).collect()
}

/// Asserts equal pages, and the form that the set promises: sorted ranges, not empty, not touching.
fn assert_same(set: &PageSet, model: &Model) {
    let units: Vec<u64> = set.iter_units(page_size()).collect();
    let expected: Vec<u64> = model.iter().map(|page| page * page_size()).collect();
    assert_eq!(units, expected);
    assert!(set.ranges().iter().all(|range| range.start() < range.end()));
    assert!(
        set.ranges()
            .windows(2)
            .all(|two| two[0].end() < two[1].start())
    );
    assert_eq!(set.page_count(), model.len() as u64);
    assert_eq!(set.bytes(), model.len() as u64 * page_size());
    assert_eq!(set.is_empty(), model.is_empty());
}

proptest! {
    #[test]
    fn insert_and_remove_in_any_order(steps in vec((any::<bool>(), a_range()), 0..40)) {
        let (mut set, mut model) = (PageSet::new(), Model::new());
        for (insert, pages) in steps {
            if insert {
                set.insert(range(&pages));
                model.extend(pages);
            } else {
                set.remove(range(&pages));
                model.retain(|page| !pages.contains(page));
            }
            assert_same(&set, &model);
        }
        set.clear();
        assert_same(&set, &Model::new());
    }

    #[test]
    fn from_iter_and_extend_in_any_order(first in ranges(), second in ranges()) {
        let mut set = set_of(&first);
        let mut model = model_of(&first);
        assert_same(&set, &model);
        set.extend(second.iter().map(range));
        model.extend(model_of(&second));
        assert_same(&set, &model);
    }

    #[test]
    fn union_intersection_and_difference(a in ranges(), b in ranges()) {
        let (set_a, set_b) = (set_of(&a), set_of(&b));
        let (model_a, model_b) = (model_of(&a), model_of(&b));
        assert_same(&set_a.union(&set_b), &(&model_a | &model_b));
        assert_same(&set_a.intersection(&set_b), &(&model_a & &model_b));
        assert_same(&set_a.difference(&set_b), &(&model_a - &model_b));
        let mut union = set_a.clone();
        union.union_with(&set_b);
        prop_assert_eq!(&union, &set_a.union(&set_b));
        // Sets of equal pages are equal, however they were made.
        let kept = set_a.difference(&set_b).union(&set_a.intersection(&set_b));
        prop_assert_eq!(kept, set_a);
    }

    #[test]
    fn contains_covers_and_intersects(pages in ranges(), asked in a_range(), byte in 0..4096_u64) {
        let (set, model) = (set_of(&pages), model_of(&pages));
        for page in 0..PAGES + 1 {
            let address = page * page_size() + byte % page_size();
            prop_assert_eq!(set.contains(address), model.contains(&page));
        }
        let mut all = asked.clone();
        prop_assert_eq!(set.covers(range(&asked)), all.all(|page| model.contains(&page)));
        let mut any = asked.clone();
        prop_assert_eq!(set.intersects(range(&asked)), any.any(|page| model.contains(&page)));
    }

    /// Ranges that are not whole pages, as those of sub-pages are.
    #[test]
    fn bytes_instead_of_pages(a in ranges(), b in ranges()) {
        let bytes = |pages: &Range<u64>| PageRange::new(pages.start, pages.end).unwrap();
        let set_a: PageSet = a.iter().map(bytes).collect();
        let set_b: PageSet = b.iter().map(bytes).collect();
        let difference = set_a.difference(&set_b);
        let units: Vec<u64> = difference.iter_units(1).collect();
        let expected = &model_of(&a) - &model_of(&b);
        prop_assert_eq!(units, Vec::from_iter(expected));
    }

    #[test]
    fn a_range_aligned_outwards_is_the_smallest(pages in a_range(), bits in 0..8_u32) {
        let unit = 1 << bits;
        let aligned = PageRange::new(pages.start, pages.end).unwrap().align_outwards(unit);
        prop_assert!(aligned.start() <= pages.start && pages.start - aligned.start() < unit);
        prop_assert!(aligned.end() >= pages.end && aligned.end() - pages.end < unit);
        prop_assert_eq!((aligned.start() % unit, aligned.end() % unit), (0, 0));
    }
}

/// Ranges may be shorter than a unit, and addresses may be the last ones.
#[test]
fn the_ends_of_the_address_space() {
    let last = PageRange::new(u64::MAX - page_size(), u64::MAX).unwrap();
    let mut set: PageSet = [last, PageRange::new(0, 1).unwrap()].into_iter().collect();
    assert!(set.contains(0) && set.contains(u64::MAX - 1) && !set.contains(u64::MAX));
    assert_eq!(
        set.iter_units(page_size()).collect::<Vec<_>>(),
        [0, last.start()]
    );
    set.remove(PageRange::new(0, u64::MAX).unwrap());
    assert!(set.is_empty());
    let all = PageRange::new(0, u64::MAX).unwrap();
    set.insert(all);
    assert_eq!(set.bytes(), u64::MAX);
    assert_eq!(last.align_outwards(1 << 21).end(), u64::MAX);
}
