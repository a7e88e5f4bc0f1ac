//! [`Checkpointer`]: memory of the own program that is there again at its next start.
//!
//! The memory belongs to the checkpointer and is borrowed from it, so nobody can write while a
//! checkpoint is taken: each is of one instant without stopping anything.

use crate::error::{Error, Result};
use crate::format::manifest::{Cost, Manifest, Mapping as ImageMapping};
use crate::storage::WorldWritable;
use crate::store::Store;
use crate::store::image::Image;
use crate::store::intake;
use crate::store::writer::{Description, Writer, WriterOptions};
use crate::sys::mapping::Mapping;
use pagetrail::{Choice, PageRange, PageSet, page_size};
use pagetrail_guest::WriteSet;
use std::path::Path;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Describes the memory to be kept; made by [`Checkpointer::builder`].
#[derive(Debug)]
#[must_use]
pub struct CheckpointerBuilder {
    store: Result<Store>,
    options: WriterOptions,
    technique: Choice,
    regions: Vec<Described>,
    /// Regions that the store has and that are wanted no more.
    dropped: Vec<String>,
}

#[derive(Debug)]
struct Described {
    name: String,
    bytes: usize,
    may_shrink: bool,
}

impl CheckpointerBuilder {
    /// Adds a region of memory, zeroed unless the store has one of this name. It may have grown
    /// since; one that the store has more pages of is refused ([`Self::shrunk_region`]).
    ///
    /// Regions that the store has and that are not described are kept as they are, and are in the
    /// checkpoints to come ([`Self::without_region`]).
    pub fn region(self, name: &str, bytes: usize) -> Self {
        self.described(name, bytes, false)
    }

    /// Adds a region that may have shrunk: what the store has beyond `bytes` is lost.
    pub fn shrunk_region(self, name: &str, bytes: usize) -> Self {
        self.described(name, bytes, true)
    }

    /// Lets go of a region that the store has, with its contents.
    pub fn without_region(mut self, name: &str) -> Self {
        self.dropped.push(name.into());
        self
    }

    fn described(mut self, name: &str, bytes: usize, may_shrink: bool) -> Self {
        self.regions.push(Described {
            name: name.into(),
            bytes,
            may_shrink,
        });
        self
    }

    /// How page contents are written.
    pub fn options(mut self, options: WriterOptions) -> Self {
        self.options = options;
        self
    }

    /// How writes are noticed. [`Choice::Auto`], the default, is the virtual machine where the
    /// program is a guest of it.
    pub fn technique(mut self, technique: Choice) -> Self {
        self.technique = technique;
        self
    }

    /// Makes the regions, with the contents of the newest checkpoint if there is one.
    ///
    /// # Errors
    ///
    /// The store cannot be opened or is damaged, another process writes to it, or its newest
    /// checkpoint is of a process; two regions have one name, or one is smaller than the store has
    /// it; memory cannot be had.
    pub fn start(self) -> Result<Checkpointer> {
        let store = self.store?;
        let writer = store.writer(self.options)?;
        for (at, region) in self.regions.iter().enumerate() {
            if self.regions[..at]
                .iter()
                .any(|other| other.name == region.name)
            {
                let reason = format!("two regions are named {:?}", region.name);
                return Err(Error::Refused(reason));
            }
        }
        let image = match store.newest_image() {
            Err(Error::Empty) => None,
            newest => Some(newest?),
        };
        let mut described = self.regions;
        if let Some(image) = &image {
            described = with_those_of(image, described, &self.dropped)?;
        }
        let mut regions = Vec::new();
        for Described { name, bytes, .. } in described {
            let memory = Mapping::private(bytes)
                .map_err(|errno| Error::io("cannot map memory")(errno.into()))?;
            regions.push(Region {
                name,
                bytes,
                memory,
            });
        }
        let mut restored = None;
        if let Some(mut image) = image {
            restore(&mut image, &mut regions)?;
            restored = Some(image.manifest().number);
        }
        let ranges = regions.iter().map(|region| region.memory.range());
        let written = WriteSet::start_with(ranges, self.technique)?;
        Ok(Checkpointer {
            written,
            regions,
            store,
            options: self.options,
            writer: Some(writer),
            saving: None,
            restored,
            pending: PageSet::new(),
        })
    }
}

