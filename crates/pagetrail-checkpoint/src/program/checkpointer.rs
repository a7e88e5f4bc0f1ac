//! [`Checkpointer`]: memory of the own program that is there again at its next start.
//!
//! The memory belongs to the checkpointer and is borrowed from it, so nobody can write while a
//! checkpoint is taken: each is of one instant without stopping anything.

use crate::error::{Error, Result};
use crate::format::manifest::{Cost, Manifest, Mapping as ImageMapping};
use crate::store::Store;
use crate::store::image::Image;
use crate::store::intake;
use crate::store::writer::{Description, Writer, WriterOptions};
use crate::sys::mapping::Mapping;
use pagetrail::{Choice, PageRange, PageSet, Target, Watch, page_size};
use std::path::Path;
use std::time::Instant;

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

    /// How writes are noticed.
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
        let watch = Watch::builder()
            .target(Target::ranges(
                regions.iter().map(|region| region.memory.range()),
            ))
            .technique(self.technique)
            .start()?;
        Ok(Checkpointer {
            watch,
            regions,
            writer,
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
    watch: Watch,
    regions: Vec<Region>,
    writer: Writer,
    restored: Option<u64>,
    /// Pages that the store is to get with the next checkpoint.
    pending: PageSet,
}

impl Checkpointer {
    /// Begins to describe the memory to be kept in the store in `directory`, which is made where
    /// there is none.
    pub fn builder(directory: &Path) -> CheckpointerBuilder {
        Self::builder_on(Store::create(directory, false))
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
    /// The store fails; it is as it was, and the next checkpoint has everything.
    pub fn checkpoint(&mut self) -> Result<Manifest> {
        let began = Instant::now();
        self.writer.catch_up()?;
        let mut draft = self.writer.draft(page_size() as u32);
        if draft.is_base() {
            self.pending
                .extend(self.regions.iter().map(|region| region.memory.range()));
        }
        let round = self.watch.collect()?;
        self.pending.union_with(round.dirty());
        round.commit();
        let mut regions: Vec<&Region> = self.regions.iter().collect();
        regions.sort_by_key(|region| region.memory.range());
        let (mut chunks, mut of) = (Vec::new(), Vec::new());
        for region in &regions {
            let pending = self
                .pending
                .intersection(&[region.memory.range()].into_iter().collect());
            chunks.extend(intake::chunks(pending.ranges(), page_size()));
            of.resize(chunks.len(), *region);
        }
        draft.put_each(&chunks, |at, buffer| {
            if let [whole] = &chunks[at][..] {
                return Ok(Some(of[at].contents(whole)));
            }
            buffer.clear();
            let parts = chunks[at].iter().map(|range| of[at].contents(range));
            parts.for_each(|part| buffer.extend_from_slice(part));
            Ok(None)
        })?;
        let manifest = draft.publish(Description {
            process: None,
            mappings: regions.iter().map(|region| region.mapping()).collect(),
            cost: Cost {
                copied_pages: self.pending.page_count(),
                ..Cost::default()
            },
            elapsed: began.elapsed(),
        })?;
        self.pending.clear();
        Ok(manifest)
    }

    /// Removes all checkpoints but the newest `keep`.
    ///
    /// # Errors
    ///
    /// The store fails; what is left is whole.
    pub fn prune(&mut self, keep: usize) -> Result<()> {
        self.writer.prune(keep).map(drop)
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
