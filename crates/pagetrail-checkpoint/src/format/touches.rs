//! [`Touches`]: in which order a process that was restored lazily needed its pages.

use super::is_page_size;
use super::wire::{Decoded, Decoder, Encoder, Malformed};
use crate::hash::Hash;
use pagetrail::PageRange;

const MAGIC: &[u8; 8] = b"PTTOUCH\x01";
/// The magic number, the checkpoint's id and the page size.
const HEADER_BYTES: usize = 8 + Hash::BYTES + 4;

/// Pages in the order of their first touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Touches {
    /// The id of the checkpoint.
    pub(crate) id: Hash,
    pub(crate) page_size: u32,
    pub(crate) order: Vec<PageRange>,
}

impl Touches {
    /// All bytes, with their hash.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Encoder(MAGIC.to_vec());
        out.hash(&self.id);
        out.u32(self.page_size);
        let page_size = u64::from(self.page_size);
        let mut before = 0;
        out.list(&self.order, |out, range| {
            // The distance from the end of the one before: forwards even, backwards odd.
            let (start, end) = (range.start() / page_size, range.end() / page_size);
            out.number(match start.checked_sub(before) {
                Some(forwards) => forwards << 1,
                None => (before - start) << 1 | 1,
            });
            out.number(end - start);
            before = end;
        });
        let hash = Hash::of(&out.0);
        out.hash(&hash);
        out.0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Decoded<Self> {
        let too_short = Malformed("it ends too early");
        let body = bytes.len().checked_sub(Hash::BYTES);
        let (body, hash) = bytes.split_at(body.filter(|n| *n >= HEADER_BYTES).ok_or(too_short)?);
        if Hash::of(body).0 != hash {
            return Err(Malformed("its hash is not that of its contents"));
        }
        let mut decoder = Decoder(body);
        if decoder.take(MAGIC.len())? != MAGIC {
            return Err(Malformed("it does not begin as an order of touches"));
        }
        let (id, page_size) = (decoder.hash()?, decoder.u32()?);
        if !is_page_size(page_size) {
            return Err(Malformed("impossible sizes of pages"));
        }
        let impossible = || Malformed("pages at impossible addresses");
        let mut before = 0_u64;
        let order = decoder.list(|decoder| {
            let (distance, pages) = (decoder.number()?, decoder.number()?);
            let start = match distance & 1 {
                0 => before.checked_add(distance >> 1),
                _ => before.checked_sub(distance >> 1),
            };
            let start = start.ok_or_else(impossible)?;
            before = start.checked_add(pages).ok_or_else(impossible)?;
            let address = |page: u64| page.checked_mul(page_size.into()).ok_or_else(impossible);
            let range = PageRange::new(address(start)?, address(before)?);
            range.filter(|_| pages > 0).ok_or_else(impossible)
        })?;
        decoder.end()?;
        Ok(Self {
            id,
            page_size,
            order,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nonsense_is_not() {
        let range = |from: u64, to: u64| PageRange::new(from << 12, to << 12).unwrap();
        let touches = Touches {
            id: Hash::of(b"checkpoint"),
            page_size: 4096,
            order: vec![
                range(7, 9),
                range(9, 10),
                range(2, 3),
                range(1 << 40, 1 << 41),
            ],
        };
        let bytes = touches.encode();
        assert_eq!(Touches::decode(&bytes), Ok(touches));
        for length in 0..bytes.len() {
            assert!(Touches::decode(&bytes[..length]).is_err(), "{length}");
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(Touches::decode(&changed).is_err(), "{at}");
        }
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..20_000 {
            let mut body = bytes[..bytes.len() - Hash::BYTES].to_vec();
            for _ in 0..random.u32(1..4) {
                let at = random.usize(8..body.len());
                body[at] = random.u8(..);
            }
            body.extend(Hash::of(&body).0);
            if let Ok(found) = Touches::decode(&body) {
                assert_eq!(Touches::decode(&found.encode()), Ok(found));
            }
        }
    }
}
