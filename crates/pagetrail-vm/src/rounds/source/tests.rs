//! A source of a guest that a thread of this process plays: it sends what the tests say, and a
//! child process stands for the program.

use std::os::fd::{IntoRawFd, OwnedFd};
use std::process::{Command, Stdio};

use pagetrail::{HeldThread, PageRange, PageSet};

use super::*;
use crate::rounds::link::{GuestEnd, MessageKind, pair};

/// Longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(60);

fn page(number: u64) -> PageRange {
    PageRange::new(number << 12, (number + 1) << 12).unwrap()
}

fn pages(numbers: &[u64]) -> PageSet {
    numbers.iter().map(|number| page(*number)).collect()
}

fn sent(written: &[u64], accessed: &[u64]) -> Collected {
    Collected {
        written: pages(written),
        accessed: Some(pages(accessed)),
        areas: PageSet::from_iter(PageRange::new(4096, 1 << 40)),
        ..Collected::default()
    }
}

/// A program that ends when its input is closed.
fn program() -> Child {
    let mut cat = Command::new("cat");
    cat.stdin(Stdio::piped()).stdout(Stdio::null());
    cat.spawn().expect("cat")
}

struct Played {
    source: GuestSource,
    guest: GuestEnd,
    program: Option<std::process::ChildStdin>,
}

impl Played {
    fn new(track: TrackMode) -> Self {
        let (rounds, link): (_, OwnedFd) = pair().unwrap();
        let mut child = program();
        Self {
            program: child.stdin.take(),
            source: GuestSource::new(rounds, child, track, RoundDetail::Pages),
            guest: GuestEnd::adopt(link.into_raw_fd()).unwrap(),
        }
    }
}

/// Collects a round while `guest` answers the request for it.
fn collected(played: &mut Played, answer: &Collected, commit: bool) -> PageSet {
    let (source, guest) = (&mut played.source, &played.guest);
    thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(guest.wait(), Some(Request::Round));
            guest.send(MessageKind::Reply, answer);
        });
        let round = source.collect().unwrap();
        let dirty = round.dirty().clone();
        if commit {
            round.commit();
        }
        dirty
    })
}

#[test]
fn a_dropped_round_comes_back() {
    let mut played = Played::new(TrackMode::Writes);
    assert_eq!(collected(&mut played, &sent(&[1], &[]), false), pages(&[1]));
    assert_eq!(
        collected(&mut played, &sent(&[3], &[]), false),
        pages(&[1, 3])
    );
    let all = pages(&[1, 3, 5]);
    assert_eq!(collected(&mut played, &sent(&[5], &[]), true), all);
    assert_eq!(collected(&mut played, &sent(&[], &[]), true), pages(&[]));
    assert_eq!(played.source.wait(Duration::ZERO), State::Running);
}

#[test]
fn writes_and_accesses_cover_the_same_interval_until_the_end() {
    let mut played = Played::new(TrackMode::Alternate);
    collected(&mut played, &sent(&[1], &[1, 2]), true);
    assert_eq!(played.source.wait(TIMEOUT), State::Ready);
    let round = played.source.collect().unwrap();
    assert_eq!(round.access_kind(), AccessKind::Accesses);
    assert_eq!(*round.dirty(), pages(&[1, 2]));
    round.commit();
    assert_eq!(played.source.wait(Duration::ZERO), State::Running);
    played.guest.send(MessageKind::Final, &sent(&[3], &[3, 4]));
    assert_eq!(played.source.wait(TIMEOUT), State::Exiting);
    let round = played.source.collect().unwrap();
    let interval = (round.began(), round.duration());
    assert_eq!(
        (round.index(), round.access_kind()),
        (2, AccessKind::Writes)
    );
    // It comes back although the guest says nothing more.
    drop(round);
    assert_eq!(played.source.wait(TIMEOUT), State::Ready);
    let round = played.source.collect().unwrap();
    assert_eq!((round.began(), round.duration()), interval);
    assert_eq!(*round.dirty(), pages(&[3, 4]));
    round.commit();
    assert_eq!(played.source.wait(TIMEOUT), State::Exiting);
    let round = played.source.collect().unwrap();
    assert_eq!(*round.dirty(), pages(&[3]));
    round.commit();
    assert_eq!(played.source.wait(TIMEOUT), State::Ready);
    played.source.collect().unwrap().commit();
    // Now that all is committed, the guest is let go: this returns.
    thread::scope(|scope| {
        let guest = &played.guest;
        let acknowledged = scope.spawn(|| guest.wait_for_ack());
        assert_eq!(played.source.wait(Duration::ZERO), State::Running);
        acknowledged.join().unwrap();
    });
    assert!(matches!(
        played.source.collect(),
        Err(pagetrail::Error::Gone { .. })
    ));
    played.program = None;
    let state = played.source.wait(TIMEOUT);
    assert_eq!(state, State::Ended(Some(Ended::Exited(0))));
}

#[test]
fn another_program_is_no_guest_but_its_end_is_awaited() {
    let mut played = Played::new(TrackMode::Writes);
    played.guest.send(MessageKind::PreExec, &sent(&[7], &[]));
    assert_eq!(played.source.wait(Duration::ZERO), State::Running);
    // It could not be executed, and the program goes on.
    let both = pages(&[7, 8]);
    assert_eq!(collected(&mut played, &sent(&[8], &[]), true), both);
    played.guest.send(MessageKind::PreExec, &sent(&[9], &[]));
    played.guest.hang_up();
    assert_eq!(played.source.wait(TIMEOUT), State::Ready);
    let round = played.source.collect().unwrap();
    assert_eq!(*round.dirty(), pages(&[9]));
    assert!(matches!(round.events(), [Event::Note(_)]));
    round.commit();
    assert!(matches!(
        played.source.collect(),
        Err(pagetrail::Error::Gone { .. })
    ));
    assert_eq!(played.source.wait(Duration::ZERO), State::Running);
    played.program = None;
    let state = played.source.wait(TIMEOUT);
    assert_eq!(state, State::Ended(Some(Ended::Exited(0))));
}

fn a_thread() -> HeldThread {
    HeldThread {
        tid: 7,
        registers: Vec::new(),
        blocked_signals: 1,
    }
}

#[test]
fn a_guest_is_held_until_the_hold_is_released() {
    let mut played = Played::new(TrackMode::Writes);
    let (source, guest) = (&mut played.source, &played.guest);
    thread::scope(|scope| {
        let requests = scope.spawn(|| {
            let first = guest.wait();
            guest.send(MessageKind::Reply, &sent(&[1], &[]));
            let second = guest.wait();
            guest.send_threads(&[a_thread()]);
            [first, second, guest.wait()]
        });
        let held = source.hold().unwrap();
        let round = source.collect_held(&*held).unwrap();
        assert_eq!(*round.dirty(), pages(&[1]));
        round.commit();
        assert_eq!(held.threads(), [a_thread()]);
        held.release();
        let expected = [Request::Hold, Request::Threads, Request::Release].map(Some);
        assert_eq!(requests.join().unwrap(), expected);
    });
}

#[test]
fn a_malformed_round_is_an_error_and_ends_the_rounds() {
    let mut played = Played::new(TrackMode::Writes);
    played.guest.send_bytes(&[9; 64]);
    assert_eq!(played.source.wait(TIMEOUT), State::Ready);
    let error = played.source.collect().unwrap_err().to_string();
    assert!(error.contains("malformed"), "{error}");
    assert!(matches!(
        played.source.collect(),
        Err(pagetrail::Error::Gone { .. })
    ));
}
