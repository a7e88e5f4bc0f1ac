//! Manifests and packs put together by hand, byte by byte as `docs/image-format.md` has them
//! (manifests of version 1, packs of versions 1 and 3), with right hashes whatever they say.

#![allow(dead_code, reason = "each test uses its part")]

use pagetrail_checkpoint::Hash;

/// The bytes of a hash.
fn bytes_of(hash: Hash) -> [u8; 32] {
    let digits = hash.to_string();
    let mut bytes = [0; 32];
    for (byte, digits) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap();
    }
    bytes
}

fn number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn text(out: &mut Vec<u8>, bytes: &[u8]) {
    number(out, bytes.len() as u64);
    out.extend(bytes);
}

/// What a manifest is to say.
#[derive(Clone, Debug, Default)]
pub(crate) struct Crafted {
    pub(crate) number: u64,
    pub(crate) parent: Option<(u64, Hash)>,
    /// First address, the one after the last, name. With none, one of 16 pages.
    pub(crate) mappings: Vec<(u64, u64, Vec<u8>)>,
    /// Whether it is of a process.
    pub(crate) process: bool,
    pub(crate) packs: Vec<Hash>,
    /// Gap, pages, source, place.
    pub(crate) runs: Vec<(u64, u64, u64, u64)>,
}

impl Crafted {
    fn body(&self, id: [u8; 32]) -> Vec<u8> {
        let mut out = b"PTIMAGE\x01".to_vec();
        out.extend(self.number.to_le_bytes());
        out.extend(id);
        match self.parent {
            None => out.push(0),
            Some((number, id)) => {
                out.push(1);
                out.extend(number.to_le_bytes());
                out.extend(bytes_of(id));
            }
        }
        out.extend(1_000_000_000_000_000_000u64.to_le_bytes());
        out.extend(4096u32.to_le_bytes());
        out.push(u8::from(self.process));
        if self.process {
            out.extend(1u32.to_le_bytes());
            out.extend(1u64.to_le_bytes());
            text(&mut out, b"\x1b[2J/x");
            number(&mut out, 2);
            text(&mut out, b"\x1b]0;owned\x07");
            text(&mut out, b"a\nb");
            text(&mut out, &[0; 16]);
            number(&mut out, 1);
            out.extend(1u32.to_le_bytes());
            text(&mut out, b"thread");
            out.extend(0u64.to_le_bytes());
            number(&mut out, 1);
            out.extend(1u32.to_le_bytes());
            text(&mut out, &[7; 216]);
            number(&mut out, 1);
            out.extend(3u32.to_le_bytes());
            text(&mut out, b"/tmp/x");
            out.extend(5u64.to_le_bytes());
            out.extend(0u32.to_le_bytes());
        }
        let default = [(16 * 4096, 32 * 4096, Vec::new())];
        let mappings = match self.mappings.is_empty() {
            true => &default[..],
            false => &self.mappings,
        };
        number(&mut out, mappings.len() as u64);
        for (start, end, name) in mappings {
            out.extend(start.to_le_bytes());
            out.extend(end.to_le_bytes());
            out.push(1 | 2 | 16);
            out.extend([0; 24]);
            text(&mut out, name);
            text(&mut out, b"");
        }
        out.extend([0; 7]);
        number(&mut out, self.packs.len() as u64);
        self.packs
            .iter()
            .for_each(|pack| out.extend(bytes_of(*pack)));
        number(&mut out, self.runs.len() as u64);
        for &(gap, pages, source, place) in &self.runs {
            number(&mut out, gap);
            number(&mut out, pages);
            number(&mut out, source);
            if source >= 2 {
                number(&mut out, place);
            }
        }
        out
    }

    pub(crate) fn id(&self) -> Hash {
        Hash::of(&self.body([0; 32]))
    }

    pub(crate) fn manifest(&self) -> Vec<u8> {
        let mut out = self.body(bytes_of(self.id()));
        out.extend(bytes_of(Hash::of(&out)));
        out
    }
}

/// A pack of pages, one a frame, as they are.
pub(crate) fn pack(pages: &[Vec<u8>]) -> (Hash, Vec<u8>) {
    let mut out = b"PTPACK\0\x01".to_vec();
    out.extend(4096u32.to_le_bytes());
    out.extend(1u32.to_le_bytes());
    pages.iter().for_each(|page| out.extend(page));
    let offset = out.len();
    out.extend((pages.len() as u32).to_le_bytes());
    out.extend((pages.len() as u32).to_le_bytes());
    for _ in pages {
        out.push(0);
        out.extend(4096u32.to_le_bytes());
    }
    pages
        .iter()
        .for_each(|page| out.extend(bytes_of(Hash::of(page))));
    sealed_pack(out, offset)
}

