//! [`Dump`]: a dump on its way into the store, as one checkpoint, published whole or not at all.

use super::contents::{Contents, ImageFile, Space, is_file_name};
use super::link::{Link, broken};
use super::protocol::{IN_PARENT, LAZY, PRESENT};
use super::space::{CONTENTS_SLOT, FILES_SLOT, FIRST_SLOT, SpaceId, base_of, place};
use crate::error::{Error, Result};
use crate::format::manifest::{Cost, Manifest, Mapping};
use crate::format::wire::Malformed;
use crate::limits;
use crate::store::writer::{Description, Draft, Writer};
use pagetrail::{PageRange, PageSet, Permissions};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// What a page of a dump takes of memory until it is published: its hash, where it lies, its part
/// of tables.
const PAGE_COST_BYTES: u64 = 80;
/// What an entry takes, which may be of a single page that a parent has.
const ENTRY_COST_BYTES: u64 = 64;

/// From this slot on the next dump is a base, whose slots are numbered anew.
const RENUMBERED_SLOT: u16 = 1 << 15;

/// How much of a file is read at a time, in bytes.
const FILE_CHUNK_BYTES: usize = 1 << 20;

/// A dump that is being received. Dropped before it is published, it leaves the store as it was.
pub struct Dump<'w> {
    state: State,
    draft: Draft<'w>,
    files: Vec<ImageFile>,
    /// Where the next file goes.
    files_end: u64,
    began: Instant,
}

/// What a dump builds on.
#[derive(Debug)]
pub(super) struct Before {
    /// What the checkpoint says.
    pub(super) contents: Contents,
    /// Whether CRIU may refer to a page of that checkpoint instead of sending it.
    pub(super) is_tracked: bool,
}

/// What has been said of the pages so far.
pub(super) struct State {
    page_size: u64,
    /// What has the pages of which CRIU says that they were not written since.
    parent: Option<Contents>,
    /// Where spaces lay so far; they lie there again, so that pages that are the same are found.
    slots: BTreeMap<SpaceId, u16>,
    spaces: BTreeMap<SpaceId, Open>,
    next_slot: u16,
    /// What may still come, in bytes of memory that it takes here.
    room: u64,
    /// Pages that came with their contents: all, and those that came while the processes ran.
    pages: u64,
    early_pages: u64,
}

/// A space that is being received.
struct Open {
    slot: u16,
    entries: Vec<(PageRange, u32)>,
}

impl<'w> Dump<'w> {
    /// Begins a dump: an increment over `before`, the checkpoint that the writer builds on, if it
    /// still does.
    pub(super) fn new(writer: &'w mut Writer, before: Option<Before>) -> Self {
        let page_size = pagetrail::page_size();
        let is_full = |before: &Before| before.contents.next_slot() > RENUMBERED_SLOT;
        if before.as_ref().is_some_and(is_full) {
            writer.begin_anew();
        }
        let draft = writer.draft(page_size as u32);
        let before = before.filter(|_| !draft.is_base());
        let slots = before.as_ref().map(|before| before.contents.slots());
        let next_slot = before.as_ref().map(|before| before.contents.next_slot());
        let parent = before.filter(|before| before.is_tracked);
        Self {
            state: State {
                page_size,
                parent: parent.map(|before| before.contents),
                slots: slots.unwrap_or_default(),
                spaces: BTreeMap::new(),
                next_slot: next_slot.unwrap_or(FIRST_SLOT),
                room: limits::bytes_at_once(),
                pages: 0,
                early_pages: 0,
            },
            draft,
            files: Vec::new(),
            files_end: base_of(FILES_SLOT),
            began: Instant::now(),
        }
    }

    /// Takes a pre-dump that comes over a connection: pages copied while the processes ran. The
    /// part that comes next, another pre-dump or the dump, may refer to them. CRIU hears that they
    /// are there.
    ///
    /// # Errors
    ///
    /// The connection ends early, what comes is not as it should be, or the storage fails.
    pub fn pre_dump<S: Read + Write>(&mut self, stream: S) -> Result<()> {
        self.pages(stream)?;
        self.state.begin_part()
    }

    /// Takes the pages of the dump that come over a connection, after those of any pre-dumps. CRIU
    /// hears that they are there once the store has them: meanwhile the processes stand still.
    ///
    /// # Errors
    ///
    /// As [`Self::pre_dump`].
    pub fn pages<S: Read + Write>(&mut self, stream: S) -> Result<()> {
        let link = &mut Link::new(stream);
        self.receive(link, None)?;
        link.done()
    }

