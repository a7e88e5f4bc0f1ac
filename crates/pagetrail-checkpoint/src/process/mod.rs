//! [`ProcessCheckpointer`]: checkpoints of a running process, each of one instant.
//!
//! As live migration does it: pages are copied while the program runs, then those that it has
//! written meanwhile, and so on; when little is left, or nothing is gained any more ([`precopy`]),
//! all threads are stopped, the rest is copied to memory with the registers, and the program goes
//! on. Hashing, compressing and writing happen while it runs.
//!
//! What others write to memory that they share with the process, or to files of which it has
//! private mappings, leaves no trace in it; such memory is read again at each instant
//! ([`recheck`]).
//!
//! Which pages were written is reported by any [`DirtySource`]: a watch on a process, or a guest of
//! KVM, whose image has no registers, since they are in its vCPUs.
//!
//! Pages are pending until a checkpoint that has them is published. One that fails, on a full disk,
//! say, leaves the store as it was, and the next has what it should have had.

pub(crate) mod build_id;
pub(crate) mod changed;
pub(crate) mod describe;
pub(crate) mod layout;
pub(crate) mod precopy;
pub(crate) mod recheck;
pub(crate) mod rewind;
pub(crate) mod staging;
pub(crate) mod state;

use crate::error::{Error, Result};
use crate::format::manifest::{Cost, Manifest, Process, Thread};
use crate::format::state::ProcessState;
use crate::store::writer::{Description, Draft, Writer};
use describe::Identity;
use layout::Layout;
use pagetrail::{
    Choice, DirtySource, Event, Held, HeldThread, Memory, PageSet, State, Subpages, Target,
    Technique, Watch, page_size,
};
use precopy::{Next, Rule};
use recheck::Seen;
use staging::{Parts, Staging};
use std::process::Command;
use std::time::{Duration, Instant};

pub use precopy::Mode;

/// How often a checkpoint is begun anew because the process has replaced its program.
const EXECS_MAX: u32 = 5;

/// How checkpoints of a process are taken.
#[derive(Clone, Copy, Debug)]
pub struct ProcessOptions {
    /// Whether pages are copied before the process is stopped.
    pub mode: Mode,
    /// How writes are noticed, of a process that is attached to.
    pub technique: Choice,
    /// How much is kept in memory before it is written, in bytes; what is written by the program
    /// while more than that is copied may be stored twice.
    pub buffer_bytes: u64,
    /// Of a page of a sub-page heap, store only the sub-pages that were written. A program that
    /// writes past the end of an object into another sub-page of the page makes such an image
    /// damaged, so it has to be trusted not to; otherwise its pages are stored whole.
    pub trust_subpages: bool,
    /// Read what was written before a checkpoint once more for the next one: for memory that is
    /// written through pinned pages, see
    /// [`WatchBuilder::report_pages`](pagetrail::WatchBuilder::report_pages). Such a write is
    /// missed only if a page stays pinned from one checkpoint to the one after the next.
    pub report_again: bool,
    /// Take of shared memory only what the process itself has written through its own mappings,
    /// instead of reading all of it again while the process stands still. What other processes
    /// write there, or the process by `write(2)`, the images then do not have; they say so
    /// ([`own_writes_only`](crate::Mapping::own_writes_only)).
    pub trust_shared: bool,
    /// Save all that it takes to start the process anew ([`Process::state`]), which adds about a
    /// millisecond to the pause. A process that could not be started anew is refused then.
    pub restartable: bool,
}

impl Default for ProcessOptions {
    fn default() -> Self {
        Self {
            mode: Mode::Precopy,
            technique: Choice::Auto,
            buffer_bytes: 256 << 20,
            trust_subpages: false,
            report_again: false,
            trust_shared: false,
            restartable: false,
        }
    }
}

/// Takes checkpoints of one process. Dropped, it leaves the process alone.
pub struct ProcessCheckpointer {
    source: Box<dyn DirtySource + Send>,
    memory: Memory,
    options: ProcessOptions,
    identity: Identity,
    layout: Layout,
    /// Pages that the store is to get with the next checkpoint.
    pending: PageSet,
    /// Pending pages that it gets whole; of the others, what may have changed since the last
    /// checkpoint.
    pending_whole: PageSet,
    pending_bytes: PageSet,
    /// Addresses at which it has to forget what it knew.
    remapped: PageSet,
    /// What was found for the last checkpoint, and for the next, where all is to be read once more.
    found: [PageSet; 2],
    /// What the last checkpoint has of memory that others may write to.
    seen: Seen,
    /// What the last checkpoint has of pages that are as in a file.
    seen_in_files: Seen,
    /// The process has another program than the last checkpoint.
    replaced: bool,
}

