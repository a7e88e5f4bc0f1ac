//! [`TreeCheckpointer`]: checkpoints of all processes of a tree at one instant.
//!
//! Each process has a [`ProcessCheckpointer`] and a thread of its own, which meet ([`meeting`]):
//! all processes are held, then those that were born meanwhile, until no other is listed; only then
//! is copied what is left, and none goes on before all have been copied. So what several processes
//! share, and what one knows of another, is the same in all images.
//!
//! Each process is held by a process of its own, which lets it go if this one is killed.

mod instant;
mod meeting;
mod store;

pub use instant::{TreeInstant, TreePart};
pub use store::TreeStore;

use crate::error::{Error, Result};
use crate::format::manifest::Manifest;
use crate::process::{Mode, ProcessCheckpointer, ProcessOptions};
use crate::store::writer::{Writer, WriterOptions};
use meeting::{Guest, Meeting};
use pagetrail::{ListedProcess, Target, page_size};
use std::fs;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long processes may stand still until all are held. Those that share memory with another for
/// longer than that are refused.
const HOLD_TIMEOUT: Duration = Duration::from_secs(5);
/// How long processes may stand still while they are copied, and how much longer for each MiB that
/// they have: slow storage may be waited for ([`Mode::Stop`]).
const COPY_TIMEOUT: Duration = Duration::from_secs(30);
const COPY_TIMEOUT_PER_MIB: Duration = Duration::from_millis(50);
/// How long the child of a `vfork(2)` is left until it is looked at again.
const VFORK_PAUSE: Duration = Duration::from_millis(1);
/// How often a process that shares memory with one that is held is looked at again. The parent of a
/// `vfork(2)` cannot be held, so it is no such child; one that ends may be listed for a moment.
const SHARING_LOOKS: u32 = 20;
/// How often an instant is begun anew because a process ended while it stood still.
const ATTEMPTS_MAX: u32 = 5;
/// How many attempts are abandoned for a process that comes late with much memory.
const LATE_ATTEMPTS: u32 = 2;
/// More of its own it may not have, in bytes.
const LATE_BYTES_MAX: u64 = 16 << 20;
/// How many numbers of instants are tried one after the other before the store is asked for the
/// newest.
const NUMBERS_TRIED: u32 = 3;

/// Takes checkpoints of all processes of a tree, each set of them of one instant. Dropped, it
/// leaves the processes alone.
pub struct TreeCheckpointer {
    target: Target,
    beginning: Beginning,
    parts: Vec<Part>,
    next_instant: u64,
    /// Keeps other writers out.
    _lock: Box<dyn Send>,
}

/// What it takes to begin with a process.
struct Beginning {
    store: TreeStore,
    options: ProcessOptions,
    writing: WriterOptions,
    next_process: AtomicU64,
}

/// A process of the tree.
struct Part {
    number: u64,
    pid: u32,
    parent: Option<u32>,
    process: ProcessCheckpointer,
    writer: Writer,
}

/// A process that takes part in an instant.
enum Joining {
    Known(Box<Part>),
    New(ListedProcess),
}

/// What is left of a process that has ended, by the number of its store.
struct Ended {
    number: u64,
    writer: Writer,
}

/// What came of the checkpoint of a process.
struct Outcome {
    pid: u32,
    part: Option<Part>,
    taken: Result<Manifest>,
    /// It was not taken because another was not.
    is_consequence: bool,
}

impl TreeCheckpointer {
    /// Prepares checkpoints of a tree: [`Target::process`] with its descendants, [`Target::tree`],
    /// [`Target::cgroup`]. Processes are attached to at the first checkpoint.
    ///
    /// # Errors
    ///
    /// No process belongs to the target now; another writer is at work; the store cannot be read.
    /// Checkpoints that processes could be started from anew
    /// ([`ProcessOptions::restartable`]) are refused: what connects processes is not in them. So
    /// are [`Mode::Cow`] and [`ProcessOptions::max_pause`].
    pub fn attach(
        target: Target,
        store: TreeStore,
        options: ProcessOptions,
        writing: WriterOptions,
    ) -> Result<Self> {
        if options.restartable {
            let reason = "a tree is not started anew from these checkpoints; CRIU's can be";
            return Err(Error::Refused(reason.into()));
        }
        if options.mode == Mode::Cow || options.max_pause.is_some() {
            let reason =
                "pages are kept for a process that is alone, not for the processes of a tree";
            return Err(Error::Refused(reason.into()));
        }
        if target.processes(&[]).is_empty() {
            return Err(Error::Refused("the tree has no process now".into()));
        }
        let lock = store.lock()?;
        let newest = store.numbers()?.last().copied().unwrap_or(0);
        Ok(Self {
            beginning: Beginning {
                next_process: AtomicU64::new(store.next_process()?),
                store,
                options,
                writing,
            },
            next_instant: newest.saturating_add(1),
            target,
            parts: Vec::new(),
            _lock: lock,
        })
    }

