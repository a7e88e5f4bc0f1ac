//! Programs after those of the OoH paper: GCBench, the Phoenix suite and tkrzw's engines.
//!
//! They have the same data structures in the same proportions, and touch them in the same order;
//! what they compute is left out. Sizes are the caller's; `PAPER_SIZES` has the paper's.

use super::Op;
use super::generators::{access, rounds_of};
use super::random::Random;
use crate::machine::PAGE_BYTES;

/// Bytes that one step of a program over a file or an array goes on.
const STRIDE: u64 = PAGE_BYTES / 8;

/// Two thirds live long; the rest is a nursery, allocated front to back in objects of 64 bytes.
pub(super) fn gcbench(pages: u64, rounds: u32, mut random: Random) -> impl Iterator<Item = Op> {
    let old = (pages * 2 / 3).clamp(1, pages);
    let nursery_objects = (pages - old) * (PAGE_BYTES / 64);
    rounds_of(rounds, nursery_objects.max(1), move |_, object| {
        // Every 64th object is linked from an old one.
        if object % 64 == 63 || nursery_objects == 0 {
            return access(true, random.below(old * PAGE_BYTES));
        }
        access(true, old * PAGE_BYTES + object * 64)
    })
}

/// A hash table: buckets in the first eighth, records of 256 bytes after them. A request reads a
/// bucket, then writes the record of its key; one in eight is a new key, which changes the bucket,
/// too.
pub(super) fn key_value(pages: u64, rounds: u32, mut random: Random) -> impl Iterator<Item = Op> {
    let bucket_bytes = (pages / 8).max(1) * PAGE_BYTES;
    let records = (pages * PAGE_BYTES).saturating_sub(bucket_bytes) / 256;
    let mut key = 0;
    let mut is_new = false;
    rounds_of(rounds, pages * 3, move |_, i| {
        let bucket = |key: u64| key.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (bucket_bytes / 8) * 8;
        match i % 3 {
            0 => {
                key = random.below(records.max(1));
                is_new = random.below(8) == 0;
                access(false, bucket(key))
            }
            1 if records > 0 => access(true, bucket_bytes + key * 256),
            1 => access(true, bucket(key)),
            _ => access(is_new, bucket(key)),
        }
    })
}

/// A tree of nodes of a page: a root, a level of 1/64 of the pages, leaves. A request reads the way
/// down and writes a record of its leaf; one in 64 splits the leaf, which writes the node above and
/// another leaf.
pub(super) fn key_value_tree(
    pages: u64,
    rounds: u32,
    mut random: Random,
) -> impl Iterator<Item = Op> {
    let inner = (pages / 64).max(1);
    let leaves = pages.saturating_sub(1 + inner).max(1);
    let node = move |page: u64| page.min(pages - 1) * PAGE_BYTES;
    let mut leaf = 0;
    let mut splits = false;
    rounds_of(rounds, pages * 5, move |_, i| match i % 5 {
        0 => {
            leaf = random.below(leaves);
            splits = random.below(64) == 0;
            access(false, random.below(PAGE_BYTES))
        }
        1 => access(false, node(1 + leaf % inner)),
        2 => access(true, node(1 + inner + leaf) + random.below(PAGE_BYTES)),
        3 => access(splits, node(1 + leaf % inner)),
        _ => access(splits, node(1 + inner + random.below(leaves))),
    })
}

/// Eight reads of each page of the file, and a count in the last page (of 768 counters) for each.
pub(super) fn histogram(pages: u64, rounds: u32, mut random: Random) -> impl Iterator<Item = Op> {
    let counters = (pages - 1) * PAGE_BYTES;
    let file_pages = (pages - 1).max(1);
    rounds_of(rounds, file_pages * 16, move |_, i| {
        if i % 2 == 0 {
            return access(false, i / 2 * STRIDE);
        }
        access(true, counters + random.below(768) * 4)
    })
}

