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
//! KVM.
//!
//! Pages are pending until a checkpoint that has them is published. One that fails, on a full disk,
//! say, leaves the store as it was, and the next has what it should have had.

pub(crate) mod build_id;
pub(crate) mod changed;
pub(crate) mod common;
mod costs;
pub(crate) mod describe;
mod instant;
mod lacking;
pub(crate) mod layout;
mod lineage;
mod options;
mod pause;
pub(crate) mod pending;
pub(crate) mod precopy;
pub(crate) mod recheck;
mod reread;
pub(crate) mod rewind;
pub(crate) mod staging;
pub(crate) mod state;
pub(crate) mod together;
pub(crate) mod transfer;

use crate::error::{Error, Result};
use crate::format::manifest::{Manifest, Process, Thread};
use crate::format::objects::SharedMemory;
use crate::format::state::ProcessState;
use crate::hash::Hash;
use crate::store::writer::Writer;
use costs::Costs;
use describe::Identity;
use layout::Layout;
use pagetrail::{
    DirtySource, Event, Held, HeldThread, Memory, Overhead, PageSet, State, Subpages, Target,
    Technique, Watch, page_size,
};
use pause::Price;
use pending::{Found, Pending};
use precopy::{Next, Rule};
use recheck::Rechecked;
use state::memory::{Apart, Motion};
use std::process::Command;
use std::time::{Duration, Instant};
use together::{Alone, Together};
use transfer::{Overflow, Transfer};

pub use costs::MaxOverhead;
pub use options::ProcessOptions;
pub use precopy::Mode;

/// How often a checkpoint is begun anew because the process has replaced its program.
const EXECS_MAX: u32 = 5;

/// Takes checkpoints of one process. Dropped, it leaves the process alone.
pub struct ProcessCheckpointer {
    source: Box<dyn DirtySource + Send>,
    memory: Memory,
    options: ProcessOptions,
    identity: Identity,
    layout: Layout,
    pending: Pending,
    /// What a checkpoint has of memory that is read again at each instant, and the id of that
    /// checkpoint; `None` after one that failed.
    rechecked: Option<(Hash, Rechecked)>,
    /// The process has another program than the last checkpoint.
    replaced: bool,
    /// Shared memory that no mapping shows, as of the last look.
    apart: Apart,
    /// What it takes to keep pages.
    price: Price,
    costs: Costs,
}

impl ProcessCheckpointer {
    /// Starts to watch a process.
    ///
    /// # Errors
    ///
    /// The process is refused, may not be traced, or no technique works for it. It gets its memory
    /// on demand ([`Error::NotNow`]): what it still lacks could not be read. Its pages cannot be
    /// kept as [`Mode::Cow`] does it.
    pub fn attach(pid: u32, options: ProcessOptions) -> Result<Self> {
        lacking::refuse(pid)?;
        let watch = Watch::builder()
            .target(Target::process(pid)?)
            .technique(options.technique)
            .start()?;
        let costs = Costs::new(&watch, options.max_overhead)?;
        let mut this = Self::new(Box::new(watch), options, Identity::of(pid)?)?;
        this.costs = costs;
        Ok(this)
    }