    /// Whether any process of the tree lives.
    pub fn is_alive(&self) -> bool {
        let is_living = |part: &Part| Target::process(part.pid).is_ok();
        self.parts.iter().any(is_living) || !self.target.processes(&[]).is_empty()
    }

    /// Takes a checkpoint of each process, all of one instant, which lies between call and return.
    /// Returns it with the processes' own checkpoints, in the order of
    /// [`TreeInstant::processes`].
    ///
    /// # Errors
    ///
    /// No process is left; one cannot be attached to, held or saved, or shares its memory with
    /// another; processes come faster than they can be held ([`Error::NotNow`]); the store fails.
    /// No instant is published then, all processes go on, and the next has everything.
    pub fn checkpoint(&mut self) -> Result<(TreeInstant, Vec<Manifest>)> {
        for number in 0..ATTEMPTS_MAX {
            if let Some(taken) = self.attempt(number < LATE_ATTEMPTS)? {
                return Ok(taken);
            }
        }
        let reason = "processes of the tree end again and again while they are saved";
        Err(Error::NotNow(reason.into()))
    }

    /// Removes all but the newest instants, and what only the others needed.
    ///
    /// # Errors
    ///
    /// The store fails, or an instant that stays is damaged.
    pub fn prune(&mut self, keep: usize) -> Result<()> {
        let writers = self.parts.iter_mut();
        let mut writers = writers
            .map(|part| (part.number, &mut part.writer))
            .collect();
        self.beginning.store.prune(keep, &mut writers)
    }

    /// `None` when a process has ended while it stood still; with `avoids_late`, also when one has
    /// come meanwhile that would be copied for long.
    fn attempt(&mut self, avoids_late: bool) -> Result<Option<(TreeInstant, Vec<Manifest>)>> {
        let outcomes = Mutex::new(Vec::new());
        let parts = std::mem::take(&mut self.parts);
        let mut ended = Vec::new();
        let trouble = self.meet(parts, &outcomes, &mut ended, avoids_late);
        let outcomes = outcomes.into_inner();
        let mut outcomes = outcomes.unwrap_or_else(PoisonError::into_inner);
        outcomes.sort_by_key(|outcome| outcome.part.as_ref().map(|part| part.number));
        let taken_unix_ns = SystemTime::now().duration_since(UNIX_EPOCH);
        let mut instant = TreeInstant {
            number: self.next_instant,
            taken_unix_ns: taken_unix_ns.map_or(0, |time| time.as_nanos() as u64),
            processes: Vec::new(),
        };
        let (mut manifests, mut failures) = (Vec::new(), Vec::new());
        for outcome in outcomes {
            let has_ended = has_ended(&outcome);
            match (outcome.taken, outcome.part) {
                (Ok(manifest), Some(part)) => {
                    instant.processes.push(TreePart {
                        process: part.number,
                        pid: part.pid,
                        parent: part.parent,
                        checkpoint: manifest.number,
                        taken_unix_ns: manifest.taken_unix_ns,
                    });
                    manifests.push(manifest);
                    self.parts.push(part);
                }
                (Err(_), part) if has_ended => ended.extend(part.map(Part::end)),
                (Err(error), part) => {
                    failures.push((outcome.is_consequence, error));
                    self.parts.extend(part);
                }
                (Ok(_), None) => {}
            }
        }
        for ended in ended {
            self.beginning.forget_unsaved(ended);
        }
        // That another could not be saved says less than why.
        failures.sort_by_key(|(is_consequence, _)| *is_consequence);
        match (failures.into_iter().next(), trouble) {
            (Some((false, failure)), _) => return Err(failure),
            (_, Some(trouble)) => return Err(trouble),
            // The cause has ended.
            (Some((true, _)), None) => return Ok(None),
            (None, None) => {}
        }
        if instant.processes.is_empty() {
            return Err(Error::Refused("no process of the tree is left".into()));
        }
        self.publish(&mut instant)?;
        Ok(Some((instant, manifests)))
    }

