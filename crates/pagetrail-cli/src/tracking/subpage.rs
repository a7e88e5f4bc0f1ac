//! Starting a program on the sub-page allocator: `libpagetrail_alloc.so` by `LD_PRELOAD`, before whatever is there already.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

/// The library's file.
const LIBRARY: &str = "libpagetrail_alloc.so";

/// Where it is, if not where `pagetrail` is.
const PLACE: &str = "PAGETRAIL_ALLOC_LIBRARY";

/// Gives the program a heap whose pages are divided into so many parts.
pub(crate) fn preload(command: &mut Command, parts: &str) -> Result<()> {
    command.envs(variables(parts)?);
    Ok(())
}

/// The environment in which a program has such a heap.
pub(crate) fn variables(parts: &str) -> Result<[(&'static str, OsString); 2]> {
    let mut libraries = OsString::from(library()?);
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        libraries.push(":");
        libraries.push(others);
    }
    Ok([("LD_PRELOAD", libraries), ("PAGETRAIL_PARTS", parts.into())])
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
            "{LIBRARY} is not beside {} or in ../lib; name it in {PLACE}",
            program.display()
        ),
    }
}
