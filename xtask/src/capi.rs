//! The C library: what `cargo xtask install` puts where, and `cargo xtask capi`, which tests it as a user of C has it.

mod check;
pub(crate) mod header;
mod install;
mod man;
mod symbols;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::preload;
use crate::repo::Repo;
use crate::steps::Outcome;
pub(crate) use check::check;
pub(crate) use install::copy;
pub(crate) use man::write as write_man_page;

/// `cargo xtask install --prefix DIR`.
pub(crate) fn install(repo: &Repo, args: &[String]) -> Result<()> {
    let prefix = match args {
        [flag, dir] if flag == "--prefix" => PathBuf::from(dir),
        [joined] if joined.starts_with("--prefix=") => PathBuf::from(&joined["--prefix=".len()..]),
        _ => bail!("usage: cargo xtask install --prefix DIR"),
    };
    install::install(repo, &prefix, install::Profile::Release)?;
    preload::install(repo, &prefix)?;
    println!(
        "installed the C library, {} and {} in {}",
        preload::SOFT_DIRTY.library,
        preload::ALLOC.library,
        prefix.display()
    );
    Ok(())
}

/// `cargo xtask capi`; true if all is well.
pub(crate) fn run(repo: &Repo) -> Result<bool> {
    Ok(check(repo)? == Outcome::Passed)
}

/// The version of the workspace, `MAJOR.MINOR.PATCH`.
pub(crate) fn version(root: &Path) -> Result<String> {
    let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
    let package = manifest.split_once("[workspace.package]");
    let (_, package) = package.context("Cargo.toml has no [workspace.package]")?;
    let line = package
        .lines()
        .find_map(|line| line.strip_prefix("version = \""));
    let version = line.and_then(|line| line.strip_suffix('"'));
    Ok(version.context("the workspace has no version")?.to_owned())
}