impl ProcessCheckpointer {
    /// Starts to watch a process.
    ///
    /// # Errors
    ///
    /// The process is refused, may not be traced, or no technique works for it.
    pub fn attach(pid: u32, options: ProcessOptions) -> Result<Self> {
        let watch = Watch::builder()
            .target(Target::process(pid)?)
            .technique(options.technique)
            .start()?;
        Self::new(Box::new(watch), options, Identity::of(pid)?)
    }

    /// Starts a program, and to watch it with its first instruction.
    ///
    /// # Errors
    ///
    /// The program cannot be started; no technique works for it.
    pub fn launch(command: Command, options: ProcessOptions) -> Result<Self> {
        let watch = Watch::builder()
            .target(Target::command(command))
            .technique(options.technique)
            .start()?;
        let identity = Identity::of(watch.pid())?;
        Self::new(Box::new(watch), options, identity)
    }

    /// Takes checkpoints of a guest of KVM, or of another target that is not the program of its
    /// process: `source` reports its writes, and `command` started it.
    ///
    /// The images have its memory, at one instant between two instructions of the program: a system
    /// call that is under way then may have written a part of its results. They have the registers
    /// that [the source's hold](DirtySource::hold) has; without any, a process cannot be rewound to
    /// them.
    ///
    /// # Errors
    ///
    /// The process has ended, or its memory may not be read.
    pub fn of_source(
        source: Box<dyn DirtySource + Send>,
        command: Vec<String>,
        options: ProcessOptions,
    ) -> Result<Self> {
        let identity = Identity::of_command(source.pid(), command)?;
        Self::new(source, options, identity)
    }

    fn new(
        source: Box<dyn DirtySource + Send>,
        options: ProcessOptions,
        identity: Identity,
    ) -> Result<Self> {
        let pid = source.pid();
        Ok(Self {
            memory: Memory::of(pid)?,
            identity,
            source,
            options,
            layout: Layout::new(pid),
            pending: PageSet::new(),
            pending_whole: PageSet::new(),
            pending_bytes: PageSet::new(),
            remapped: PageSet::new(),
            found: Default::default(),
            seen: Seen::default(),
            seen_in_files: Seen::default(),
            replaced: false,
        })
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.source.pid()
    }

    /// The name of the technique by which writes are noticed.
    pub fn technique_name(&self) -> &str {
        self.source.technique_name()
    }

    /// For how long one thread of the process was stopped to start watching.
    pub fn attach_stopped(&self) -> Duration {
        self.source.attach_stopped()
    }

    /// Waits until the target ends or, [`State::Exiting`], a last checkpoint can be taken, but at
    /// most for `timeout`.
    pub fn wait(&mut self, timeout: Duration) -> State {
        self.source.wait(timeout)
    }

    /// Takes a checkpoint: of one instant, which lies between call and return.
    ///
    /// # Errors
    ///
    /// The process has ended or cannot be stopped, or the store fails. The store is as it was then,
    /// the process goes on, and the next checkpoint has everything.
    pub fn checkpoint(&mut self, writer: &mut Writer) -> Result<Manifest> {
        writer.catch_up()?;
        for _ in 0..EXECS_MAX {
            if std::mem::take(&mut self.replaced) {
                self.identity = Identity::of(self.pid())?;
                self.memory = Memory::of(self.pid())?;
                writer.begin_anew();
            }
            if let Some(manifest) = self.attempt(writer)? {
                self.forget_pending();
                self.layout.settle();
                self.found.swap(0, 1);
                self.found[1].clear();
                return Ok(manifest);
            }
        }
        Err(Error::Refused(format!(
            "process {} replaces its program again and again",
            self.pid()
        )))
    }

    fn forget_pending(&mut self) {
        self.pending.clear();
        self.pending_whole.clear();
        self.pending_bytes.clear();
        self.remapped.clear();
    }