    /// Starts a program, and to watch it with its first instruction.
    ///
    /// # Errors
    ///
    /// The program cannot be started; no technique works for it.
    pub fn launch(command: Command, options: ProcessOptions) -> Result<Self> {
        let attached = Watch::builder()
            .target(Target::command(command))
            .technique(options.technique)
            .attach()?;
        // While it waits for its first instruction: it may end soon after that.
        let pid = attached.pid().unwrap_or_default();
        let (identity, memory) = (Identity::of(pid)?, Memory::of(pid)?);
        let watch = attached.start()?;
        let costs = Costs::new(&watch, options.max_overhead)?;
        let mut this = Self::with(Box::new(watch), memory, options, identity);
        this.costs = costs;
        Ok(this)
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
    /// The process has ended, its memory may not be read, the source cannot keep pages as
    /// [`Mode::Cow`] does it, or there is a budget: what its faults cost is not known.
    pub fn of_source(
        source: Box<dyn DirtySource + Send>,
        command: Vec<String>,
        options: ProcessOptions,
    ) -> Result<Self> {
        if options.max_overhead.is_some() {
            let reason = "what checkpoints cost is known of processes that are attached to alone";
            return Err(Error::Refused(reason.into()));
        }
        let identity = Identity::of_command(source.pid(), command)?;
        Self::new(source, options, identity)
    }

    fn new(
        source: Box<dyn DirtySource + Send>,
        options: ProcessOptions,
        identity: Identity,
    ) -> Result<Self> {
        let memory = Memory::of(source.pid())?;
        let mut this = Self::with(source, memory, options, identity);
        if options.mode == Mode::Cow {
            this.source.prepare_freeze()?;
        }
        Ok(this)
    }

    fn with(
        source: Box<dyn DirtySource + Send>,
        memory: Memory,
        options: ProcessOptions,
        identity: Identity,
    ) -> Self {
        let pid = source.pid();
        Self {
            memory,
            identity,
            source,
            options,
            layout: Layout::new(pid),
            pending: Pending::new(options.report_again),
            rechecked: None,
            replaced: false,
            apart: Apart::default(),
            price: Price::default(),
            costs: Costs::default(),
        }
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.source.pid()
    }

    /// The name of the technique by which writes are noticed.
    pub fn technique_name(&self) -> &str {
        self.source.technique_name()
    }

    /// Changes how the next checkpoints are taken.
    pub fn set_mode(&mut self, mode: Mode) {
        self.options.mode = mode;
    }

    /// For how long one thread of the process was stopped to start watching.
    pub fn attach_stopped(&self) -> Duration {
        self.source.attach_stopped()
    }

    /// When the next checkpoint is due, so that they cost the process no more than was allowed
    /// ([`ProcessOptions::max_overhead`]); `None` where nothing was set.
    pub fn next_checkpoint(&self) -> Option<Instant> {
        self.costs.next()
    }

    /// What the last checkpoint cost the process, and what was reported since the one before it,
    /// by estimate, where a budget was set.
    pub fn overhead(&self) -> Option<Overhead> {
        self.costs.last()
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
        self.checkpoint_with(writer, &Alone)
    }

    /// Takes a checkpoint at the instant of those of other processes.
    pub(crate) fn checkpoint_with(
        &mut self,
        writer: &mut Writer,
        others: &dyn Together,
    ) -> Result<Manifest> {
        writer.catch_up()?;
        for _ in 0..EXECS_MAX {
            if std::mem::take(&mut self.replaced) {
                self.identity = Identity::of(self.pid())?;
                self.memory = Memory::of(self.pid())?;
                writer.begin_anew();
            }
            if let Some(manifest) = self.attempt(writer, others)? {
                self.pending.settle();
                self.layout.settle();
                self.costs.settle();
                return Ok(manifest);
            }
        }
        Err(Error::Refused(format!(
            "process {} replaces its program again and again",
            self.pid()
        )))
    }

    /// `None` when the process has replaced its program meanwhile.
    fn attempt(&mut self, writer: &mut Writer, others: &dyn Together) -> Result<Option<Manifest>> {
        // What cannot be is to be refused before everything is copied.
        if self.options.mode == Mode::Cow && others.is_alone() {
            self.source.prepare_freeze()?;
        }
        let mut transfer = self.begin(writer)?;
        let copied = match self.options.mode {
            Mode::Precopy | Mode::Cow => self.precopy(&mut transfer, others)?,
            Mode::Stop => Some(self.pending.pages().clone()),
        };
        let Some(mut left) = copied else {
            return Ok(None);
        };
        if others.ready()? && self.options.mode == Mode::Precopy {
            // Others took their time, in which this process has written.
            transfer.cost.rounds += 1;
            transfer.copy(&self.memory, &left, Overflow::Store)?;
            let found = self.absorb(None)?;
            transfer.remap(&found.remapped);
            left = self.to_precopy(&found.pages);
        }
        // What is kept may have to be copied at a second instant, which is not that of the others.
        let freezes = match others.is_alone() {
            true => self.freezes(&transfer, &left)?,
            false => 0,
        };
        let Some(process) = self.copy_at_rest(&mut transfer, left, freezes, others)? else {
            return Ok(None);
        };
        let trust_shared = self.options.trust_shared;
        let mut mappings = self.layout.mappings(&self.memory, trust_shared);
        mappings.extend(self.apart.mappings());
        mappings.sort_by_key(|mapping| mapping.range);
        let (parts, left_out) = (self.pending.parts(), self.layout.left_out());
        let (manifest, rechecked) = transfer.publish(&parts, &left_out, process, mappings)?;
        self.rechecked = Some((manifest.id, rechecked));
        Ok(Some(manifest))
    }

    /// Begins a checkpoint, with what was found since the last.
    fn begin<'writer>(&mut self, writer: &'writer mut Writer) -> Result<Transfer<'writer>> {
        let draft = writer.draft(page_size() as u32);
        // What a checkpoint has seen that fails the store does not have.
        let rechecked = self.rechecked.take();
        let parent = draft.parent_id();
        let rechecked = rechecked.filter(|(of, _)| Some(*of) == parent);
        let is_known = rechecked.is_some() || draft.is_base();
        let rechecked = rechecked.map(|(_, rechecked)| rechecked);
        let buffer_bytes = self.options.buffer_bytes;
        let mut transfer = Transfer::new(draft, rechecked.unwrap_or_default(), buffer_bytes);
        if transfer.is_base() {
            self.layout = Layout::new(self.pid());
            self.pending.clear();
        }
        self.absorb(None)?;
        self.pending.add_last();
        if self.pending.has_parts() {
            transfer.allow_changes();
        }
        self.pending.retain(self.layout.addresses());
        transfer.remap(self.pending.remapped());
        if !is_known {
            // The parent may have pages there that are gone by now, and nobody reports these. What
            // is there is found differing, and is taken.
            transfer.void(&self.shared());
            transfer.void(&SharedMemory::everywhere());
        }
        Ok(transfer)
    }

    /// Copies what is pending while the process runs, and what it writes meanwhile; gives what is
    /// left. `None` when the process has replaced its program.
    fn precopy(
        &mut self,
        transfer: &mut Transfer<'_>,
        others: &dyn Together,
    ) -> Result<Option<PageSet>> {
        self.look_at_shared(transfer, others.common(Motion::Runs))?;
        self.look_at_apart(transfer, Motion::Runs)?;
        let in_files = self.layout.as_in_files()?;
        transfer.look_at_files(&self.memory, &in_files, self.pending.pages())?;
        let mut todo = self.to_precopy(&self.pending.pages().difference(&in_files));
        let mut rule = Rule::new(todo.page_count());
        while !self.replaced {
            transfer.cost.rounds += 1;
            transfer.copy(&self.memory, &todo, Overflow::Store)?;
            let found = self.absorb(None)?;
            transfer.remap(&found.remapped);
            todo = self.to_precopy(&found.pages);
            if rule.next(todo.page_count()) == Next::Stop {
                return Ok(Some(todo));
            }
        }
        Ok(None)
    }

    /// Of some pages, those that may be copied while the process runs.
    fn to_precopy(&self, pages: &PageSet) -> PageSet {
        pages
            .difference(&self.compared())
            .difference(&self.shared())
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
            whole,
            bytes: changed,
            remapped: round.remapped().clone(),
        };
        self.replaced |= round
            .events()
            .iter()
            .any(|event| matches!(event, Event::Exec { .. }));
        self.costs.count_pages(written.page_count());
        round.commit();
        if self.layout.has_given() {
            let followed = self.source.reports_discards_in();
            self.layout.are_followed(&followed);
        }
        self.pending.add(&found);
        Ok(found)
    }
}
