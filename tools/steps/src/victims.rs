//! Compiles `tests/victims/*.c`, the self-checking programs that tests watch, to `target/victims/`.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::repo::Repo;

const FLAGS: &[&str] = &["-O2", "-Wall", "-Werror", "-pthread"];

/// Compiles all victims; how many there are.
pub fn build(repo: &Repo) -> Result<usize> {
    let out = repo.victims();
    fs::create_dir_all(&out)?;
    let sources = sources(repo)?;
    for source in &sources {
        let name = source.file_stem().context("a victim without a name")?;
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

fn sources(repo: &Repo) -> Result<Vec<PathBuf>> {
    let dir = repo.root.join("tests/victims");
    if !dir.exists() {
        return Ok(Vec::new());
    }
    let mut sources = Vec::new();
    for entry in fs::read_dir(&dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "c") {
            sources.push(path);
        }
    }
    sources.sort();
    Ok(sources)
}
