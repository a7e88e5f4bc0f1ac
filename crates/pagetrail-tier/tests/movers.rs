//! Moving when things go wrong: no room, pages in use, a target that ends in the middle.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagetrail::{Mapped, PageRange, PageSet};
use pagetrail_tier::mover::{DryRun, Kernel, Mover, NodeMover, NodeOptions, Reason};
use pagetrail_tier::simulate::{Machine, Report};
use pagetrail_tier::{Error, Place, Settings, TierLoop, TierLoopOptions, Unit};
use rustix::io::Errno;

const PAGE: u64 = 4096;
const FOREVER: Duration = Duration::from_secs(60);

/// A kernel whose pages are on nodes, and which fails on command.
struct Fake {
    nodes: Mutex<BTreeMap<u64, i32>>,
    /// Pages that node 0 has room for.
    room: usize,
    /// Pages that cannot be moved, and the error.
    stuck: BTreeMap<u64, Errno>,
    /// After so many calls the process is gone.
    calls_left: AtomicUsize,
    /// A node that the process's cpuset does not allow.
    forbidden: Option<u32>,
}

impl Fake {
    fn new(pages: u64, room: usize) -> Self {
        Self {
            nodes: Mutex::new((0..pages).map(|page| (page * PAGE, 1)).collect()),
            room,
            stuck: BTreeMap::new(),
            calls_left: AtomicUsize::new(usize::MAX),
            forbidden: None,
        }
    }

    fn is_gone(&self) -> bool {
        let left = |left: usize| left.checked_sub(1);
        let order = Ordering::SeqCst;
        self.calls_left.fetch_update(order, order, left).is_err()
    }
}

impl Kernel for &Fake {
    fn query(&self, _: u32, addresses: &[u64], states: &mut [i32]) -> Result<(), Errno> {
        if self.is_gone() {
            return Err(Errno::SRCH);
        }
        let nodes = self.nodes.lock().unwrap();
        for (address, state) in addresses.iter().zip(states) {
            *state = nodes
                .get(address)
                .copied()
                .unwrap_or(-Errno::NOENT.raw_os_error());
        }
        Ok(())
    }

    fn to_node(
        &self,
        _: u32,
        addresses: &[u64],
        node: u32,
        states: &mut [i32],
    ) -> Result<(), Errno> {
        if self.is_gone() {
            return Err(Errno::SRCH);
        }
        if self.forbidden == Some(node) {
            return Err(Errno::ACCESS);
        }
        let mut nodes = self.nodes.lock().unwrap();
        for (address, state) in addresses.iter().zip(states) {
            let taken = nodes.values().filter(|node| **node == 0).count();
            *state = match (self.stuck.get(address), nodes.get_mut(address)) {
                (Some(errno), _) => -errno.raw_os_error(),
                (_, None) => -Errno::NOENT.raw_os_error(),
                _ if node == 0 && taken >= self.room => -Errno::NOMEM.raw_os_error(),
                (_, Some(place)) => {
                    *place = node as i32;
                    *place
                }
            };
        }
        Ok(())
    }
}

fn units(pages: std::ops::Range<u64>) -> Vec<Unit> {
    pages
        .map(|page| Unit {
            address: page * PAGE,
            bytes: PAGE,
            rank: 1,
        })
        .collect()
}

fn options(batch: usize) -> NodeOptions {
    NodeOptions {
        batch,
        ..NodeOptions::default()
    }
}

/// Node 0 is full after 300 pages: the others go to the next fast node, in one plan.
#[test]
fn what_finds_no_room_goes_to_the_next_node() {
    let fake = Fake::new(1000, 300);
    let two = NodeOptions {
        fast: vec![0, 2],
        slow: vec![1, 3],
        ..options(7)
    };
    let mut mover = NodeMover::with_kernel(1, two, &fake);
    let outcome = mover.carry_out(&units(0..1000), Place::Fast, FOREVER);
    assert_eq!((outcome.moved.len(), outcome.failed.len()), (1000, 0));
    let on = |node: i32| {
        let nodes = fake.nodes.lock().unwrap();
        nodes.values().filter(|place| **place == node).count()
    };
    assert_eq!((on(0), on(2)), (300, 700));
    let mapped = PageSet::from_iter(PageRange::new(0, 1000 * PAGE));
    let runs = mover.places(&Mapped::in_memory(mapped)).unwrap();
    assert!(runs.iter().all(|run| run.place == Place::Fast), "{runs:?}");
    // The first slow node has room for all.
    let outcome = mover.carry_out(&units(0..1000), Place::Slow, FOREVER);
    assert_eq!((outcome.moved.len(), on(1), on(3)), (1000, 1000, 0));
}

