//! [`Contents`]: what an image that CRIU made says besides its pages: whose they are, which may be
//! restored when they are first touched, and CRIU's other image files.
//!
//! It lies in pages of the image itself, at the beginning of a slot of its own, so that everything
//! that looks after pages looks after it. `docs/image-format.md` has its bytes.

use super::space::{CONTENTS_SLOT, FILES_SLOT, FIRST_SLOT, SpaceId, base_of, range_of, slot_of};
use crate::error::{Error, Result};
use crate::format::wire::{Decoded, Decoder, Encoder, Malformed};
use crate::limits;
use crate::storage::Name;
use crate::store::image::Image;
use pagetrail::{PageRange, PageSet};
use std::collections::{BTreeMap, BTreeSet};

const MAGIC: &[u8; 8] = b"PTCRIU\x00\x01";
/// The magic, and the length of what follows.
const HEAD_BYTES: usize = 16;
/// The longest name of a file (`NAME_MAX`).
const NAME_BYTES_MAX: usize = 255;

const KIND_PROCESS: u8 = 1;
const KIND_SHARED: u8 = 2;

/// One of CRIU's image files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFile {
    /// Its name, without any directory.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// The address of the image at which its contents begin.
    pub(crate) start: u64,
}

/// A space of the dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    pub(crate) id: SpaceId,
    pub(crate) slot: u16,
    /// All its pages, by their addresses in the image.
    pub(crate) pages: PageSet,
    /// The pages that may be restored when they are first touched.
    pub(crate) lazy: PageSet,
}

/// What an image of CRIU's says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) spaces: Vec<Space>,
    pub(crate) files: Vec<ImageFile>,
}

/// Whether a text can be the name of an image file, and nothing that leads elsewhere.
pub(crate) fn is_file_name(name: &str) -> bool {
    let is_wrong = |c: char| c == '/' || c.is_control();
    !matches!(name, "" | "." | "..") && name.len() <= NAME_BYTES_MAX && !name.contains(is_wrong)
}

impl Contents {
    pub(crate) fn space(&self, id: SpaceId) -> Option<&Space> {
        self.spaces.iter().find(|space| space.id == id)
    }

    /// Where the spaces lie.
    pub(crate) fn slots(&self) -> BTreeMap<SpaceId, u16> {
        let slots = self.spaces.iter().map(|space| (space.id, space.slot));
        slots.collect()
    }

    /// The first slot after those of all spaces.
    pub(crate) fn next_slot(&self) -> u16 {
        let slots = self.spaces.iter().map(|space| space.slot);
        slots
            .max()
            .map_or(FIRST_SLOT, |slot| slot.saturating_add(1))
    }

    /// The bytes, without the pages of the spaces: the manifest's mappings say these.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::default();
        out.list(&self.spaces, |out, space| {
            match space.id {
                SpaceId::Process(pid) => {
                    out.u8(KIND_PROCESS);
                    out.number(pid.into());
                }
                SpaceId::Shared(id) => {
                    out.u8(KIND_SHARED);
                    out.number(id);
                }
            }
            out.number(space.slot.into());
            let mut end = base_of(space.slot);
            out.list(space.lazy.ranges(), |out, range| {
                out.number(range.start() - end);
                out.number(range.bytes());
                end = range.end();
            });
        });
        out.list(&self.files, |out, file| {
            out.text(&file.name);
            out.number(file.bytes);
            out.number(file.start - base_of(FILES_SLOT));
        });
        let mut bytes = MAGIC.to_vec();
        bytes.extend((out.0.len() as u64).to_le_bytes());
        bytes.extend(out.0);
        bytes
    }

    /// Takes apart what follows the head; `mapped` are all addresses of the image.
    fn decode(bytes: &[u8], mapped: &PageSet, page_size: u64) -> Decoded<Self> {
        let mut input = Decoder(bytes);
        let spaces = input.list(|input| decode_space(input, mapped, page_size))?;
        let slots: BTreeSet<u16> = spaces.iter().map(|space| space.slot).collect();
        let ids: BTreeSet<SpaceId> = spaces.iter().map(|space| space.id).collect();
        if slots.len() != spaces.len() || ids.len() != spaces.len() {
            return Err(Malformed("two spaces in one place"));
        }
        let files = input.list(|input| decode_file(input, mapped))?;
        let names: BTreeSet<&str> = files.iter().map(|file| file.name.as_str()).collect();
        if names.len() != files.len() {
            return Err(Malformed("two files of one name"));
        }
        input.end()?;
        Ok(Self { spaces, files })
    }

    /// Reads them from an image; `None` of an image that CRIU did not make.
    pub(crate) fn of(image: &mut Image) -> Result<Option<Self>> {
        let manifest = image.manifest();
        if !manifest.is_by_criu() {
            return Ok(None);
        }
        let (number, page_size) = (manifest.number, u64::from(manifest.page_size));
        let mapped = manifest.addresses();
        let damaged = |Malformed(reason): Malformed| Error::Damaged {
            object: Name::Manifest(number).to_string(),
            reason: format!("what it says of CRIU's dump is not as it should be: {reason}"),
        };
        let base = base_of(CONTENTS_SLOT);
        let head = PageRange::new(base, base + page_size).ok_or(Error::Empty)?;
        let mut bytes = vec![0; page_size as usize];
        image.read(head, &mut bytes)?;
        if &bytes[..MAGIC.len()] != MAGIC {
            return Err(damaged(Malformed("it is of another format")));
        }
        let length = Decoder(&bytes[MAGIC.len()..]).u64().map_err(damaged)?;
        let all = length
            .checked_add(HEAD_BYTES as u64)
            .filter(|all| *all <= limits::bytes_at_once())
            .and_then(|all| PageRange::new(base, base + all.next_multiple_of(page_size)))
            .filter(|range| mapped.covers(*range));
        let all = all.ok_or_else(|| damaged(Malformed("it is impossibly long")))?;
        bytes.resize(all.bytes() as usize, 0);
        image.read(all, &mut bytes)?;
        let body = &bytes[HEAD_BYTES..HEAD_BYTES + length as usize];
        Self::decode(body, &mapped, page_size)
            .map(Some)
            .map_err(damaged)
    }
}

