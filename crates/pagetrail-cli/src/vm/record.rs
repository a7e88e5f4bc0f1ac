//! `pagetrail record --vm`: records a program in the virtual machine, as a trail like any other.
//!
//! With accesses, one round of the machine becomes two rounds of the trail that cover the same
//! interval: one of writes, one of accesses.

use std::env;
use std::mem;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pagetrail::{AccessKind, Ended, Heaps, PageRange, PageSet, Region};
use pagetrail_trail::{End, Event, Header, Round};
use pagetrail_vm::{Collected, GuestRound, Rounds};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::commands::record::args::{AccessArg, RecordArgs};
use crate::commands::record::keep;
use crate::commands::report::Pictures;
use crate::exit;
use crate::recording::output::Output;
use crate::recording::recorder::{Recorder, Totals};
use crate::recording::round::{end, ns, subpage_writes};
use crate::session::schedule::Schedule;
use crate::session::signals::{Addressee, Signals};
use crate::session::start::unix_ms;

/// The longest time after which a signal is noticed.
const SIGNAL_TIMEOUT: Duration = Duration::from_millis(100);

/// Records the program from its first instruction to its end.
pub(crate) fn run(args: &RecordArgs) -> Result<ExitCode> {
    // Check here, before there is a process whose error would be less clear.
    pagetrail_vm::check::report()?;
    if args.access.is_some() {
        pagetrail_vm::check::try_accesses()?;
    }
    let output = Output::open(&args.output)?;
    let pictures = match Pictures::open(&args.pictures, &args.output) {
        Ok(pictures) => pictures,
        Err(error) => {
            output.discard();
            return Err(error);
        }
    };
    let (rounds, link) = pagetrail_vm::pair().context("cannot make a pair of sockets")?;
    let mut guest = Command::new(env::current_exe().context("cannot find this program")?);
    guest
        .args(["vm", "run", "--rounds", &link.as_raw_fd().to_string()])
        .args(args.parts.iter().flat_map(|parts| ["--parts", parts]))
        .args(args.access.iter().map(|_| "--accesses"))
        .arg("--")
        .args(&args.target.command);
    let child = guest.spawn().context("cannot start the virtual machine")?;
    drop(link);
    let kinds = match args.access {
        None => &[AccessKind::Writes][..],
        Some(AccessArg::Turns) => &[AccessKind::Writes, AccessKind::Accesses],
        Some(AccessArg::Only) => &[AccessKind::Accesses],
    };
    let kinds = kinds.iter().map(|access_kind| Kind {
        access_kind: *access_kind,
        heaps: args.parts.as_ref().map(|_| Heaps::new(child.id())),
    });
    let mut session = Session {
        kinds: kinds.collect(),
        signals: Signals::take(Addressee::Program(child.id())).context("cannot handle signals")?,
        child,
        rounds: Some(rounds),
        rounds_max: args.rounds.unwrap_or(u32::MAX),
        began: Instant::now(),
        ended: None,
    };
    let recorded = session.record(args, &output);
    let totals = match recorded {
        Ok(totals) => totals,
        Err(error) => {
            let failure = exit::report(&error);
            session.wait_for_end()?;
            return Ok(failure);
        }
    };
    let has_rounds = totals.rounds > 0;
    let kept = keep(&totals, None, output, pictures);
    let failure = kept.err().map(|error| exit::report(&error));
    let status = session.wait_for_end()?;
    // A guest that could not start has reported why, and its status is the reason for the missing
    // rounds.
    let failure = failure.filter(|_| has_rounds || status.success());
    Ok(failure.unwrap_or_else(|| exit::of_program(ended(status))))
}

struct Session {
    child: Child,
    signals: Signals,
    /// The link to the guest; `None` after the final round.
    rounds: Option<Rounds>,
    /// The number of rounds after which the recording ends.
    rounds_max: u32,
    /// The kinds of rounds that are made of each collected round.
    kinds: Vec<Kind>,
    began: Instant,
    ended: Option<ExitStatus>,
}

/// A kind of rounds in the trail.
struct Kind {
    access_kind: AccessKind,
    /// The heap that distinguishes sub-pages, if the program has one. It follows rounds of one
    /// kind.
    heaps: Option<Heaps>,
}