/// Regions with those added that the image has besides; none may be smaller than the image has it,
/// unless that is asked for.
fn with_those_of(
    image: &Image,
    mut described: Vec<Described>,
    dropped: &[String],
) -> Result<Vec<Described>> {
    if image.manifest().process.is_some() || image.manifest().is_by_criu() {
        let reason = "the store is of a process, not of a program's own regions";
        return Err(Error::Refused(reason.into()));
    }
    for mapping in &image.manifest().mappings {
        let then = mapping.range.bytes();
        match described.iter().find(|region| region.name == mapping.name) {
            Some(region) => {
                let now = (region.bytes as u64).div_ceil(page_size()) * page_size();
                if now < then && !region.may_shrink {
                    return Err(Error::Refused(format!(
                        "region {:?} has {then} bytes in the store and is described with {}; \
                         shrunk_region lets the rest go",
                        region.name, region.bytes
                    )));
                }
            }
            None if dropped.contains(&mapping.name) => {}
            None => described.push(Described {
                name: mapping.name.clone(),
                bytes: then as usize,
                may_shrink: false,
            }),
        }
    }
    Ok(described)
}

/// Fills regions with what the image has of them, by name.
fn restore(image: &mut Image, regions: &mut [Region]) -> Result<()> {
    let known = image.pages();
    for region in regions {
        let mappings = &image.manifest().mappings;
        let Some(mapping) = mappings.iter().find(|mapping| mapping.name == region.name) else {
            continue;
        };
        let then = mapping.range;
        let memory = region.memory.as_mut_slice();
        let end = then.end().min(then.start() + memory.len() as u64);
        let kept = PageRange::new(then.start(), end).into_iter().collect();
        for part in known.intersection(&kept).ranges() {
            let from = (part.start() - then.start()) as usize;
            image.read(*part, &mut memory[from..from + part.bytes() as usize])?;
        }
    }
    Ok(())
}

#[derive(Debug)]
struct Region {
    name: String,
    bytes: usize,
    memory: Mapping,
}

/// Regions of memory that survive the program.
///
/// ```
/// use pagetrail_checkpoint::Checkpointer;
/// # let directory = tempfile::tempdir().unwrap();
/// # let store = directory.path().join("store");
/// let mut kept = Checkpointer::builder(&store).region("counter", 8).start()?;
/// assert_eq!(kept.restored(), None);
/// kept.region_mut("counter")[0] = 42;
/// kept.checkpoint()?; // when this returns, it survives kill -9 and a loss of power
/// kept.region_mut("counter")[0] = 43; // this does not
/// drop(kept);
///
/// let kept = Checkpointer::builder(&store).region("counter", 8).start()?;
/// assert_eq!(kept.restored(), Some(1));
/// assert_eq!(kept.region("counter")[0], 42);
/// # Ok::<(), pagetrail_checkpoint::Error>(())
/// ```
#[derive(Debug)]
pub struct Checkpointer {
    /// Before the regions: it ends first.
    written: WriteSet,
    regions: Vec<Region>,
    store: Store,
    options: WriterOptions,
    /// `None` while a thread has it.
    writer: Option<Writer>,
    /// The checkpoint that is on its way.
    saving: Option<Saving>,
    restored: Option<u64>,
    /// Pages that the store is to get with the next checkpoint.
    pending: PageSet,
}

impl Checkpointer {
    /// Begins to describe the memory to be kept in the store in `directory`, which is made where
    /// there is none.
    pub fn builder(directory: &Path) -> CheckpointerBuilder {
        Self::builder_on(Store::create(directory, WorldWritable::Refuse))
    }

    /// Begins in a store that is open, or could not be opened: then [`CheckpointerBuilder::start`]
    /// says so.
    pub fn builder_on(store: Result<Store>) -> CheckpointerBuilder {
        CheckpointerBuilder {
            store,
            options: WriterOptions::default(),
            technique: Choice::Auto,
            regions: Vec::new(),
            dropped: Vec::new(),
        }
    }

    /// The checkpoint that the regions were restored from.
    pub fn restored(&self) -> Option<u64> {
        self.restored
    }

    /// The name of what finds dirty pages: `guest` for the virtual machine (`pagetrail vm`),
    /// otherwise that of the technique.
    pub fn technique_name(&self) -> &str {
        self.written.technique_name()
    }

    /// Whether there is a region of this name: described, or had by the store.
    pub fn has_region(&self, name: &str) -> bool {
        self.regions.iter().any(|region| region.name == name)
    }