    /// `None` when the process has replaced its program meanwhile.
    fn attempt(&mut self, writer: &mut Writer) -> Result<Option<Manifest>> {
        let began = Instant::now();
        let mut cost = Cost::default();
        let mut draft = writer.draft(page_size() as u32);
        // What a checkpoint has seen that fails the store does not have.
        let mut seen = std::mem::take(&mut self.seen);
        let mut seen_in_files = std::mem::take(&mut self.seen_in_files);
        if draft.is_base() {
            self.layout = Layout::new(self.pid());
            self.forget_pending();
            seen = Seen::default();
            seen_in_files = Seen::default();
        }
        let mut staging = Staging::new(self.options.buffer_bytes);
        self.absorb(None)?;
        if self.options.report_again {
            self.pending.union_with(&self.found[0]);
            self.pending_whole.union_with(&self.found[0]);
        }
        if !self.pending_bytes.is_empty() {
            draft.allow_changes();
        }
        self.pending = self.pending.intersection(self.layout.addresses());
        draft.forget(&self.remapped);
        let mut todo = self.pending.clone();
        if self.options.mode == Mode::Precopy {
            seen.forget(&self.remapped);
            let shared = self.shared_contents()?;
            cost.copied_pages += seen.look(&self.memory, &shared, &mut staging, &mut draft)?;
            seen_in_files.forget(&self.remapped);
            let in_files = self.layout.as_in_files()?;
            seen_in_files.forget(&todo);
            todo = todo.difference(&in_files);
            cost.copied_pages +=
                seen_in_files.look(&self.memory, &in_files, &mut staging, &mut draft)?;
            todo = todo.difference(&self.compared()).difference(&self.shared());
            let mut rule = Rule::new(todo.page_count());
            loop {
                if self.replaced {
                    return Ok(None);
                }
                cost.rounds += 1;
                cost.copied_pages += todo.page_count();
                staging.copy(&self.memory, &todo, Some(&mut draft))?;
                let found = self.absorb(None)?;
                seen.forget(&found.remapped);
                seen_in_files.forget(&found.remapped);
                todo = found.apply(&mut draft, &mut staging);
                todo = todo.difference(&self.compared()).difference(&self.shared());
                if rule.next(todo.page_count()) == Next::Stop {
                    break;
                }
            }
        }
        let mut hold = self.source.hold()?;
        let found = match self.absorb(Some(&*hold)) {
            Ok(found) if !self.replaced => found,
            outcome => return outcome.map(|_| None),
        };
        todo = todo.difference(&found.remapped);
        let remapped = match self.options.mode {
            Mode::Precopy => &found.remapped,
            Mode::Stop => &self.remapped,
        };
        seen.forget(remapped);
        seen_in_files.forget(remapped);
        todo.union_with(&found.apply(&mut draft, &mut staging));
        todo.union_with(&self.pending.intersection(&self.compared()));
        let (untouched, reverted_to_file) = self.layout.vanished()?;
        staging.forget(&untouched);
        draft.forget(&untouched);
        todo.union_with(&reverted_to_file);
        let todo = todo
            .intersection(self.layout.addresses())
            .difference(&untouched)
            .difference(&self.shared());
        let shared = self.shared_contents()?;
        let gone = seen.keep(&shared);
        staging.forget(&gone);
        draft.forget(&gone);
        let looked = seen.look(&self.memory, &shared, &mut staging, &mut draft);
        // A page in `todo` may have older copies of what the process wrote before it discarded
        // that.
        let in_files = self.layout.as_in_files()?;
        seen_in_files.forget(&todo);
        seen_in_files.retain(&in_files);
        let todo = todo.difference(&in_files);
        let looked_in_files = seen_in_files.look(&self.memory, &in_files, &mut staging, &mut draft);
        // The store is not waited for while the process stands still, unless memory does not
        // suffice.
        let outcome = match self.options.mode {
            Mode::Precopy => staging.copy(&self.memory, &todo, None),
            Mode::Stop => staging.copy(&self.memory, &todo, Some(&mut draft)),
        };
        let descriptors = describe::descriptors_at_rest(self.pid());
        let threads = hold.threads().to_vec();
        let state = self.state(&mut *hold);
        let has_stood_still = hold.check();
        cost.pause_ns = hold.release().as_nanos() as u64;
        has_stood_still?;
        outcome?;
        cost.stopped_pages = todo.page_count() + looked? + looked_in_files?;
        cost.copied_pages += cost.stopped_pages;
        let process = Process {
            descriptors: descriptors.unwrap_or_else(|| describe::descriptors(self.pid())),
            state: state?,
            ..self.process(threads)
        };
        let parts = Parts {
            pages: self.pending.difference(&self.pending_whole),
            changed: self.pending_bytes.clone(),
        };
        let manifest = self.finish(draft, staging, &parts, process, cost, began)?;
        self.seen = seen;
        self.seen_in_files = seen_in_files;
        Ok(Some(manifest))
    }