/// Whether the guest still runs, according to its rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// The program has ended, or is no longer a guest.
    Over,
}

impl Session {
    fn record(&mut self, args: &RecordArgs, output: &Output) -> Result<Totals> {
        let to_file = || output.path().display().to_string();
        let command = args.target.command.iter();
        let header = Header {
            command: command.map(|word| word.to_string_lossy().into()).collect(),
            pid: self.child.id(),
            page_size: pagetrail::page_size(),
            technique: "kvm".into(),
            reason: match args.access {
                None => "it runs as a guest, and KVM logs its writes".into(),
                Some(_) => {
                    "it runs as a guest: KVM logs its writes, its page tables have accessed bits"
                        .into()
                }
            },
            interval_ms: args.interval.as_millis() as u64,
            started_unix_ms: unix_ms(),
            attach_stopped_ns: 0,
        };
        let mut recorder = Recorder::new(output, header);
        let mut schedule = Schedule::new(Instant::now(), args.interval, args.duration);
        let mut from = Duration::ZERO;
        let state = loop {
            self.wait_until(schedule.deadline())?;
            let state = self
                .take_round(&mut recorder, &mut from)
                .with_context(to_file)?;
            let now = Instant::now();
            let enough = recorder.totals().rounds >= self.rounds_max;
            if state == State::Over || enough || schedule.is_over(now) {
                break state;
            }
            schedule.advance(now);
        };
        // The program continues, to its end or unrecorded.
        self.rounds = None;
        let end = match state {
            State::Over => end(ended(self.wait_for_end()?)),
            State::Running => End::Detached,
        };
        recorder.finish(&end).with_context(to_file)
    }

