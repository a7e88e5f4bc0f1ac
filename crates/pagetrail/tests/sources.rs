//! The contract of [`DirtySource`], on a source that this test makes of a [`RoundBuffer`], and on
//! watches: what is written before a collect is in its round, and a dropped round comes back.

#![allow(clippy::print_stderr, reason = "a random test prints its seed")]

use std::time::Duration;

use pagetrail::{
    AccessKind, DirtySource, Error, Event, Found, Heaps, Held, PageRange, PageSet, Permissions,
    Region, Result, Round, RoundBuffer, RoundCost, State, Target, TrackMode, UntrackedRegion,
    Watch, page_size, pages_of,
};

const PAGES: u64 = 64;

/// A source whose writes are announced to it.
struct Announced {
    rounds: RoundBuffer,
    regions: Vec<Region>,
    announced: Found,
}

impl Announced {
    fn new(range: PageRange) -> Self {
        let permissions = Permissions {
            read: true,
            write: true,
            execute: false,
            shared: false,
        };
        Self {
            rounds: RoundBuffer::new(),
            regions: vec![Region::new(range, permissions)],
            announced: Found::default(),
        }
    }
}

impl DirtySource for Announced {
    fn pid(&self) -> u32 {
        std::process::id()
    }

    fn technique_name(&self) -> &str {
        "announced"
    }

    fn reason(&self) -> &str {
        "a test announces its writes"
    }

    fn regions(&self) -> &[Region] {
        &self.regions
    }

    fn untracked(&self) -> &[UntrackedRegion] {
        &[]
    }

    fn wait(&mut self, _: Duration) -> State {
        State::Running
    }

    fn collect(&mut self) -> Result<Round<'_>> {
        let kind = AccessKind::Writes;
        self.rounds.add(kind, std::mem::take(&mut self.announced));
        self.rounds.end_collect(&[kind], RoundCost::default());
        let round = self.rounds.round(kind, &self.regions, &[]);
        Ok(round.expect("a collect has ended"))
    }

    fn release_exit(&mut self) {}

    fn hold(&mut self) -> Result<Box<dyn Held>> {
        Err(Error::OwnProcess { pid: self.pid() })
    }

    fn collect_held(&mut self, _: &dyn Held) -> Result<Round<'_>> {
        self.collect()
    }
}

fn page(range: PageRange, number: u64) -> PageRange {
    let start = range.start() + number * page_size();
    PageRange::new(start, start + page_size()).expect("a page")
}

fn committed(source: &mut dyn DirtySource, within: PageRange) -> PageSet {
    let round = source.collect().expect("a round");
    let dirty = round.dirty().intersection(&PageSet::from_iter([within]));
    round.commit();
    dirty
}

/// Holds a source to the contract. `write` writes a page and lets the source know, if it must.
fn check<S: DirtySource>(source: &mut S, range: PageRange, mut write: impl FnMut(&mut S, u64)) {
    let seed: u64 = std::env::var("SEED").map_or(7, |seed| seed.parse().expect("a number"));
    eprintln!("SEED={seed}");
    let mut state = seed;
    let mut random = |below: u64| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state >> 33) % below
    };
    committed(source, range);
    let (mut due, mut index) = (PageSet::new(), None);
    for _ in 0..200 {
        for _ in 0..random(4) {
            let number = random(PAGES);
            write(source, number);
            due.insert(page(range, number));
        }
        let round = source.collect().expect("a round");
        assert_eq!(round.access_kind(), AccessKind::Writes);
        let missing = due.difference(round.dirty());
        assert!(missing.is_empty(), "{missing:?} of {due:?}");
        assert!(round.regions().iter().any(|region| {
            let here = region.range;
            here.start() <= range.start() && range.end() <= here.end()
        }));
        if let Some(before) = index {
            assert_eq!(round.index(), before, "the number of committed rounds");
        }
        if random(2) == 0 {
            index = Some(round.index() + 1);
            round.commit();
            due.clear();
        } else {
            index = Some(round.index());
            drop(round);
        }
    }
    committed(source, range);
    assert_eq!(
        committed(source, range),
        PageSet::new(),
        "nothing was written"
    );
}

