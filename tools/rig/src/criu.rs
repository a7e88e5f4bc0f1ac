//! Debian's CRIU 4, with all libraries that it needs, as a tree of files: it runs by the loader in
//! there, on any host.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::apt::Apt;
use super::cache::Cache;
use super::mirror::Mirror;

/// Where CRIU 4 may be, the best first.
const SUITES: &[&str] = &["stable", "sid"];

/// The tree, fetched if it is not there yet.
pub fn fetch() -> Result<PathBuf> {
    let cache = Cache::open()?;
    if let Some(piece) = cache.existing("criu") {
        // No need to wait for a guest that is running.
        return Ok(piece);
    }
    let _lock = cache.lock()?;
    cache.piece("criu", |fresh: &Path| {
        let mirror = Mirror::find()?;
        for suite in SUITES {
            let apt = Apt::open(cache.dir.join("apt").join(suite), &mirror, &[suite])?;
            let version = apt.candidate("criu", suite)?.unwrap_or_default();
            let major: Option<u32> = version.split('.').next().and_then(|n| n.parse().ok());
            if major.is_some_and(|major| major >= 4) {
                let packages = apt.closure("criu", suite)?;
                let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
                return apt.fetch(&packages, suite, fresh);
            }
        }
        bail!("no suite of {SUITES:?} has CRIU 4")
    })
}