    /// Takes a pre-dump that CRIU left in a directory, as [`Self::pre_dump`] does one that comes
    /// over a connection: CRIU wrote it while the processes ran.
    ///
    /// # Errors
    ///
    /// A file is missing or not as it should be, or the storage fails.
    pub fn pre_dump_images(&mut self, directory: &Path) -> Result<()> {
        self.images(directory)?;
        self.state.begin_part()
    }

    /// Takes the pages of the dump that CRIU left in a directory, after those of any pre-dumps.
    /// The processes stood still for no longer than CRIU alone takes, and go on already.
    ///
    /// # Errors
    ///
    /// As [`Self::pre_dump_images`].
    pub fn images(&mut self, directory: &Path) -> Result<()> {
        self.fill(|state, inlet| state.local(directory, inlet))
    }

    /// The state of what was received, and the draft that takes the pages.
    pub(super) fn parts(&mut self) -> (&mut State, &mut Draft<'w>) {
        (&mut self.state, &mut self.draft)
    }

    /// Adds one of CRIU's image files.
    ///
    /// # Errors
    ///
    /// The name is not one of a file; two files have one name; reading or the storage fails.
    pub fn add_file(&mut self, name: &str, contents: &mut impl Read) -> Result<()> {
        let is_new = self.files.iter().all(|file| file.name != name);
        if !is_file_name(name) || !is_new {
            let reason = format!("'{}' is no name of an image file", name.escape_debug());
            return Err(Error::Refused(reason));
        }
        let page_size = self.state.page_size;
        let (start, mut bytes) = (self.files_end, 0);
        let mut chunk = Vec::new();
        loop {
            chunk.clear();
            let count = contents
                .by_ref()
                .take(FILE_CHUNK_BYTES as u64)
                .read_to_end(&mut chunk)
                .map_err(Error::io(format!("cannot read {name}")))?;
            if count == 0 {
                break;
            }
            chunk.resize(count.next_multiple_of(page_size as usize), 0);
            let at = self.files_end - base_of(FILES_SLOT);
            let pages = chunk.len() as u64 / page_size;
            let range = place(FILES_SLOT, at, pages, page_size);
            let range = range.map_err(|_| Error::Refused("too many image files".into()))?;
            self.draft.put(&[range], &chunk)?;
            self.files_end = range.end();
            bytes += count as u64;
        }
        self.files.push(ImageFile {
            name: name.into(),
            bytes,
            start,
        });
        Ok(())
    }

    /// Makes it a checkpoint of the store; `frozen` is how long the processes stood still.
    pub(super) fn publish(mut self, frozen: Duration) -> Result<(Manifest, Contents)> {
        let contents = Contents {
            spaces: self.state.settle()?,
            files: self.files,
        };
        if contents.spaces.is_empty() {
            return Err(broken(Malformed("a dump without any pages")));
        }
        let page_size = self.state.page_size;
        let mut table = contents.encode();
        table.resize(table.len().next_multiple_of(page_size as usize), 0);
        let pages = table.len() as u64 / page_size;
        let range = place(CONTENTS_SLOT, 0, pages, page_size).map_err(broken)?;
        self.draft.put(&[range], &table)?;
        let mut mappings = vec![mapping(range, "CRIU's dump")];
        if let Some(files) = PageRange::new(base_of(FILES_SLOT), self.files_end) {
            mappings.push(mapping(files, "CRIU's image files"));
        }
        let mut spaces: Vec<&Space> = contents.spaces.iter().collect();
        spaces.sort_by_key(|space| space.slot);
        for space in spaces {
            let name = space.id.to_string();
            let ranges = space.pages.ranges().iter();
            mappings.extend(ranges.map(|range| mapping(*range, &name)));
        }
        let description = Description {
            process: None,
            mappings,
            cost: Cost {
                pause_ns: frozen.as_nanos() as u64,
                copied_pages: self.state.pages,
                stopped_pages: self.state.pages - self.state.early_pages,
                ..Cost::default()
            },
            elapsed: self.began.elapsed(),
        };
        let manifest = self.draft.publish(description)?;
        Ok((manifest, contents))
    }
}

