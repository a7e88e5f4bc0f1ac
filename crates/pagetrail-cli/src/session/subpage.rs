//! Starts a program on the sub-page allocator: puts `libpagetrail_alloc.so` first in `LD_PRELOAD`.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

/// File name of the library.
const LIBRARY: &str = "libpagetrail_alloc.so";

/// Environment variable with the path of the library, if it is not next to `pagetrail`.
const PLACE: &str = "PAGETRAIL_ALLOC_LIBRARY";

/// Starts the program with a heap whose pages are divided into `subpages` sub-pages.
pub(crate) fn preload(command: &mut Command, subpages: &str) -> Result<()> {
    command.envs(variables(subpages)?);
    Ok(())
}

/// Environment variables that give a program such a heap.
pub(crate) fn variables(subpages: &str) -> Result<[(&'static str, OsString); 2]> {
    let mut libraries = OsString::from(library()?);
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        libraries.push(":");
        libraries.push(others);
    }
    Ok([
        ("LD_PRELOAD", libraries),
        ("PAGETRAIL_SUBPAGES", subpages.into()),
    ])
}

fn library() -> Result<PathBuf> {
    if let Some(place) = env::var_os(PLACE) {
        let place = PathBuf::from(place);
        if !place.is_file() {
            bail!("{PLACE}: there is no file {}", place.display());
        }
        return Ok(place);
    }
    let program = env::current_exe()?;
    let beside = program.parent().unwrap_or(Path::new("."));
    // As it is built, and as it is installed.
    let places = [beside.join(LIBRARY), beside.join("../lib").join(LIBRARY)];
    match places.iter().find(|place| place.is_file()) {
        Some(place) => Ok(place.clone()),
        None => bail!(
            "{LIBRARY} is not next to {} or in ../lib; set {PLACE} to its path",
            program.display()
        ),
    }
}