/// A pack of pages, one a frame, as they are, with an index in blocks; `change` may do something
/// to the blocks before they are hashed.
pub(crate) fn pack_in_blocks(
    pages: &[Vec<u8>],
    block_frames: usize,
    change: impl FnOnce(&mut Vec<Vec<u8>>),
) -> (Hash, Vec<u8>) {
    let mut out = b"PTPACK\0\x03".to_vec();
    out.extend(4096u32.to_le_bytes());
    out.extend(1u32.to_le_bytes());
    pages.iter().for_each(|page| out.extend(page));
    let block = |pages: &[Vec<u8>]| {
        let mut block = Vec::new();
        for _ in pages {
            block.push(0);
            block.extend(4096u32.to_le_bytes());
            block.extend([0; 32]);
        }
        pages
            .iter()
            .for_each(|page| block.extend(bytes_of(Hash::of(page))));
        block
    };
    let mut blocks: Vec<Vec<u8>> = pages.chunks(block_frames).map(block).collect();
    change(&mut blocks);
    blocks.iter().for_each(|block| out.extend(block));
    let offset = out.len();
    for number in [pages.len(), pages.len(), block_frames] {
        out.extend((number as u32).to_le_bytes());
    }
    for (number, block) in (0..).zip(&blocks) {
        let at = 16 + number * block_frames as u64 * 4096;
        out.extend(at.to_le_bytes());
        out.extend(bytes_of(Hash::of(block)));
    }
    sealed_pack(out, offset)
}

/// Such a pack whose blocks say something else than they did, with right hashes.
pub(crate) fn pack_in_strange_blocks(
    pages: &[Vec<u8>],
    random: &mut fastrand::Rng,
) -> (Hash, Vec<u8>) {
    let block_frames = random.usize(1..4);
    pack_in_blocks(pages, block_frames, |blocks| {
        let at = random.usize(0..blocks.len());
        change(&mut blocks[at], 0, random);
    })
}

/// The end of a pack whose index is at an offset.
pub(crate) fn trailer(offset: u64, name: Hash) -> Vec<u8> {
    let mut out = offset.to_le_bytes().to_vec();
    out.extend(bytes_of(name));
    out.extend(b"PTPKEND\n");
    out
}

fn sealed_pack(mut out: Vec<u8>, offset: usize) -> (Hash, Vec<u8>) {
    let offset = offset.min(out.len());
    let mut sealed = out[..16].to_vec();
    sealed.extend(&out[offset..]);
    sealed.extend((offset as u64).to_le_bytes());
    let name = Hash::of(&sealed);
    out.extend(trailer(offset as u64, name));
    (name, out)
}

fn change(bytes: &mut Vec<u8>, from: usize, random: &mut fastrand::Rng) {
    for _ in 0..random.u32(1..4) {
        let at = random.usize(from..bytes.len().max(from + 1));
        match random.u32(0..4) {
            0 if at < bytes.len() => bytes[at] = random.u8(..),
            1 if at < bytes.len() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.usize(0..5)],
            2 if at < bytes.len() => {
                drop(bytes.drain(at..bytes.len().min(at + random.usize(1..20))));
            }
            _ => bytes.insert(at.min(bytes.len()), random.u8(..)),
        }
    }
}

/// A manifest with other bytes and a right hash.
pub(crate) fn mutate(manifest: &[u8], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = manifest[..manifest.len() - 32].to_vec();
    change(&mut bytes, 8, random);
    bytes.extend(bytes_of(Hash::of(&bytes)));
    bytes
}

/// A pack with another index, and the hash that fits it as its name.
pub(crate) fn mutate_pack(pack: &[u8], random: &mut fastrand::Rng) -> (Hash, Vec<u8>) {
    let body = &pack[..pack.len() - 48];
    let offset = u64::from_le_bytes(pack[body.len()..][..8].try_into().unwrap()) as usize;
    let mut bytes = body.to_vec();
    match random.u32(0..4) {
        0 => bytes[8 + random.usize(0..8)] = random.u8(..),
        _ => change(&mut bytes, offset, random),
    }
    sealed_pack(bytes, offset)
}