#[test]
fn all_is_moved_by_several_threads() {
    let fake = Fake::new(1000, 1000);
    let mut mover = NodeMover::with_kernel(1, options(7), &fake);
    let outcome = mover.carry_out(&units(0..1000), Place::Fast, FOREVER);
    assert_eq!((outcome.moved.len(), outcome.failed.len()), (1000, 0));
    // In the order of the plan, no matter which thread moved them.
    assert_eq!(outcome.moved, units(0..1000));
    assert!(fake.nodes.lock().unwrap().values().all(|node| *node == 0));
    let mapped = Mapped::in_memory(PageSet::from_iter(PageRange::new(0, 1002 * PAGE)));
    let runs = mover.places(&mapped).unwrap();
    assert_eq!(runs.len(), 1, "{runs:?}");
    assert_eq!(
        (runs[0].place, runs[0].range.bytes()),
        (Place::Fast, 1000 * PAGE)
    );
}

#[test]
fn every_failure_has_its_reason_and_stops_nobody_else() {
    let mut fake = Fake::new(100, 1000);
    for (page, errno) in [
        (3, Errno::BUSY),
        (5, Errno::ACCESS),
        (6, Errno::FAULT),
        (7, Errno::PERM),
    ] {
        fake.stuck.insert(page * PAGE, errno);
    }
    let mut mover = NodeMover::with_kernel(1, options(10), &fake);
    let outcome = mover.carry_out(&units(0..102), Place::Fast, FOREVER);
    assert_eq!(outcome.moved.len(), 96);
    let expected = [
        (Reason::Busy, 1),
        (Reason::Shared, 1),
        (Reason::Absent, 3),
        (Reason::Refused, 1),
    ];
    assert_eq!(outcome.failures(), expected.into());
}

/// `EACCES` of the call as a whole says nothing of its pages.
#[test]
fn a_node_that_a_cpuset_does_not_allow_is_refused() {
    let mut fake = Fake::new(100, 1000);
    fake.forbidden = Some(0);
    let mut mover = NodeMover::with_kernel(1, options(10), &fake);
    let outcome = mover.carry_out(&units(0..100), Place::Fast, FOREVER);
    assert_eq!(outcome.failures(), [(Reason::Refused, 100)].into());
}

#[test]
fn a_full_node_ends_it_and_later_plans_wait() {
    let fake = Fake::new(1000, 50);
    let one_thread = NodeOptions {
        threads: 1,
        ..options(10)
    };
    let mut mover = NodeMover::with_kernel(1, one_thread, &fake);
    let mut attempts = Vec::new();
    for _ in 0..16 {
        let calls = fake.calls_left.load(Ordering::SeqCst);
        let outcome = mover.carry_out(&units(100..400), Place::Fast, FOREVER);
        assert_eq!(outcome.moved.len() + outcome.failed.len(), 300);
        attempts.push(calls - fake.calls_left.load(Ordering::SeqCst));
    }
    // Six batches, the last of which finds it full; then a plan is passed over, then two, four,
    // eight.
    assert_eq!(attempts[0], 6);
    let tried: Vec<usize> = (0..16).filter(|plan| attempts[*plan] > 0).collect();
    assert_eq!(tried, [0, 2, 5, 10]);
    // Out of it goes as ever.
    let out = mover.carry_out(&units(100..150), Place::Slow, FOREVER);
    assert_eq!(out.moved.len(), 50);
}

#[test]
fn a_target_that_ends_in_the_middle_is_reported() {
    let fake = Fake::new(1000, 1000);
    fake.calls_left.store(3, Ordering::SeqCst);
    let mut mover = NodeMover::with_kernel(1, options(10), &fake);
    let outcome = mover.carry_out(&units(0..1000), Place::Fast, FOREVER);
    assert_eq!(outcome.moved.len(), 30);
    let failures = outcome.failures();
    assert!(failures[&Reason::Ended] >= 10 && failures.contains_key(&Reason::NotTried));
    let mapped = Mapped::in_memory(PageSet::from_iter(PageRange::new(0, PAGE)));
    let error = mover.places(&mapped).unwrap_err();
    assert!(error.means_end(), "{error}");
}

#[test]
fn no_faster_than_allowed_and_no_longer() {
    let fake = Fake::new(1000, 1000);
    let slow = NodeOptions {
        bytes_per_second: Some(1000 * PAGE),
        ..options(10)
    };
    let mut mover = NodeMover::with_kernel(1, slow, &fake);
    let outcome = mover.carry_out(&units(0..1000), Place::Fast, Duration::from_millis(100));
    let moved = outcome.moved.len();
    assert!(
        (10..=110).contains(&moved),
        "{moved} pages in a tenth of a second"
    );
    assert_eq!(
        outcome.failures(),
        [(Reason::NotTried, 1000 - moved as u64)].into()
    );
    let none = mover.carry_out(&units(0..10), Place::Slow, Duration::ZERO);
    assert_eq!(none.failures(), [(Reason::NotTried, 10)].into());
}

#[test]
fn a_dry_run_moves_nothing_and_says_so() {
    let fake = Fake::new(10, 10);
    let mut mover = DryRun(NodeMover::with_kernel(1, options(10), &fake));
    let outcome = mover.carry_out(&units(0..10), Place::Fast, FOREVER);
    assert_eq!(outcome.failures(), [(Reason::NotTried, 10)].into());
    assert!(fake.nodes.lock().unwrap().values().all(|node| *node == 1));
}

/// Moves as a machine does, but of every ten pages one is busy.
struct Stubborn<M>(M);

