//! Hashing many pages at once. A page of 4 KiB is four of BLAKE3's chunks, and a processor does up
//! to sixteen side by side: the chunks of several pages together take half the time of page after
//! page.
//!
//! `blake3::platform`, which does the work, is open but not promised by its crate. The test holds
//! what comes out to [`blake3::hash`], and a program of another shape would not compile.

use super::Hash;
use blake3::IncrementCounter;
use blake3::platform::{MAX_SIMD_DEGREE, Platform};

/// The only size for which it is worth it: larger pages have enough chunks of their own.
const PAGE_BYTES: usize = 4096;
const CHUNK_BYTES: usize = 1024;
const BLOCK_BYTES: usize = 64;
/// Pages at a time.
const LANES: usize = MAX_SIMD_DEGREE;

/// The initial value and the flags of BLAKE3 (its specification, sections 2.2 and 2.1).
const KEY: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];
const CHUNK_START: u8 = 1;
const CHUNK_END: u8 = 2;
const PARENT: u8 = 4;
const ROOT: u8 = 8;

impl Hash {
    /// The hashes of pages, in their order.
    pub(crate) fn of_pages(pages: &[&[u8]]) -> Vec<Self> {
        let mut hashes = vec![Self::default(); pages.len()];
        let platform = Platform::detect();
        for (pages, hashes) in pages.chunks(LANES).zip(hashes.chunks_mut(LANES)) {
            let whole: Option<Vec<&[u8; PAGE_BYTES]>> =
                pages.iter().map(|page| (*page).try_into().ok()).collect();
            match whole {
                Some(pages) if pages.len() > 1 => together(platform, &pages, hashes),
                _ => {
                    for (page, hash) in pages.iter().zip(hashes) {
                        *hash = Self::of(page);
                    }
                }
            }
        }
        hashes
    }
}

/// The four chunks of each page, the two parents above them, the root: each by a lane per page.
fn together(platform: Platform, pages: &[&[u8; PAGE_BYTES]], hashes: &mut [Hash]) {
    let bytes = pages.len() * Hash::BYTES;
    let mut level = vec![[0; 4 * Hash::BYTES]; pages.len()];
    let mut out = [0; LANES * Hash::BYTES];
    for chunk in 0..4 {
        let inputs: Vec<&[u8; CHUNK_BYTES]> = pages
            .iter()
            .filter_map(|page| page[chunk * CHUNK_BYTES..].first_chunk())
            .collect();
        platform.hash_many(
            &inputs,
            &KEY,
            chunk as u64,
            IncrementCounter::No,
            0,
            CHUNK_START,
            CHUNK_END,
            &mut out[..bytes],
        );
        place(&out, &mut level, chunk);
    }
    for parent in 0..2 {
        let inputs = blocks(&level, 2 * parent);
        parents(platform, &inputs, PARENT, &mut out[..bytes]);
        // The two children of this parent are done with, and its place is not after theirs.
        place(&out, &mut level, parent);
    }
    parents(
        platform,
        &blocks(&level, 0),
        PARENT | ROOT,
        &mut out[..bytes],
    );
    for (hash, value) in hashes.iter_mut().zip(out.chunks_exact(Hash::BYTES)) {
        hash.0.copy_from_slice(value);
    }
}

fn parents(platform: Platform, inputs: &[&[u8; BLOCK_BYTES]], flags: u8, out: &mut [u8]) {
    platform.hash_many(inputs, &KEY, 0, IncrementCounter::No, flags, 0, 0, out);
}

/// Puts a value of each page to its place among the page's values.
fn place(values: &[u8], level: &mut [[u8; 4 * Hash::BYTES]], at: usize) {
    for (own, value) in level.iter_mut().zip(values.chunks_exact(Hash::BYTES)) {
        own[at * Hash::BYTES..][..Hash::BYTES].copy_from_slice(value);
    }
}

/// Of each page, the block of two values that begins with the one at `at`.
fn blocks(level: &[[u8; 4 * Hash::BYTES]], at: usize) -> Vec<&[u8; BLOCK_BYTES]> {
    let blocks = level
        .iter()
        .filter_map(|own| own[at * Hash::BYTES..].first_chunk());
    blocks.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_together_have_the_hashes_that_they_have_alone() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut bytes = vec![0; 50 * PAGE_BYTES];
        random.fill(&mut bytes);
        for size in [1, 1000, 4096, 8192] {
            let pages: Vec<&[u8]> = bytes.chunks_exact(size).take(100).collect();
            let alone: Vec<Hash> = pages.iter().map(|page| Hash::of(page)).collect();
            for count in [0, 1, 2, 3, 15, 16, 17, 25] {
                let pages = &pages[..count];
                assert_eq!(Hash::of_pages(pages), alone[..count], "{count} of {size}");
            }
        }
    }
}