    /// What it takes to start the process anew, if that is wanted.
    fn state(&self, hold: &mut dyn Held) -> Result<Option<ProcessState>> {
        if !self.options.restartable {
            return Ok(None);
        }
        let mut state = state::of(self.pid(), self.layout.regions())?;
        #[cfg(target_arch = "x86_64")]
        state::padding::check(self.pid(), self.layout.regions(), hold.threads())?;
        let Some(kernel) = hold.kernel_state()? else {
            let reason = "a guest of KVM cannot be started anew from a checkpoint";
            return Err(Error::Refused(reason.into()));
        };
        state.kernel = kernel;
        Ok(Some(state))
    }

    /// Where memory is read again at each instant.
    fn shared(&self) -> PageSet {
        match self.options.trust_shared {
            true => PageSet::new(),
            false => self.layout.shared(),
        }
    }

    /// The pages there that hold something.
    fn shared_contents(&self) -> Result<PageSet> {
        match self.options.trust_shared {
            true => Ok(PageSet::new()),
            false => self.layout.shared_contents(),
        }
    }

    /// Puts what is staged, and publishes.
    fn finish(
        &mut self,
        mut draft: Draft<'_>,
        staging: Staging,
        parts: &Parts,
        process: Process,
        cost: Cost,
        began: Instant,
    ) -> Result<Manifest> {
        let mappings = self
            .layout
            .mappings(&self.memory, self.options.trust_shared);
        staging.drain(&mut draft, parts)?;
        // Where something else came and went between two looks, nobody has said so.
        draft.forget(&self.layout.left_out());
        draft.publish(Description {
            process: Some(process),
            mappings,
            cost,
            elapsed: began.elapsed(),
        })
    }

    fn process(&self, threads: Vec<HeldThread>) -> Process {
        let named = threads.into_iter().map(|held| Thread {
            name: describe::thread_name(self.pid(), held.tid),
            held,
        });
        Process {
            threads: named.collect(),
            ..self.identity.process()
        }
    }

    /// What is watched by comparing it with a copy. A page there that changes after a round, is
    /// copied, and changes back before the next, is not reported; so it is copied only while nobody
    /// can write.
    fn compared(&self) -> PageSet {
        if self.source.technique_name() == Technique::Compare.name() {
            return self.layout.addresses().clone();
        }
        let untracked = self.source.untracked().iter();
        untracked
            .filter(|untracked| untracked.compared)
            .map(|untracked| untracked.region.range)
            .collect()
    }

    /// Adds a round to what is pending.
    fn absorb(&mut self, hold: Option<&dyn Held>) -> Result<Found> {
        let round = match hold {
            Some(hold) => self.source.collect_held(hold)?,
            None => self.source.collect()?,
        };
        // An error here drops the round, which comes back then.
        let aliases = round
            .subpages()
            .map(Subpages::secondary_aliases)
            .unwrap_or_default();
        let contents = self
            .layout
            .update(round.regions(), round.remapped(), &aliases)?;
        // Memory that a sub-page heap maps several times is read, and stored, where it is first.
        let written = match round.subpages() {
            Some(units) => units.at_first_aliases(round.dirty()),
            None => round.dirty().clone(),
        };
        let (in_parts, changed) = match round.subpages().filter(|_| self.options.trust_subpages) {
            Some(units) => (units.pages().clone(), units.bytes().clone()),
            None => Default::default(),
        };
        let whole = written.difference(&in_parts).union(&contents);
        let found = Found {
            pages: written
                .union(&contents)
                .intersection(self.layout.addresses()),
            remapped: round.remapped().clone(),
        };
        self.replaced |= round
            .events()
            .iter()
            .any(|event| matches!(event, Event::Exec { .. }));
        round.commit();
        self.pending = self.pending.difference(&found.remapped).union(&found.pages);
        if self.options.report_again {
            self.found[0] = self.found[0].difference(&found.remapped);
            self.found[1] = self.found[1]
                .difference(&found.remapped)
                .union(&found.pages);
        }
        self.pending_whole = self.pending_whole.union(&whole);
        self.pending_bytes.union_with(&changed);
        self.remapped.union_with(&found.remapped);
        Ok(found)
    }
}

/// What has happened since the last look.
struct Found {
    /// Pages to be copied, again or for the first time.
    pages: PageSet,
    /// Where other mappings have come, and copies of before are void.
    remapped: PageSet,
}

impl Found {
    /// Makes void what is; gives the pages.
    fn apply(self, draft: &mut Draft<'_>, staging: &mut Staging) -> PageSet {
        if !self.remapped.is_empty() {
            staging.forget(&self.remapped);
            draft.forget(&self.remapped);
        }
        self.pages
    }
}
