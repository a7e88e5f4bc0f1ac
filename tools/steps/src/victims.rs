//! Compiles `tests/victims/*.c`, the self-checking programs that tests watch, to `target/victims/`.
//! One that is newer than its source, the headers, and this program with its flags, stays.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};

use crate::repo::Repo;

const FLAGS: &[&str] = &["-O2", "-Wall", "-Werror", "-pthread"];

/// Compiles the victims that have changed; how many there are.
pub fn build(repo: &Repo) -> Result<usize> {
    let out = repo.victims();
    fs::create_dir_all(&out)?;
    let sources = files(repo, "c")?;
    let mut common = files(repo, "h")?;
    common.push(env::current_exe()?);
    let common = newest(&common)?;
    for source in &sources {
        let name = source.file_stem().context("a victim without a name")?;
        let needed = common.max(changed(source)?);
        if changed(&out.join(name)).is_ok_and(|built| built > needed) {
            continue;
        }
        // A victim of an earlier run may still be executing: replace the file, do not write to it.
        let fresh = out.join(format!(".{}.new", name.display()));
        let status = Command::new("gcc")
            .args(FLAGS)
            .arg("-o")
            .arg(&fresh)
            .arg(source)
            .stdin(Stdio::null())
            .status()
            .context("cannot run gcc")?;
        ensure!(status.success(), "{}: gcc failed", source.display());
        fs::rename(&fresh, out.join(name))?;
    }
    println!("{} programs in {}", sources.len(), out.display());
    Ok(sources.len())
}

/// When a file was last changed.
fn changed(file: &Path) -> Result<SystemTime> {
    let metadata = fs::metadata(file).with_context(|| file.display().to_string())?;
    Ok(metadata.modified()?)
}

fn newest(files: &[PathBuf]) -> Result<SystemTime> {
    let times: Vec<SystemTime> = files
        .iter()
        .map(|file| changed(file))
        .collect::<Result<_>>()?;
    times.into_iter().max().context("no file")
}

/// The files of a kind in `tests/victims`.
fn files(repo: &Repo, kind: &str) -> Result<Vec<PathBuf>> {
    let dir = repo.root.join("tests/victims");
    if !dir.exists() {
        return Ok(Vec::new());
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(&dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == kind) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