fn mapping(range: PageRange, name: &str) -> Mapping {
    Mapping {
        range,
        permissions: Permissions {
            read: true,
            write: false,
            execute: false,
            shared: false,
        },
        offset: 0,
        device: (0, 0),
        inode: 0,
        name: name.into(),
        build_id: Vec::new(),
        saved: true,
        own_writes_only: false,
    }
}

impl State {
    pub(super) fn has_parent(&self, id: SpaceId) -> bool {
        let parent = self.parent.as_ref();
        parent.is_some_and(|parent| parent.space(id).is_some())
    }

    /// Opens a space; tells whether there is a parent of it.
    pub(super) fn open(&mut self, id: SpaceId) -> Result<bool> {
        let slot = match self.slots.get(&id) {
            Some(slot) => *slot,
            None if self.next_slot == u16::MAX => {
                return Err(broken(Malformed("too many processes")));
            }
            None => {
                self.next_slot += 1;
                self.next_slot - 1
            }
        };
        self.slots.insert(id, slot);
        let entries = Vec::new();
        if self.spaces.insert(id, Open { slot, entries }).is_some() {
            return Err(broken(Malformed("the same process or memory twice")));
        }
        self.pay(ENTRY_COST_BYTES)?;
        Ok(self.has_parent(id))
    }

    /// Notes pages that are to come, or that the parent has; tells where they lie in the image.
    pub(super) fn add(
        &mut self,
        id: SpaceId,
        address: u64,
        pages: u64,
        flags: u32,
    ) -> Result<PageRange> {
        if !self.spaces.contains_key(&id) {
            // As clients of old versions do.
            self.open(id)?;
        }
        let page_size = self.page_size;
        let present = if flags & PRESENT != 0 { pages } else { 0 };
        let space = self.spaces.get_mut(&id);
        let space = space.ok_or_else(|| broken(Malformed("pages of nothing")))?;
        let range = place(space.slot, address, pages, page_size).map_err(broken)?;
        match space.entries.last_mut() {
            Some((last, same)) if *same == flags && last.end() == range.start() => {
                *last = PageRange::new(last.start(), range.end()).unwrap_or(*last);
            }
            _ => space.entries.push((range, flags)),
        }
        self.pages += present;
        self.pay(ENTRY_COST_BYTES + present.saturating_mul(PAGE_COST_BYTES))?;
        Ok(range)
    }

    fn pay(&mut self, bytes: u64) -> Result<()> {
        let left = self.room.checked_sub(bytes);
        self.room = left.ok_or_else(|| {
            Error::Refused(
                "the dump has more pages than this machine has memory to keep account of".into(),
            )
        })?;
        Ok(())
    }

    /// Makes what came so far the parent of what comes next. Spaces that did not come have none:
    /// CRIU's pre-dumps leave shared memory out, and forget what was written there.
    fn begin_part(&mut self) -> Result<()> {
        let spaces = self.settle()?;
        self.early_pages = self.pages;
        self.parent = Some(Contents {
            spaces,
            files: Vec::new(),
        });
        Ok(())
    }

    /// Finds out which pages each space has, in the end.
    fn settle(&mut self) -> Result<Vec<Space>> {
        let mut spaces = Vec::new();
        for (id, open) in std::mem::take(&mut self.spaces) {
            let Open { slot, mut entries } = open;
            entries.sort_unstable_by_key(|(range, _)| *range);
            if !entries.is_sorted_by(|(a, _), (b, _)| a.end() <= b.start()) {
                return Err(broken(Malformed("pages that came twice")));
            }
            let of = |flag: u32| -> PageSet {
                let marked = entries.iter().filter(|(_, flags)| flags & flag != 0);
                marked.map(|(range, _)| *range).collect()
            };
            let (present, inherited) = (of(PRESENT), of(IN_PARENT));
            let before = self.parent.as_ref().and_then(|parent| parent.space(id));
            let (known, known_lazy) = before
                .map(|space| (space.pages.clone(), space.lazy.clone()))
                .unwrap_or_default();
            if !inherited.difference(&known).is_empty() {
                let reason = "pages in a parent that does not have them";
                return Err(broken(Malformed(reason)));
            }
            let lazy = of(LAZY).intersection(&present);
            spaces.push(Space {
                id,
                slot,
                pages: present.union(&inherited),
                lazy: lazy.union(&known_lazy.intersection(&inherited)),
            });
        }
        Ok(spaces)
    }
}