impl<M: Mover> Mover for Stubborn<M> {
    fn places(&mut self, mapped: &Mapped) -> Result<Vec<pagetrail_tier::Run>, Error> {
        self.0.places(mapped)
    }

    fn carry_out(
        &mut self,
        units: &[Unit],
        to: Place,
        timeout: Duration,
    ) -> pagetrail_tier::mover::Outcome {
        let (stuck, free): (Vec<Unit>, Vec<Unit>) = units
            .iter()
            .partition(|unit| (unit.address / PAGE).is_multiple_of(10));
        let mut outcome = self.0.carry_out(&free, to, timeout);
        outcome
            .failed
            .extend(stuck.into_iter().map(|unit| (unit, Reason::Busy)));
        outcome
    }
}

#[test]
fn pages_that_refuse_to_leave_keep_their_place_counted() {
    let machine = Machine::new(1000, 200);
    let page = pagetrail::page_size();
    let options = TierLoopOptions {
        settings: Settings::default(),
        capacity: 200 * page,
        timeout: None,
    };
    let mover = Box::new(Stubborn(machine.mover()));
    let mut tier_loop =
        TierLoop::new(Box::new(machine.source(Report::Accesses)), mover, options).unwrap();
    assert!(tier_loop.begin_period().unwrap());
    // All that is slow is hot, all that is fast is cold.
    let accesses = pagetrail_tier::simulate::Accesses {
        reads: (0..1000).map(|page| u32::from(page >= 200)).collect(),
        writes: vec![0; 1000],
    };
    for _ in 0..8 {
        machine.touch(&accesses);
        let report = tier_loop.window().unwrap();
        assert!(report.usage.fast <= 200 * page);
        assert_eq!(
            report.usage.fast / page,
            machine.in_fast() as u64,
            "the accounting is right"
        );
    }
    let failures = &tier_loop.totals().failures;
    assert!(failures[&Reason::Busy] > 0, "{failures:?}");
    // All but the stuck ones have changed places.
    let hot: Vec<u32> = (200..1000).collect();
    assert!(machine.fast_part(&hot) >= 180.0 / 800.0);
}

/// Moves as a machine does, but no more than so many pages until it may again.
struct Tired<M> {
    mover: M,
    pages_left: Arc<AtomicUsize>,
}

impl<M: Mover> Mover for Tired<M> {
    fn places(&mut self, mapped: &Mapped) -> Result<Vec<pagetrail_tier::Run>, Error> {
        self.mover.places(mapped)
    }

    fn carry_out(
        &mut self,
        units: &[Unit],
        to: Place,
        timeout: Duration,
    ) -> pagetrail_tier::mover::Outcome {
        let left = self.pages_left.load(Ordering::SeqCst);
        let (now, never) = units.split_at(left.min(units.len()));
        self.pages_left.store(left - now.len(), Ordering::SeqCst);
        let mut outcome = self.mover.carry_out(now, to, timeout);
        let not_tried = never.iter().map(|unit| (*unit, Reason::NotTried));
        outcome.failed.extend(not_tried);
        outcome
    }
}

/// Of a plan for which there is no time in a window, pages are promoted in the same window in which
/// others make room for them, and fast memory is not left empty.
#[test]
fn a_plan_that_takes_long_promotes_while_it_demotes() {
    const FAST: u64 = 4000;
    const EACH_WINDOW: usize = 1500;
    let machine = Machine::new(10_000, FAST as usize);
    let page = pagetrail::page_size();
    let options = TierLoopOptions {
        settings: Settings::default(),
        capacity: FAST * page,
        timeout: None,
    };
    let pages_left = Arc::new(AtomicUsize::new(0));
    let mover = Box::new(Tired {
        mover: machine.mover(),
        pages_left: pages_left.clone(),
    });
    let mut tier_loop =
        TierLoop::new(Box::new(machine.source(Report::Accesses)), mover, options).unwrap();
    assert!(tier_loop.begin_period().unwrap());
    let hot: Vec<u32> = (5000..5000 + FAST as u32).collect();
    let accesses = pagetrail_tier::simulate::Accesses {
        reads: (0..10_000)
            .map(|page| u32::from(hot.contains(&page)))
            .collect(),
        writes: vec![0; 10_000],
    };
    let mut windows_that_moved = 0;
    for _ in 0..8 {
        pages_left.store(EACH_WINDOW, Ordering::SeqCst);
        machine.touch(&accesses);
        let report = tier_loop.window().unwrap();
        assert!(report.usage.fast <= FAST * page, "{report:?}");
        if report.demoted_bytes > 0 {
            windows_that_moved += 1;
            assert!(report.promoted_bytes > 0, "{report:?}");
            let empty = FAST * page - report.usage.fast;
            assert!(empty < FAST / 3 * page, "{report:?}");
        }
    }
    assert!(windows_that_moved >= 4, "it took no longer than a window");
    let failures = &tier_loop.totals().failures;
    assert!(failures[&Reason::NotTried] > 0, "{failures:?}");
    assert!(machine.fast_part(&hot) > 0.9);
}