    /// Waits until a round is due, or the guest has sent one.
    fn wait_until(&mut self, deadline: Instant) -> Result<()> {
        let Some(rounds) = &self.rounds else {
            return Ok(());
        };
        loop {
            self.signals.stop_requested();
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left.min(SIGNAL_TIMEOUT))?;
            match poll(&mut [PollFd::new(rounds, PollFlags::IN)], Some(&timeout)) {
                Ok(0) if left.is_zero() => return Ok(()),
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error).context("cannot wait for a round"),
            }
        }
    }

    fn take_round(&mut self, recorder: &mut Recorder<'_>, from: &mut Duration) -> Result<State> {
        let Some(rounds) = &mut self.rounds else {
            return Ok(State::Over);
        };
        let began = Instant::now();
        let collected = rounds.collect()?;
        let collect = began.elapsed();
        let (collected, state, mut events) = match collected {
            GuestRound::Round(collected) => (Some(collected), State::Running, Vec::new()),
            GuestRound::Final(collected) => (Some(collected), State::Over, Vec::new()),
            GuestRound::Gone(collected) => {
                let note = "the program executes another one, which is not recorded".into();
                (collected, State::Over, vec![Event::Note(note)])
            }
            _ => return Ok(State::Over),
        };
        if let Some(mut collected) = collected {
            let unknown = collected.unknown_calls.iter();
            events.extend(unknown.map(|call| Event::Note(unknown_call(*call))));
            let now = self.began.elapsed();
            let regions = self.regions(&collected);
            for kind in &mut self.kinds {
                let index = recorder.totals().rounds;
                if index >= self.rounds_max {
                    break;
                }
                let mut pages = match kind.access_kind {
                    AccessKind::Writes => mem::take(&mut collected.written),
                    AccessKind::Accesses => collected.accessed.take().unwrap_or_default(),
                };
                let heaps = kind.heaps.as_mut();
                let subpages = heaps.and_then(|heaps| heaps.subpages_of(&regions, &mut pages));
                let round = Round {
                    index,
                    access_kind: kind.access_kind,
                    start_ns: ns(*from),
                    duration_ns: ns(now.saturating_sub(*from)),
                    collect_ns: ns(collect),
                    subpages: subpages.as_ref().map(subpage_writes),
                    written: pages,
                    events: mem::take(&mut events),
                    ..Round::default()
                };
                recorder.keep(round, &regions, &[])?;
            }
            *from = now;
        }
        Ok(state)
    }

    /// The program's mappings: those of its process without the machine's, with the names that they
    /// have natively.
    fn regions(&self, collected: &Collected) -> Vec<Region> {
        let mut regions = cut(&mappings(self.child.id()), &collected.areas);
        let heap = collected.heap.map(|range| (range, "[heap]"));
        let stack = collected.stack.map(|range| (range, "[stack]"));
        for (range, name) in heap.into_iter().chain(stack) {
            regions = named(regions, range, name);
        }
        regions
    }

    /// Waits for the program's end.
    fn wait_for_end(&mut self) -> Result<ExitStatus> {
        self.rounds = None;
        loop {
            if let Some(status) = self.ended {
                return Ok(status);
            }
            self.ended = self
                .child
                .try_wait()
                .context("cannot wait for the program")?;
            if self.ended.is_none() {
                self.signals.stop_requested();
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

fn unknown_call(number: u64) -> String {
    format!(
        "system call {number} is not known: for each such call, all writable memory counts as dirty"
    )
}

/// The mappings of a process. They are read through another thread when the first thread has ended.
fn mappings(pid: u32) -> Vec<Region> {
    let regions = Region::of_process(pid).unwrap_or_default();
    if !regions.is_empty() {
        return regions;
    }
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let numbers = threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .map(|thread: u32| Region::of_process(thread).unwrap_or_default())
        .find(|regions| !regions.is_empty())
        .unwrap_or_default()
}

fn cut(regions: &[Region], areas: &PageSet) -> Vec<Region> {
    let areas = areas.ranges();
    let mut cut = Vec::new();
    for region in regions {
        let first = areas.partition_point(|area| area.end() <= region.range.start());
        let overlapping = areas[first..].iter();
        let overlapping = overlapping.take_while(|area| area.start() < region.range.end());
        cut.extend(overlapping.filter_map(|area| region.cut(*area)));
    }
    cut
}

/// Gives this name to the nameless memory of a range.
fn named(regions: Vec<Region>, range: PageRange, name: &str) -> Vec<Region> {
    let (below, above) = (
        PageRange::new(0, range.start()),
        PageRange::new(range.end(), u64::MAX),
    );
    let mut cut = Vec::with_capacity(regions.len() + 2);
    for region in regions {
        let is_nameless = region.inode == 0 && region.name.is_empty();
        match region.cut(range) {
            Some(mut within) if is_nameless => {
                cut.extend(below.and_then(|below| region.cut(below)));
                within.name = name.into();
                cut.push(within);
                cut.extend(above.and_then(|above| region.cut(above)));
            }
            _ => cut.push(region),
        }
    }
    cut
}

fn ended(status: ExitStatus) -> Option<Ended> {
    match (status.code(), status.signal()) {
        (Some(code), _) => Some(Ended::Exited(code)),
        (None, Some(signal)) => Some(Ended::Killed(signal)),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nameless_memory_is_named_within_a_range() {
        let some = Region::of_process(std::process::id()).expect("mappings");
        let region = |start: u64, end: u64, inode: u64, name: &str| {
            let range = PageRange::new(start << 12, end << 12).expect("a range");
            let mut region = Region::new(range, some[0].permissions);
            region.inode = inode;
            region.name = name.into();
            region
        };
        let range = |start: u64, end: u64| PageRange::new(start << 12, end << 12).expect("a range");
        let regions = vec![
            region(1, 4, 7, "/bin/file"),
            region(4, 10, 0, ""),
            region(10, 12, 0, ""),
            region(14, 15, 0, "[anon: x]"),
            region(20, 24, 0, ""),
        ];
        let expected = vec![
            region(1, 4, 7, "/bin/file"),
            region(4, 6, 0, ""),
            region(6, 10, 0, "[heap]"),
            region(10, 11, 0, "[heap]"),
            region(11, 12, 0, ""),
            region(14, 15, 0, "[anon: x]"),
            region(20, 24, 0, ""),
        ];
        assert_eq!(named(regions.clone(), range(6, 11), "[heap]"), expected);
        assert_eq!(named(regions.clone(), range(1, 4), "[heap]"), regions);
        let whole = named(regions, range(20, 24), "[stack]");
        assert_eq!(whole[4..], [region(20, 24, 0, "[stack]")]);
    }
}