    /// A region's memory.
    ///
    /// # Panics
    ///
    /// No region of this name was described.
    pub fn region(&self, name: &str) -> &[u8] {
        let region = self.regions.iter().find(|region| region.name == name);
        match region {
            Some(region) => &region.memory.as_slice()[..region.bytes],
            None => panic!("no region {name}"),
        }
    }

    /// A region's memory, to write to.
    ///
    /// # Panics
    ///
    /// No region of this name was described.
    pub fn region_mut(&mut self, name: &str) -> &mut [u8] {
        let region = self.regions.iter_mut().find(|region| region.name == name);
        match region {
            Some(region) => &mut region.memory.as_mut_slice()[..region.bytes],
            None => panic!("no region {name}"),
        }
    }

    /// Saves what was written since the last checkpoint. When this returns it survives a loss of
    /// power.
    ///
    /// # Errors
    ///
    /// The store fails; it is as it was, and the next checkpoint has everything. One that is on its
    /// way is waited for.
    pub fn checkpoint(&mut self) -> Result<Manifest> {
        let began = Instant::now();
        let mut writer = self.writer()?;
        let saved = self.collect(&mut writer).and_then(|()| {
            let chunks = self.chunks();
            let mut draft = writer.draft(page_size() as u32);
            let ranges: Vec<_> = chunks.iter().map(|(_, ranges)| ranges.clone()).collect();
            draft.put_each(&ranges, |at, buffer| {
                let (region, ranges) = &chunks[at];
                if let [whole] = &ranges[..] {
                    return Ok(Some(region.contents(whole)));
                }
                buffer.clear();
                let parts = ranges.iter().map(|range| region.contents(range));
                parts.for_each(|part| buffer.extend_from_slice(part));
                Ok(None)
            })?;
            draft.publish(self.description(began))
        });
        self.writer = Some(writer);
        let manifest = saved?;
        self.pending.clear();
        Ok(manifest)
    }

    /// Begins to save what was written since the last checkpoint: what the regions hold now is
    /// copied, and compressed, hashed and written by a thread of its own, while the program goes on
    /// writing to them. There is one at a time: one that is on its way is waited for first.
    ///
    /// It takes as much memory as has pages that were written, and the first as much as all
    /// regions. Dropping the checkpointer waits for it.
    ///
    /// # Errors
    ///
    /// The store cannot be written to, or no thread be started. What fails later, the
    /// [`Completion`] says; the next checkpoint has everything then.
    pub fn checkpoint_in_background(&mut self) -> Result<Completion> {
        let began = Instant::now();
        let mut writer = self.writer()?;
        if let Err(error) = self.collect(&mut writer) {
            self.writer = Some(writer);
            return Err(error);
        }
        let copied = |(region, ranges): (&Region, Vec<PageRange>)| {
            let contents: Vec<&[u8]> = ranges.iter().map(|range| region.contents(range)).collect();
            let contents = contents.concat();
            (ranges, contents)
        };
        let copies: Vec<_> = self.chunks().into_iter().map(copied).collect();
        let mut description = self.description(began);
        let (sender, receiver) = mpsc::channel();
        let publish = move || {
            let mut put = || -> Result<Manifest> {
                let ranges: Vec<_> = copies.iter().map(|(ranges, _)| ranges.clone()).collect();
                let mut draft = writer.draft(page_size() as u32);
                draft.put_each(&ranges, |at, _| Ok(Some(&copies[at].1[..])))?;
                description.elapsed = began.elapsed();
                draft.publish(std::mem::take(&mut description))
            };
            let outcome = put();
            let is_published = outcome.is_ok();
            // Nobody has to wait for it.
            let _ = sender.send(outcome);
            (writer, is_published)
        };
        let thread = std::thread::Builder::new()
            .name("pagetrail-save".into())
            .spawn(publish)
            .map_err(Error::io("cannot start a thread"))?;
        self.saving = Some(Saving {
            thread: Some(thread),
            pages: std::mem::take(&mut self.pending),
        });
        Ok(Completion(receiver))
    }

