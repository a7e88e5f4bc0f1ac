//! Mappings that change between two steps of [`Space`].

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::*;
use crate::sys::scratch::Scratch;
use crate::technique::Collected;
use crate::types::CollectAt;

/// Replaces the mapping just before arming it, as another thread of the target might.
struct Late {
    scratch: PageRange,
    armed: Arc<Mutex<Vec<(PageRange, bool)>>>,
}

impl Tracker for Late {
    fn arm(&mut self, region: &Region) -> std::result::Result<(), ArmError> {
        if let Some(range) = region.range.intersection(&self.scratch) {
            let mut armed = self.armed.lock().unwrap();
            if armed.is_empty() {
                Scratch::share(self.scratch).unwrap();
            }
            armed.push((range, region.permissions.shared));
        }
        Ok(())
    }

    fn add_populated(&mut self, region: &Region, out: &mut PageSet) -> Result<()> {
        out.extend(region.range.intersection(&self.scratch));
        Ok(())
    }

    fn forget(&mut self, _: PageRange) {}

    fn distinguishes_shared(&self) -> bool {
        true
    }

    fn collect(&mut self, _: &[Armed], _: &mut PageSet) -> Result<Collected> {
        Ok(Collected::default())
    }
}

fn config(policy: UntrackedPolicy) -> Config {
    Config {
        track: TrackMode::Writes,
        huge_pages: Default::default(),
        block_pages: 1,
        collect_at: CollectAt::AnyTime,
        untracked: policy,
        unwritable: Default::default(),
        report_pages: ReportPages::Once,
        false_positive_cost: None,
        precision: Default::default(),
        merge_subpages: false,
        max_overhead: None,
        intervals: Duration::ZERO..=Duration::ZERO,
    }
}

#[test]
fn near_the_limit_of_mappings_new_ones_are_compared() {
    let scratch = Scratch::new(16 * crate::page_set::page_size()).unwrap();
    let armed = Arc::new(Mutex::new(Vec::new()));
    let tracker = Late {
        // A range that is never armed, so that nothing is replaced.
        scratch: PageRange::new(0, crate::page_set::page_size()).unwrap(),
        armed: Arc::clone(&armed),
    };
    let within = PageSet::from_iter([scratch.range()]);
    let config = config(UntrackedPolicy::Compare);
    let mut space = Space::open(None, Some(within.clone()), Box::new(tracker), &config).unwrap();
    space.crowd = 1;
    let mut pending = Pending::default();
    space.follow(&mut pending).unwrap();
    assert_eq!((&space.compared, &pending.remapped), (&within, &within));
    assert!(space.armed.is_empty());
    assert!(space.untracked[0].reason.contains("vm.max_map_count"));
    assert_eq!(pending.events.len(), 1, "{:?}", pending.events);
    space.settled = false;
    space.follow(&mut pending).unwrap();
    assert_eq!(pending.events.len(), 1, "said once");
}

#[test]
fn a_mapping_replaced_between_reading_maps_and_arming_is_armed_again() {
    for at_the_start in [true, false] {
        let scratch = Scratch::new(16 * crate::page_set::page_size()).unwrap();
        let armed = Arc::new(Mutex::new(Vec::new()));
        let tracker = Late {
            scratch: scratch.range(),
            armed: Arc::clone(&armed),
        };
        let within = PageSet::from_iter([scratch.range()]);
        let config = config(UntrackedPolicy::Report);
        let mut space = Space::open(None, Some(within.clone()), Box::new(tracker), &config);
        let space = space.as_mut().unwrap();
        let mut pending = Pending::default();
        match at_the_start {
            true => drop(space.arm().unwrap()),
            false => space.follow(&mut pending).unwrap(),
        }
        let expected = [(scratch.range(), false), (scratch.range(), true)];
        assert_eq!(*armed.lock().unwrap(), expected);
        assert!(space.settled);
        if !at_the_start {
            assert_eq!(pending.remapped, within);
            assert_eq!(pending.written, within);
        }
    }
}

/// Refuses private memory.
struct Choosy {
    armed: Arc<Mutex<Vec<PageRange>>>,
}

impl Tracker for Choosy {
    fn arm(&mut self, region: &Region) -> std::result::Result<(), ArmError> {
        match region.permissions.shared {
            true => {
                self.armed.lock().unwrap().push(region.range);
                Ok(())
            }
            false => Err(ArmError::Untrackable("it is private".into())),
        }
    }

    fn add_populated(&mut self, region: &Region, out: &mut PageSet) -> Result<()> {
        out.insert(region.range);
        Ok(())
    }

    fn forget(&mut self, _: PageRange) {}

    fn collect(&mut self, _: &[Armed], _: &mut PageSet) -> Result<Collected> {
        Ok(Collected::default())
    }
}

