//! Debian's mdBook, with the libraries that it needs, as a tree of files: it runs by the loader in
//! there, on any host. To compile it would take minutes.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::apt::Apt;
use super::cache::Cache;
use super::mirror::Mirror;
use pagetrail_steps::steps::NotHere;

/// The suite whose mdBook is taken.
const SUITE: &str = "stable";
/// The program, relative to the tree.
const PROGRAM: &str = "usr/bin/mdbook";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// The command that runs it, fetched if it is not there yet.
pub fn command() -> Result<Command> {
    if !cfg!(target_arch = "x86_64") {
        return Err(NotHere::error("cargo install mdbook"));
    }
    // A directory of its own: that of guests is locked while one runs.
    let cache = Cache {
        dir: pagetrail_steps::repo::cache("mdbook")?,
    };
    let tree = match cache.existing("tree") {
        Some(tree) => tree,
        None => {
            let _lock = cache.lock()?;
            cache.piece("tree", |fresh| fetch(&cache, fresh))?
        }
    };
    let libraries = tree.join(LIBRARIES);
    let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
    command.arg("--library-path").arg(&libraries);
    command.arg(tree.join(PROGRAM));
    Ok(command)
}

fn fetch(cache: &Cache, fresh: &Path) -> Result<()> {
    let mirror = Mirror::find()?;
    let apt = Apt::open(cache.dir.join("apt").join(SUITE), &mirror, &[SUITE])?;
    let packages = apt.closure("mdbook", SUITE)?;
    let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
    apt.fetch(&packages, SUITE, fresh)
}
