//! [`Patch`]: a page that is another pack's page but for some bytes; what a pack says of it, and
//! putting it together. [`Patched`]: those of a pack.

use super::wire::{Decoded, Decoder, Encoder, Malformed};
use crate::hash::Hash;

/// Places in a pack from here on are patched pages, those below are pages in frames.
pub(crate) const FIRST_PATCH: u32 = 1 << 31;

/// Bytes are counted in steps of so many: what allocators align objects to.
pub(crate) const STEP: u64 = 16;

/// A page may be a patch of a patch, so many times: reading it takes that many packs.
pub(crate) const DEPTH_MAX: u8 = 32;

/// A page that is said by what differs from another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Patch {
    /// Of the whole page.
    pub(crate) hash: Hash,
    /// The page that it differs from: the number of its pack among the bases, and its place there.
    pub(crate) base: u32,
    pub(crate) place: u32,
    /// How many patches lie upon each other, this one included.
    pub(crate) depth: u8,
    /// What is replaced: first byte and length, ascending and apart.
    pub(crate) ranges: Vec<(u32, u32)>,
}

impl Patch {
    /// How many bytes are replaced.
    pub(crate) fn bytes(&self) -> u64 {
        let lengths = self.ranges.iter().map(|(_, length)| u64::from(*length));
        lengths.sum()
    }

    /// Replaces bytes of the page that is patched by `data`, one after the other.
    pub(crate) fn apply(&self, data: &[u8], page: &mut [u8]) {
        let mut rest = data;
        for &(start, length) in &self.ranges {
            let (now, behind) = rest.split_at(length as usize);
            page[start as usize..][..length as usize].copy_from_slice(now);
            rest = behind;
        }
    }

    pub(super) fn encode(&self, out: &mut Encoder) {
        out.hash(&self.hash);
        out.number(self.base.into());
        out.u32(self.place);
        out.u8(self.depth);
        out.number(self.ranges.len() as u64);
        let mut behind = 0;
        for &(start, length) in &self.ranges {
            out.number(u64::from(start - behind) / STEP);
            out.number(u64::from(length) / STEP);
            behind = start + length;
        }
    }

    pub(super) fn decode(input: &mut Decoder<'_>, page_size: u32, bases: usize) -> Decoded<Self> {
        let hash = input.hash()?;
        let (base, place, depth) = (input.number_u32()?, input.u32()?, input.u8()?);
        let mut behind = 0_u64;
        let ranges = input.list(|input| {
            let gap = input.number_u32()?;
            let length = input.number_u32()?;
            let start = behind + u64::from(gap) * STEP;
            let end = start + u64::from(length) * STEP;
            // The first may begin where the page does; no two touch.
            if length == 0 || end > page_size.into() || gap == 0 && behind > 0 {
                return Err(Malformed("a patch with impossible bytes"));
            }
            behind = end;
            Ok((start as u32, (end - start) as u32))
        })?;
        let fits = (base as usize) < bases
            && (1..=DEPTH_MAX).contains(&depth)
            && (place >= FIRST_PATCH) == (depth > 1)
            && !ranges.is_empty();
        if !fits {
            return Err(Malformed("a patch of nothing that can be patched"));
        }
        Ok(Self {
            hash,
            base,
            place,
            depth,
            ranges,
        })
    }
}

/// The patches of a pack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Patched {
    /// The place of the first page in frames that has the patches' bytes, one after the other.
    pub(super) data_from: u32,
    /// The packs whose pages are patched.
    pub(crate) bases: Vec<Hash>,
    pub(crate) patches: Vec<Patch>,
}

impl Patched {
    /// The patch at a place.
    pub(crate) fn at(&self, place: u32) -> Option<&Patch> {
        self.patches.get(place.checked_sub(FIRST_PATCH)? as usize)
    }

    /// Where among the patches' bytes each begins, and in the end how many there are.
    pub(super) fn starts(&self) -> Vec<u64> {
        let mut starts = vec![0];
        let mut at = 0;
        starts.extend(self.patches.iter().map(|patch| {
            at += patch.bytes();
            at
        }));
        starts
    }

    pub(super) fn encode(&self, out: &mut Encoder) {
        out.u32(self.data_from);
        out.list(&self.bases, Encoder::hash);
        out.list(&self.patches, |out, patch| patch.encode(out));
    }

    /// Reads those of a pack that has so many pages in frames.
    pub(super) fn decode(decoder: &mut Decoder<'_>, page_size: u32, pages: u32) -> Decoded<Self> {
        let data_from = decoder.u32()?;
        let bases = decoder.list(Decoder::hash)?;
        let patches = decoder.list(|decoder| Patch::decode(decoder, page_size, bases.len()))?;
        let patched = Self {
            data_from,
            bases,
            patches,
        };
        let bytes = patched.starts().last().copied().unwrap_or(0);
        match u64::from(data_from) + bytes.div_ceil(page_size.into()) == u64::from(pages) {
            true => Ok(patched),
            false => Err(Malformed("its patches are not as long as their bytes")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patch(ranges: &[(u32, u32)]) -> Patch {
        Patch {
            hash: Hash::of(b"page"),
            base: 1,
            place: FIRST_PATCH + 7,
            depth: 3,
            ranges: ranges.to_vec(),
        }
    }

    fn encoded(patch: &Patch) -> Vec<u8> {
        let mut out = Encoder::default();
        patch.encode(&mut out);
        out.0
    }

    #[test]
    fn what_is_written_is_read_and_nonsense_is_not() {
        let good = patch(&[(0, 16), (64, 4032)]);
        let bytes = encoded(&good);
        let mut input = Decoder(&bytes);
        assert_eq!(Patch::decode(&mut input, 4096, 2), Ok(good.clone()));
        assert_eq!(input.end(), Ok(()));
        assert_eq!(good.bytes(), 4048);
        for length in 0..bytes.len() {
            assert!(Patch::decode(&mut Decoder(&bytes[..length]), 4096, 2).is_err());
        }
        assert!(
            Patch::decode(&mut Decoder(&bytes), 4096, 1).is_err(),
            "no such base"
        );
        for wrong in [
            patch(&[]),
            patch(&[(0, 16), (16, 16)]),
            patch(&[(4080, 32)]),
            Patch {
                depth: 1,
                ..good.clone()
            },
            Patch { place: 7, ..good },
        ] {
            assert!(
                Patch::decode(&mut Decoder(&encoded(&wrong)), 4096, 2).is_err(),
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn bytes_go_where_they_belong() {
        let mut page = vec![0; 4096];
        let data: Vec<u8> = (0..48).collect();
        patch(&[(32, 16), (4064, 32)]).apply(&data, &mut page);
        assert_eq!(page[32..48], data[..16]);
        assert_eq!(page[4064..], data[16..]);
        assert!(page[48..4064].iter().all(|byte| *byte == 0));
    }
}