fn decode_space(input: &mut Decoder<'_>, mapped: &PageSet, page_size: u64) -> Decoded<Space> {
    let id = match input.u8()? {
        KIND_PROCESS => SpaceId::Process(input.number_u32()?),
        KIND_SHARED => SpaceId::Shared(input.number()?),
        _ => return Err(Malformed("a space of an unknown kind")),
    };
    let slot = u16::try_from(input.number()?).ok();
    let slot = slot.filter(|slot| *slot >= FIRST_SLOT);
    let slot = slot.ok_or(Malformed("an impossible slot"))?;
    let own = range_of(slot, page_size).ok_or(Malformed("an impossible slot"))?;
    let pages = mapped.intersection(&PageSet::from_iter([own]));
    let mut end = own.start();
    let ranges = input.list(|input| {
        let start = end.checked_add(input.number()?);
        let range = start.and_then(|start| {
            let bytes = input.number().ok()?;
            PageRange::new(start, start.checked_add(bytes)?)
        });
        let range = range.filter(|r| r.start() % page_size == 0 && r.end() % page_size == 0);
        let range = range.ok_or(Malformed("impossible pages"))?;
        end = range.end();
        Ok(range)
    })?;
    let lazy: PageSet = ranges.into_iter().collect();
    if !lazy.difference(&pages).is_empty() {
        return Err(Malformed("pages that it does not have"));
    }
    Ok(Space {
        id,
        slot,
        pages,
        lazy,
    })
}

fn decode_file(input: &mut Decoder<'_>, mapped: &PageSet) -> Decoded<ImageFile> {
    let name = input.text()?;
    if !is_file_name(&name) {
        return Err(Malformed("an impossible name of a file"));
    }
    let bytes = input.number()?;
    let start = base_of(FILES_SLOT).checked_add(input.number()?);
    let start = start.ok_or(Malformed("a file beyond all addresses"))?;
    let end = start.checked_add(bytes);
    let end = end.ok_or(Malformed("a file beyond all addresses"))?;
    let is_there = match PageRange::new(start, end) {
        None => true,
        Some(range) => mapped.covers(range) && slot_of(range.end()) == FILES_SLOT,
    };
    is_there
        .then_some(ImageFile { name, bytes, start })
        .ok_or(Malformed("a file that it does not have"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    fn range(slot: u16, from: u64, to: u64) -> PageRange {
        let base = base_of(slot);
        PageRange::new(base + from * PAGE, base + to * PAGE).unwrap()
    }

    fn sample() -> (Contents, PageSet) {
        let space = |id, slot, pages: &[PageRange], lazy: &[PageRange]| Space {
            id,
            slot,
            pages: pages.iter().copied().collect(),
            lazy: lazy.iter().copied().collect(),
        };
        let contents = Contents {
            spaces: vec![
                space(
                    SpaceId::Process(7),
                    3,
                    &[range(3, 5, 9), range(3, 20, 21)],
                    &[range(3, 6, 8), range(3, 20, 21)],
                ),
                space(SpaceId::Shared(u64::MAX), 9, &[range(9, 0, 2)], &[]),
            ],
            files: vec![
                ImageFile {
                    name: "core-7.img".into(),
                    bytes: 5000,
                    start: base_of(FILES_SLOT),
                },
                ImageFile {
                    name: "empty".into(),
                    bytes: 0,
                    start: base_of(FILES_SLOT) + 2 * PAGE,
                },
            ],
        };
        let mut mapped: PageSet = [range(CONTENTS_SLOT, 0, 1), range(FILES_SLOT, 0, 2)]
            .into_iter()
            .collect();
        for space in &contents.spaces {
            mapped.union_with(&space.pages);
        }
        (contents, mapped)
    }

    #[test]
    fn what_was_said_is_understood() {
        let (contents, mapped) = sample();
        let bytes = contents.encode();
        let again = Contents::decode(&bytes[HEAD_BYTES..], &mapped, PAGE);
        assert_eq!(again, Ok(contents));
    }

    #[test]
    fn damage_is_no_panic_and_leads_nowhere() {
        let (contents, mapped) = sample();
        let bytes = contents.encode();
        let body = &bytes[HEAD_BYTES..];
        for length in 0..body.len() {
            assert!(Contents::decode(&body[..length], &mapped, PAGE).is_err());
        }
        for at in 0..body.len() {
            for bit in 0..8 {
                let mut wrong = body.to_vec();
                wrong[at] ^= 1 << bit;
                let Ok(found) = Contents::decode(&wrong, &mapped, PAGE) else {
                    continue;
                };
                assert!(found.files.iter().all(|file| is_file_name(&file.name)));
                for space in &found.spaces {
                    assert!(space.lazy.difference(&mapped).is_empty());
                }
            }
        }
        for name in ["", ".", "..", "a/b", "/a", "a\0", "a\n", &"x".repeat(256)] {
            assert!(!is_file_name(name), "{name}");
        }
    }
}
