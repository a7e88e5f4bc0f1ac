//! The sources of the Open POSIX Test Suite, from Debian.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::apt::Apt;
use super::cache::Cache;
use super::mirror::Mirror;

/// The unpacked sources, fetched if they are not there yet.
pub fn fetch_sources() -> Result<PathBuf> {
    let cache = Cache::open()?;
    if let Some(piece) = cache.existing("posix-source") {
        // No need to wait for a guest that is running.
        return Ok(piece);
    }
    let _lock = cache.lock()?;
    cache.piece("posix-source", |fresh: &Path| {
        let mirror = Mirror::find()?;
        // Any release has it: it is not maintained any more.
        let suite = mirror.host_suite.as_deref().unwrap_or("stable");
        let sources = cache.dir.join("apt").join(format!("{suite}-source"));
        Apt::open_sources(sources, &mirror, suite)?.unpack_source("posixtestsuite", fresh)
    })
}