/// Points in the first eight tenths, the cluster of each in the next, sums of the clusters in the
/// last. A round goes over all points: read one, note its cluster, add to its sums.
pub(super) fn kmeans(pages: u64, rounds: u32, mut random: Random) -> impl Iterator<Item = Op> {
    let point_bytes = (pages * 8 / 10).max(1) * PAGE_BYTES;
    let note_bytes = (pages / 10).max(1) * PAGE_BYTES;
    let total = pages * PAGE_BYTES;
    let notes = point_bytes.min(total - PAGE_BYTES);
    let sums = (notes + note_bytes).min(total - PAGE_BYTES);
    rounds_of(rounds, point_bytes / STRIDE * 3, move |_, i| {
        let point = i / 3;
        match i % 3 {
            0 => access(false, point * STRIDE),
            1 => access(true, notes + point * 8 % note_bytes.min(total - notes)),
            _ => access(true, sums + random.below(total - sums)),
        }
    })
}

/// Three matrices. For each step of the product: a row of the first, a column of the second, which
/// takes a page for each element, and a sum written to the third. A round is one product.
pub(super) fn matrix_multiply(
    pages: u64,
    rounds: u32,
    mut random: Random,
) -> impl Iterator<Item = Op> {
    let matrix = (pages / 3).max(1);
    let second = matrix.min(pages - 1);
    let third = (2 * matrix).min(pages - 1);
    let elements = (pages - third) * 8;
    let mut column = 0;
    rounds_of(rounds, elements * 6, move |_, i| {
        let (element, step) = (i / 6, i % 6);
        match step {
            0 => {
                column = random.below(PAGE_BYTES / 8) * 8;
                access(false, element * STRIDE % (matrix * PAGE_BYTES))
            }
            1..=4 => {
                let page = (element * 4 + step) % (third - second).max(1);
                access(false, (second + page) * PAGE_BYTES + column)
            }
            _ => access(true, third * PAGE_BYTES + element * STRIDE),
        }
    })
}

/// A matrix in the first three quarters: a pass for the means of its rows, and one for sampled
/// pairs of rows, whose covariance is written to the last quarter.
pub(super) fn pca(pages: u64, rounds: u32, mut random: Random) -> impl Iterator<Item = Op> {
    let matrix = (pages * 3 / 4).max(1) * PAGE_BYTES;
    let results = matrix.min((pages - 1) * PAGE_BYTES);
    let result_bytes = pages * PAGE_BYTES - results;
    let first_pass = matrix / STRIDE;
    rounds_of(rounds, first_pass * 4, move |_, i| {
        let Some(pair) = i.checked_sub(first_pass) else {
            return access(false, i * STRIDE);
        };
        match pair % 3 {
            2 => access(true, results + pair / 3 * 8 % result_bytes),
            _ => access(false, random.below(matrix)),
        }
    })
}

/// A pass over a file that is hardly ever interrupted by a match, noted in the last page.
pub(super) fn string_match(
    pages: u64,
    rounds: u32,
    mut random: Random,
) -> impl Iterator<Item = Op> {
    let file_pages = (pages - 1).max(1);
    rounds_of(rounds, file_pages * 8, move |_, i| {
        match random.below(1024) {
            0 => access(true, (pages - 1) * PAGE_BYTES + random.below(PAGE_BYTES)),
            _ => access(false, i * STRIDE),
        }
    })
}

/// A file in the first half, words and their counts after it: of the words that are met, a few
/// are met often.
pub(super) fn word_count(pages: u64, rounds: u32, mut random: Random) -> impl Iterator<Item = Op> {
    let file = (pages / 2).max(1) * PAGE_BYTES;
    let words = file.min((pages - 1) * PAGE_BYTES);
    let word_bytes = pages * PAGE_BYTES - words;
    rounds_of(rounds, file / STRIDE * 2, move |_, i| {
        if i % 2 == 0 {
            return access(false, i / 2 * STRIDE);
        }
        // The smallest of three numbers: low ones come more often.
        let word = (0..3).map(|_| random.below(word_bytes)).min();
        access(true, words + word.unwrap_or(0))
    })
}
