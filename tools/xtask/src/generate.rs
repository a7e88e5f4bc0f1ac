//! Man pages and shell completions: the command writes them from its own definitions, the C
//! library's page is made from its header, and those of the libraries for `LD_PRELOAD` are written
//! by hand. They are build products, made where a package is made, and not checked in: so none can
//! be stale.
//!
//! `pagetrail.h` is checked in, for those who have no cargo; `tidy` and the tests see to it that it
//! is fresh.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::capi;
use crate::notices;
use crate::preload;
use pagetrail_steps::products::{Product, Profile};
use pagetrail_steps::repo::Repo;

/// Writes `pagetrail.h`; builds `pagetrail` and lets it write `man/*.1` and `completions/*` under
/// `dir`, and adds `man/pagetrail.3`, `man/libpagetrail_softdirty.7`, `man/libpagetrail_alloc.7`
/// and `NOTICES.txt`.
pub(crate) fn run(repo: &Repo, dir: Option<&str>) -> Result<()> {
    let dir = match dir {
        Some(dir) => PathBuf::from(dir),
        None => repo.target.join("share"),
    };
    capi::header::write(&repo.root)?;
    let pagetrail = Product::Command.build(repo, Profile::Dev)?;
    let status = Command::new(pagetrail)
        .arg("generate")
        .arg(&dir)
        .stdin(Stdio::null())
        .status()
        .context("cannot run pagetrail")?;
    ensure!(status.success(), "pagetrail generate failed: {status}");
    capi::write_man_page(&repo.root, &dir.join("man"))?;
    preload::write_man_pages(&repo.root, &dir.join("man"))?;
    println!(
        "licences of {} crates in {}",
        notices::write(repo, &dir)?,
        dir.join("NOTICES.txt").display()
    );
    for part in ["man", "completions"] {
        println!(
            "{} files in {}",
            count(&dir.join(part))?,
            dir.join(part).display()
        );
    }
    Ok(())
}

fn count(dir: &Path) -> Result<usize> {
    let files = fs::read_dir(dir)
        .with_context(|| format!("pagetrail generate wrote no {}", dir.display()))?
        .count();
    ensure!(files > 0, "pagetrail generate left {} empty", dir.display());
    Ok(files)
}