/// Pages of this process, which are written one by one.
struct Pages(Vec<u8>);

impl Pages {
    fn new() -> Self {
        Self(vec![1; ((PAGES + 2) * page_size()) as usize])
    }

    /// Whole pages in the middle.
    fn range(&self) -> PageRange {
        let start = pages_of(&self.0).expect("memory").start() + page_size();
        PageRange::new(start, start + PAGES * page_size()).expect("not empty")
    }

    fn write(&mut self, number: u64) {
        let offset = page(self.range(), number).start() - self.0.as_ptr() as u64;
        let byte = &mut self.0[offset as usize];
        *byte = byte.wrapping_add(1);
        std::hint::black_box(&self.0);
    }
}

#[test]
fn a_source_made_of_a_buffer_keeps_the_contract() {
    let range = PageRange::new(1 << 30, (1 << 30) + PAGES * page_size()).expect("not empty");
    check(&mut Announced::new(range), range, |source, number| {
        source.announced.dirty.insert(page(range, number));
    });
}

#[test]
fn watches_keep_the_contract() {
    let mut pages = Pages::new();
    let range = pages.range();
    let watch = Watch::builder().target(Target::ranges([range])).start();
    let Ok(mut watch) = watch else {
        return pagetrail_skips::not_here("no technique works for ranges of the own process");
    };
    check(&mut watch, range, |_, number| pages.write(number));
    let watch: &dyn DirtySource = &watch;
    assert_eq!(watch.pid(), std::process::id());
    assert!(!watch.reason().is_empty());
}

/// Rounds of both kinds cover the same interval, and each waits for its own commit.
#[test]
fn kinds_of_access_are_apart() {
    let mut rounds = RoundBuffer::new();
    let pages = |numbers: &[u64]| -> PageSet {
        let range = PageRange::new(0, PAGES * page_size()).expect("not empty");
        numbers.iter().map(|number| page(range, *number)).collect()
    };
    let kinds = [AccessKind::Writes, AccessKind::Accesses];
    for (write, access) in [(1, 2), (3, 4)] {
        let mut found = Found::default();
        found.dirty = pages(&[write]);
        found.events = vec![Event::Note(format!("writes {write}"))];
        rounds.add(kinds[0], found);
        let mut found = Found::default();
        found.dirty = pages(&[write, access]);
        rounds.add(kinds[1], found);
        rounds.end_collect(&kinds, RoundCost::default());
        let round = rounds.round(kinds[0], &[], &[]).expect("a round");
        let interval = (round.began(), round.duration());
        drop(round);
        let round = rounds.round(kinds[1], &[], &[]).expect("a round");
        assert_eq!((round.began(), round.duration()), interval);
        assert_eq!(*round.dirty(), pages(&[write, access]));
        round.commit();
        assert!(
            rounds.round(kinds[1], &[], &[]).is_none(),
            "it is committed"
        );
    }
    let round = rounds.round(kinds[0], &[], &[]).expect("it was dropped");
    assert_eq!(*round.dirty(), pages(&[1, 3]));
    assert_eq!(round.events().len(), 2);
    assert_eq!(round.index(), 2);
    round.commit();
    assert!(rounds.is_empty());
    let mut heaps = Heaps::new(std::process::id());
    rounds.resolve_subpages(kinds[0], &mut heaps, &[]);
    assert!(rounds.is_empty(), "no heap, no sub-pages");
}

/// Rounds that take turns keep the contract for each kind.
#[test]
fn a_watch_that_alternates_is_a_source() {
    let mut pages = Pages::new();
    let range = pages.range();
    let watch = Watch::builder()
        .target(Target::ranges([range]))
        .track(TrackMode::Alternate)
        .start();
    let Ok(mut watch) = watch else {
        return pagetrail_skips::not_here("accesses are not tracked here (Linux 7.3)");
    };
    let source: &mut dyn DirtySource = &mut watch;
    committed(source, range);
    for number in 0..PAGES {
        pages.write(number);
        let round = source.collect().expect("a round");
        assert!(round.dirty().contains(page(range, number).start()));
        round.commit();
    }
}