    /// Publishes an instant under the next number that none has: one whose publication failed in
    /// its last step may be there.
    fn publish(&mut self, instant: &mut TreeInstant) -> Result<()> {
        for _ in 0..NUMBERS_TRIED {
            instant.number = self.next_instant;
            self.next_instant = self.next_instant.saturating_add(1);
            match self.beginning.store.publish(instant) {
                Err(Error::Io { cause, .. }) if cause.kind() == ErrorKind::AlreadyExists => {}
                outcome => return outcome,
            }
        }
        let newest = self.beginning.store.newest()?;
        self.next_instant = newest.saturating_add(1);
        instant.number = self.next_instant;
        self.beginning.store.publish(instant)
    }

    /// Takes the checkpoints, all at one instant. Returns what kept it from being one. Adds to
    /// `ended` what has ended by the instant.
    fn meet(
        &self,
        parts: Vec<Part>,
        outcomes: &Mutex<Vec<Outcome>>,
        ended: &mut Vec<Ended>,
        avoids_late: bool,
    ) -> Option<Error> {
        let buffer_bytes = self.beginning.options.buffer_bytes;
        let (meeting, beginning) = (&Meeting::new(buffer_bytes), &self.beginning);
        thread::scope(|scope| {
            let start = |process: Joining| {
                let guest = meeting.guest();
                let builder = thread::Builder::new().name("pagetrail-save".into());
                let save = move || {
                    let outcome = beginning.save(process, &guest);
                    // Before the guest is dropped: who does not wait for it any longer sees why.
                    turn(outcomes).push(outcome);
                    drop(guest);
                };
                builder.spawn_scoped(scope, save).map(drop)
            };
            let mut known: Vec<u32> = parts.iter().map(|part| part.pid).collect();
            let failed = |cause| {
                meeting.end();
                Some(Error::io("cannot start a thread")(cause))
            };
            for part in parts {
                if let Err(error) = start(Joining::Known(Box::new(part))) {
                    return failed(error);
                }
            }
            let mut is_prepared = false;
            let mut sharing_looks = 0;
            let mut deadline = Instant::now() + HOLD_TIMEOUT;
            loop {
                let listed = self.target.processes(&known);
                let sharing = listed
                    .iter()
                    .find(|found| found.shares_memory_with.is_some());
                // Once they are prepared, all that are known are held when others are listed.
                if is_prepared && listed.iter().all(|found| shares_with(found, &known)) {
                    sharing_looks += u32::from(sharing.is_some());
                }
                let is_to_last = Instant::now() >= deadline || sharing_looks > SHARING_LOOKS;
                if let (Some(sharing), true) = (sharing, is_to_last) {
                    meeting.end();
                    return Some(shares(sharing));
                }
                // All of it would be copied while the others stand still; at the next attempt it is
                // among those that run meanwhile.
                let is_large = |found: &ListedProcess| own_bytes(found.pid) > LATE_BYTES_MAX;
                if is_prepared && avoids_late && listed.iter().any(is_large) {
                    meeting.end();
                    return None;
                }
                let is_complete = listed.is_empty();
                let can_begin = listed
                    .iter()
                    .all(|found| found.shares_memory_with.is_none());
                for found in listed {
                    if found.shares_memory_with.is_none() {
                        known.push(found.pid);
                        if let Err(error) = start(Joining::New(found)) {
                            return failed(error);
                        }
                    }
                }
                if !is_prepared {
                    // What a process shares with another is written by both, so all begin together.
                    if !can_begin {
                        thread::sleep(VFORK_PAUSE);
                        continue;
                    }
                    meeting.wait_for_ready();
                    is_prepared = true;
                    deadline = Instant::now() + HOLD_TIMEOUT;
                } else if is_complete {
                    if meeting.copy(Instant::now() + copy_timeout(&known)) {
                        return None;
                    }
                    let reason = "memory of a process could not be read while all stood still; another \
                        may serve it";
                    return Some(Error::NotNow(reason.into()));
                } else if !can_begin {
                    thread::sleep(VFORK_PAUSE);
                }
                if !meeting.wait_for_held(deadline) {
                    meeting.end();
                    let reason = "processes of the tree come faster than they can be held";
                    let has_failed = turn(outcomes).iter().any(|outcome| !has_ended(outcome));
                    return (!has_failed).then(|| Error::NotNow(reason.into()));
                }
                let mut outcomes = turn(outcomes);
                if outcomes.iter().any(|outcome| !has_ended(outcome)) {
                    meeting.end();
                    return None;
                }
                // Their PIDs may be others' by now; one that executes a program only seemed to end,
                // and is begun with anew, once: what it was is no longer among the outcomes.
                for outcome in outcomes.drain(..) {
                    known.retain(|pid| *pid != outcome.pid);
                    ended.extend(outcome.part.map(Part::end));
                }
            }
        })
    }
}

