//! Making files of an image that other programs read: an ELF core ([`core_file`]), or the plain
//! contents ([`raw`]).

pub(crate) mod core_file;
pub(crate) mod raw;

use crate::error::{Error, Result};
use crate::store::image::Image;
use pagetrail::{PageRange, PageSet};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// How much is read and written at a time, in bytes.
const CHUNK_BYTES: u64 = 1 << 20;

/// A new file for its owner alone: it holds all secrets of a program. One that is there already is
/// not touched.
pub(crate) fn create(path: &Path) -> Result<File> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    file.map_err(Error::io(format!("cannot create {}", path.display())))
}

/// Writes the contents of a range at an offset of a file; zero pages stay holes.
pub(crate) fn write_contents(
    image: &Image,
    known: &PageSet,
    range: PageRange,
    file: &File,
    offset: u64,
) -> Result<()> {
    let parts = known.intersection(&PageSet::from_iter([range]));
    let chunks = parts.ranges().iter().flat_map(|part| {
        let starts = (part.start()..part.end()).step_by(CHUNK_BYTES as usize);
        starts.filter_map(|start| PageRange::new(start, part.end().min(start + CHUNK_BYTES)))
    });
    let chunks: Vec<PageRange> = chunks.collect();
    let write = |chunk: PageRange, bytes: &[u8]| {
        file.write_all_at(bytes, offset + chunk.start() - range.start())
            .map_err(Error::io("cannot write the contents"))
    };
    image.read_each(chunks, write)
}