    /// The writer, once what is on its way has ended; where a thread took it to its own end,
    /// another one.
    fn writer(&mut self) -> Result<Writer> {
        if let Some(mut saving) = self.saving.take() {
            let ended = saving.thread.take().and_then(|thread| thread.join().ok());
            let is_published = ended
                .as_ref()
                .is_some_and(|(_, is_published)| *is_published);
            if !is_published {
                self.pending.union_with(&saving.pages);
            }
            self.writer = ended.map(|(writer, _)| writer);
        }
        match self.writer.take() {
            Some(writer) => Ok(writer),
            None => self.store.writer(self.options),
        }
    }

    /// Adds what was written to what the store is to get.
    fn collect(&mut self, writer: &mut Writer) -> Result<()> {
        writer.catch_up()?;
        if writer.draft(page_size() as u32).is_base() {
            self.pending
                .extend(self.regions.iter().map(|region| region.memory.range()));
        }
        self.pending.union_with(&self.written.take()?);
        Ok(())
    }

    /// What the store is to get, by regions in the order of their addresses.
    fn chunks(&self) -> Vec<(&Region, Vec<PageRange>)> {
        let mut chunks = Vec::new();
        for region in self.sorted() {
            let own = [region.memory.range()].into_iter().collect();
            let pending = self.pending.intersection(&own);
            let parts = intake::chunks(pending.ranges(), page_size());
            chunks.extend(parts.into_iter().map(|part| (region, part)));
        }
        chunks
    }

    fn sorted(&self) -> Vec<&Region> {
        let mut regions: Vec<&Region> = self.regions.iter().collect();
        regions.sort_by_key(|region| region.memory.range());
        regions
    }

    fn description(&self, began: Instant) -> Description {
        Description {
            process: None,
            mappings: self.sorted().into_iter().map(Region::mapping).collect(),
            cost: Cost {
                copied_pages: self.pending.page_count(),
                ..Cost::default()
            },
            elapsed: began.elapsed(),
        }
    }

    /// Removes all checkpoints but the newest `keep`.
    ///
    /// # Errors
    ///
    /// The store fails; what is left is whole.
    pub fn prune(&mut self, keep: usize) -> Result<()> {
        let mut writer = self.writer()?;
        let pruned = writer.prune(keep);
        self.writer = Some(writer);
        pruned.map(drop)
    }
}

/// A checkpoint that a thread publishes. Dropped, it waits for the thread.
#[derive(Debug)]
struct Saving {
    /// Gives the writer back, and says whether it is published.
    thread: Option<JoinHandle<(Writer, bool)>>,
    /// The pages that it has.
    pages: PageSet,
}

impl Drop for Saving {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A checkpoint that is on its way to the store. Dropped, it goes on.
#[derive(Debug)]
#[must_use]
pub struct Completion(mpsc::Receiver<Result<Manifest>>);

impl Completion {
    /// Waits for its end. When this returns the checkpoint survives a loss of power.
    ///
    /// # Errors
    ///
    /// The store fails; it is as it was, and the next checkpoint has everything.
    pub fn wait(self) -> Result<Manifest> {
        let lost = || Error::Refused("the thread that saved the checkpoint has panicked".into());
        self.0.recv().unwrap_or_else(|_| Err(lost()))
    }

    /// How it ended, if it has; the completion, if it has not.
    ///
    /// # Errors
    ///
    /// The completion: it is still on its way.
    pub fn ended(self) -> Result<Result<Manifest>, Self> {
        match self.0.try_recv() {
            Ok(outcome) => Ok(outcome),
            Err(mpsc::TryRecvError::Empty) => Err(self),
            Err(mpsc::TryRecvError::Disconnected) => Ok(self.wait()),
        }
    }

    /// How it ended, as soon as it has; the completion, if it has not after so long.
    ///
    /// # Errors
    ///
    /// The completion: it is still on its way.
    pub fn ended_within(self, timeout: Duration) -> Result<Result<Manifest>, Self> {
        match self.0.recv_timeout(timeout) {
            Ok(outcome) => Ok(outcome),
            Err(mpsc::RecvTimeoutError::Timeout) => Err(self),
            Err(mpsc::RecvTimeoutError::Disconnected) => Ok(self.wait()),
        }
    }
}

impl Region {
    fn contents(&self, range: &PageRange) -> &[u8] {
        let from = (range.start() - self.memory.range().start()) as usize;
        &self.memory.as_slice()[from..from + range.bytes() as usize]
    }

    fn mapping(&self) -> ImageMapping {
        super::region(self.memory.range(), &self.name)
    }
}