impl Part {
    /// Leaves the process alone, which has ended or executes a program.
    fn end(self) -> Ended {
        let Self { number, writer, .. } = self;
        Ended { number, writer }
    }
}

impl Beginning {
    /// Takes the checkpoint of a process.
    fn save(&self, process: Joining, guest: &Guest<'_>) -> Outcome {
        let (pid, part) = match process {
            Joining::Known(part) => (part.pid, Ok(*part)),
            Joining::New(found) => (found.pid, self.begin(found)),
        };
        match part {
            Err(error) => Outcome {
                pid,
                part: None,
                taken: Err(error),
                is_consequence: false,
            },
            Ok(mut part) => {
                let taken = part.process.checkpoint_with(&mut part.writer, guest);
                Outcome {
                    pid,
                    part: Some(part),
                    is_consequence: taken.is_err() && guest.saw_end(),
                    taken,
                }
            }
        }
    }

    /// Attaches to a process that was found.
    fn begin(&self, found: ListedProcess) -> Result<Part> {
        let process = ProcessCheckpointer::attach(found.pid, self.options)?;
        let number = self.next_process.fetch_add(1, Ordering::Relaxed);
        Ok(Part {
            number,
            pid: found.pid,
            parent: found.parent,
            process,
            writer: self.store.writer(number, self.writing)?,
        })
    }

    /// Removes the store of a process that has ended before its first checkpoint.
    fn forget_unsaved(&self, ended: Ended) {
        let numbers = ended.writer.store().numbers();
        if numbers.is_ok_and(|numbers| numbers.is_empty()) {
            drop(ended.writer);
            // What is left takes little room, and is removed by pruning.
            let _ = self.store.remove(ended.number);
        }
    }
}

fn turn(outcomes: &Mutex<Vec<Outcome>>) -> MutexGuard<'_, Vec<Outcome>> {
    outcomes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long it may take to copy some processes.
fn copy_timeout(pids: &[u32]) -> Duration {
    let bytes: u64 = pids
        .iter()
        .filter_map(|pid| resident(*pid))
        .map(|(all, _)| all)
        .sum();
    COPY_TIMEOUT + COPY_TIMEOUT_PER_MIB * u32::try_from(bytes >> 20).unwrap_or(u32::MAX)
}

/// How much a process has that is no file's and not shared by mapping, in bytes.
fn own_bytes(pid: u32) -> u64 {
    resident(pid).map_or(0, |(all, shared)| all.saturating_sub(shared))
}

/// How much memory of a process is resident, and how much of it is of files or shared, in bytes
/// (`/proc/PID/statm`).
fn resident(pid: u32) -> Option<(u64, u64)> {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let mut pages = statm.split(' ').skip(1).map(|field| field.parse::<u64>());
    let (all, shared) = (pages.next()?.ok()?, pages.next()?.ok()?);
    Some((all * page_size(), shared * page_size()))
}

fn shares_with(found: &ListedProcess, known: &[u32]) -> bool {
    let with = found.shares_memory_with;
    with.is_some_and(|with| known.contains(&with))
}

fn shares(found: &ListedProcess) -> Error {
    let with = found.shares_memory_with.unwrap_or_default();
    Error::Refused(format!(
        "process {} shares the memory of process {with}, which is not saved twice; CRIU saves such trees",
        found.pid
    ))
}

/// Whether a process has ended instead of being saved.
fn has_ended(outcome: &Outcome) -> bool {
    use pagetrail::Error::{Gone, NoSuchProcess};
    match &outcome.taken {
        Ok(_) | Err(Error::NotNow(_)) => false,
        Err(Error::Process(Gone { .. } | NoSuchProcess { .. })) => true,
        // It ended, or executed a program, while it was looked at.
        Err(_) => {
            let target = Target::process(outcome.pid);
            target.is_err_and(|error| error.kind() == pagetrail::ErrorKind::NotFound)
        }
    }
}
