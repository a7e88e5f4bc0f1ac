//! Debian's libgc: the library, what compiles against it, and its sources, which hold its own
//! tests.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::apt::Apt;
use super::cache::Cache;
use super::mirror::Mirror;

/// Where its parts are, in the cache.
pub struct Libgc {
    /// The directory of `libgc.so.1`.
    pub library: PathBuf,
    /// For `#include <gc.h>`.
    pub headers: PathBuf,
    /// The unpacked sources.
    pub source: PathBuf,
}

/// Fetches what is missing.
pub fn fetch() -> Result<Libgc> {
    let cache = Cache::open()?;
    let piece = match cache.existing("libgc") {
        // No need to wait for a guest that is running.
        Some(piece) => piece,
        None => download(&cache)?,
    };
    let libraries = piece.join("usr/lib");
    let mut library = None;
    for entry in fs::read_dir(&libraries)? {
        let directory = entry?.path();
        if directory.join("libgc.so.1").exists() {
            library = Some(directory);
        }
    }
    Ok(Libgc {
        library: library.with_context(|| format!("no libgc.so.1 in {}", libraries.display()))?,
        headers: piece.join("usr/include"),
        source: piece.join("source"),
    })
}

fn download(cache: &Cache) -> Result<PathBuf> {
    let _lock = cache.lock()?;
    cache.piece("libgc", |fresh: &Path| {
        let mirror = Mirror::find()?;
        let suite = mirror.host_suite.as_deref().unwrap_or("stable");
        let packages = ["libgc1", "libgc-dev", "libatomic-ops-dev"];
        let apt = Apt::open(cache.dir.join("apt").join(suite), &mirror, &[suite])?;
        apt.fetch(&packages, suite, fresh)?;
        let sources = cache.dir.join("apt").join(format!("{suite}-source"));
        Apt::open_sources(sources, &mirror, suite)?.unpack_source("libgc", &fresh.join("source"))
    })
}
