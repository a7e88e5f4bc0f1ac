//! The suite `disk`: files in the directory for temporary ones (`TMPDIR`), after Aim9's tests of
//! disks and Dbench.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Result, ensure};

use super::{Done, Work, timed};
use crate::random::Random;
use crate::scratch::Scratch;

pub(crate) const ALL: &[Work] = &[
    Work::new("write", write),
    Work::new("read", read),
    Work::new("random-write", random_write),
    Work::new("random-read", random_read),
    Work::new("sync", sync),
    Work::new("files", files),
];

const PIECE: usize = 64 << 10;
const PIECES: u64 = 512;
const PAGE: usize = 4096;

/// A directory of a test's own, which goes with the test; and where the test is killed, with that
/// of the command that has started it.
#[derive(Debug)]
pub(super) struct Files(Scratch);

/// Where the command has made room.
static PLACE: OnceLock<PathBuf> = OnceLock::new();

/// Has all directories of this process be in that one.
pub(super) fn put_files_in(place: &Path) {
    // Only one test is served by a process.
    let _ = PLACE.set(place.into());
}

impl Files {
    pub(super) fn new() -> Result<Self> {
        let place = PLACE.get().cloned();
        let place = place.unwrap_or_else(std::env::temp_dir);
        Scratch::new_in(&place).map(Self)
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    fn file(&self) -> Result<File> {
        let mut options = OpenOptions::new();
        let path = self.path().join("file");
        Ok(options
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(path)?)
    }

    /// A file with as many pieces as tests use.
    fn full(&self) -> Result<File> {
        let mut file = self.file()?;
        for piece in 0..PIECES {
            file.write_all(&[piece as u8; PIECE])?;
        }
        file.sync_all()?;
        file.rewind()?;
        Ok(file)
    }
}

fn write() -> Result<Done> {
    let directory = Files::new()?;
    let mut file = directory.file()?;
    timed(|| {
        for _ in 0..PIECES {
            file.write_all(&[6; PIECE])?;
        }
        Ok(file.metadata()?.len())
    })?
    .is(PIECES * PIECE as u64)
}

fn read() -> Result<Done> {
    const TIMES: u64 = 3;
    let directory = Files::new()?;
    let mut file = directory.full()?;
    let mut piece = vec![0; PIECE];
    timed(|| {
        let mut right = 0;
        for _ in 0..TIMES {
            file.seek(SeekFrom::Start(0))?;
            for number in 0..PIECES {
                file.read_exact(&mut piece)?;
                right += u64::from(piece[PIECE - 1] == number as u8);
            }
        }
        Ok(right)
    })?
    .is(TIMES * PIECES)
}

/// Places of pages in the file, in no order.
fn places(seed: u64) -> impl Iterator<Item = u64> {
    let mut random = Random::new(seed);
    let pages = PIECES as usize * PIECE / PAGE;
    (0..15_000).map(move |_| (random.below(pages) * PAGE) as u64)
}

fn random_write() -> Result<Done> {
    let directory = Files::new()?;
    let file = directory.full()?;
    let done = timed(|| {
        let mut count = 0;
        for place in places(5) {
            file.write_all_at(&[9; PAGE], place)?;
            count += 1;
        }
        Ok(count)
    })?;
    let mut byte = [0];
    for place in places(5) {
        file.read_exact_at(&mut byte, place)?;
        ensure!(byte == [9], "what was written is not there");
    }
    done.is(15_000)
}

fn random_read() -> Result<Done> {
    let directory = Files::new()?;
    let file = directory.full()?;
    let mut page = [0; PAGE];
    timed(|| {
        let mut right = 0;
        for place in places(6) {
            file.read_exact_at(&mut page, place)?;
            right += u64::from(page[0] == (place as usize / PIECE) as u8);
        }
        Ok(right)
    })?
    .is(15_000)
}

/// Each write reaches the disk before the next.
fn sync() -> Result<Done> {
    const TIMES: u64 = 40;
    let directory = Files::new()?;
    let mut file = directory.file()?;
    timed(|| {
        for _ in 0..TIMES {
            file.write_all(&[8; PAGE])?;
            file.sync_data()?;
        }
        Ok(file.metadata()?.len())
    })?
    .is(TIMES * PAGE as u64)
}

/// What a file server does: files are created, written, renamed, looked at, read and removed.
fn files() -> Result<Done> {
    const FILES: u64 = 800;
    let directory = Files::new()?;
    timed(|| {
        let mut bytes = 0;
        for number in 0..FILES {
            let path = directory.path().join(number.to_string());
            fs::write(&path, [1; 2000])?;
            let other = path.with_extension("renamed");
            fs::rename(&path, &other)?;
            bytes += fs::metadata(&other)?.len();
            ensure!(fs::read(&other)?.len() == 2000, "a file has changed");
            fs::remove_file(&other)?;
        }
        Ok(bytes)
    })?
    .is(2000 * FILES)
}