#[test]
fn what_replaces_untracked_memory_in_given_ranges_is_armed() {
    let scratch = Scratch::new(16 * crate::page_set::page_size()).unwrap();
    let armed = Arc::new(Mutex::new(Vec::new()));
    let tracker = Choosy {
        armed: Arc::clone(&armed),
    };
    let within = PageSet::from_iter([scratch.range()]);
    let config = config(UntrackedPolicy::Report);
    let mut space = Space::open(None, Some(within.clone()), Box::new(tracker), &config).unwrap();
    space.arm().unwrap();
    assert_eq!(space.untracked().len(), 1);
    let mut pending = Pending::default();
    space.collect(&mut pending).unwrap();
    assert!(pending.written.is_empty());
    Scratch::share(scratch.range()).unwrap();
    space.collect(&mut pending).unwrap();
    assert_eq!(*armed.lock().unwrap(), [scratch.range()]);
    assert_eq!((&pending.written, &pending.remapped), (&within, &within));
    assert!(space.untracked().is_empty());
}

/// Notes what is armed at once, and what by itself.
struct Many {
    runs: Arc<Mutex<Vec<PageRange>>>,
    armed: Arc<Mutex<Vec<PageRange>>>,
    takes_runs: bool,
}

impl Tracker for Many {
    fn arm(&mut self, region: &Region) -> std::result::Result<(), ArmError> {
        self.armed.lock().unwrap().push(region.range);
        Ok(())
    }

    fn arm_run(&mut self, range: PageRange, mappings: &[Region]) -> bool {
        let all: PageSet = mappings.iter().map(|region| region.range).collect();
        assert_eq!(all, PageSet::from(range));
        self.runs.lock().unwrap().push(range);
        self.takes_runs
    }

    fn add_populated(&mut self, region: &Region, out: &mut PageSet) -> Result<()> {
        out.insert(region.range);
        Ok(())
    }

    fn forget(&mut self, _: PageRange) {}

    fn collect(&mut self, _: &[Armed], _: &mut PageSet) -> Result<Collected> {
        Ok(Collected::default())
    }
}

#[test]
fn private_mappings_side_by_side_are_armed_at_once_or_each_by_itself() {
    let page = crate::page_set::page_size();
    let scratch = Scratch::new(16 * page).unwrap();
    let start = scratch.range().start();
    let pages = |from: u64, to: u64| PageRange::new(start + from * page, start + to * page);
    let pages = |from, to| pages(from, to).unwrap();
    scratch.make_read_only(4 * page, page).unwrap();
    Scratch::share(pages(8, 9)).unwrap();
    let within = PageSet::from(scratch.range());
    let alone = [pages(8, 9), pages(9, 16)];
    let each = [pages(0, 4), pages(4, 5), pages(5, 8), alone[0], alone[1]];
    for (takes_runs, expected) in [(true, &alone[..]), (false, &each[..])] {
        for is_new in [false, true] {
            let (runs, armed) = (Arc::default(), Arc::default());
            let tracker = Many {
                runs: Arc::clone(&runs),
                armed: Arc::clone(&armed),
                takes_runs,
            };
            let config = config(UntrackedPolicy::Report);
            let space = Space::open(None, Some(within.clone()), Box::new(tracker), &config);
            let mut space = space.unwrap();
            let mut pending = Pending::default();
            match is_new {
                true => space.follow(&mut pending).unwrap(),
                false => drop(space.arm().unwrap()),
            }
            assert_eq!(*runs.lock().unwrap(), [pages(0, 8)]);
            assert_eq!(*armed.lock().unwrap(), expected);
            assert_eq!(space.armed, within);
            let new = if is_new { &within } else { &PageSet::new() };
            assert_eq!((&pending.written, &pending.remapped), (new, new));
        }
    }
}

/// Says whether somebody else has memory in a span, and counts the mappings that are looked up.
struct Foreign {
    has_others: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
}

impl Tracker for Foreign {
    fn arm(&mut self, _: &Region) -> std::result::Result<(), ArmError> {
        Ok(())
    }

    fn add_populated(&mut self, _: &Region, _: &mut PageSet) -> Result<()> {
        Ok(())
    }

    fn forget(&mut self, _: PageRange) {}

    fn is_others(&mut self, _: PageRange) -> bool {
        self.asked.fetch_add(1, Ordering::SeqCst);
        false
    }

    fn may_be_others(&mut self, _: PageRange) -> bool {
        self.has_others.load(Ordering::SeqCst)
    }

    fn collect(&mut self, _: &[Armed], _: &mut PageSet) -> Result<Collected> {
        Ok(Collected::default())
    }
}

#[test]
fn each_mapping_is_looked_up_only_while_others_have_memory() {
    let (has_others, asked) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let tracker = Foreign {
        has_others: Arc::clone(&has_others),
        asked: Arc::clone(&asked),
    };
    let config = config(UntrackedPolicy::Report);
    let mut space = Space::open(None, None, Box::new(tracker), &config).unwrap();
    space.arm().unwrap();
    let mut asked_when = |others: bool| {
        has_others.store(others, Ordering::SeqCst);
        asked.store(0, Ordering::SeqCst);
        space.collect(&mut Pending::default()).unwrap();
        (asked.load(Ordering::SeqCst), space.armed_mappings().len())
    };
    // The first may find mappings that have changed.
    asked_when(false);
    let (with, all) = asked_when(true);
    assert!(with * 2 > all, "{with} of {all}");
    let (without, all) = asked_when(false);
    // Of a few nothing but a question each tells; others may change meanwhile.
    assert!(without * 2 < all, "{without} of {all}");
}
