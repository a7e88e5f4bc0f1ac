//! The public items of the libraries that ship, one a line, from their sources.
//!
//! A list is kept beside this crate in `snapshots/`; a test compares, and `cargo xtask api` writes
//! it anew. It is read from the sources, because rustdoc's machine-readable output needs a nightly
//! compiler. So names stand as the source has them, items that a macro makes are missing, and so
//! are auto traits, for which the libraries have tests of their own.

mod render;
mod source;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The libraries whose public items are kept, by their folders in `crates/`.
pub const LIBRARIES: &[&str] = &[
    "pagemap-scan",
    "pagetrail",
    "pagetrail-alloc",
    "pagetrail-checkpoint",
    "pagetrail-guest",
    "pagetrail-probes",
    "pagetrail-restore",
    "pagetrail-stacks",
    "pagetrail-tier",
    "pagetrail-trail",
    "pagetrail-vm",
    "pagetrail-vmm",
];

/// The public items of the library whose `src/lib.rs` is `file`, sorted, one a line.
pub fn list(name: &str, file: &Path) -> Result<String> {
    let tree = source::Tree::read(file)?;
    let mut text = format!("# Public items of {name}; `cargo xtask api` writes this file.\n");
    for line in render::lines(&tree, &name.replace('-', "_")) {
        text.push_str(&line);
        text.push('\n');
    }
    Ok(text)
}

/// Where the list of a library is kept, in the repository whose root is `root`.
pub fn snapshot(root: &Path, library: &str) -> PathBuf {
    root.join(format!("tools/public-api/snapshots/{library}.txt"))
}

/// Writes every list anew.
pub fn update(root: &Path) -> Result<()> {
    for library in LIBRARIES {
        let file = snapshot(root, library);
        fs::write(&file, current(root, library)?)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// What differs between the kept lists and the sources: `-` gone, `+` new; empty if nothing does.
pub fn differences(root: &Path) -> Result<String> {
    let mut out = String::new();
    for library in LIBRARIES {
        let kept = fs::read_to_string(snapshot(root, library)).unwrap_or_default();
        let current = current(root, library)?;
        let (kept, current): (BTreeSet<&str>, BTreeSet<&str>) =
            (kept.lines().collect(), current.lines().collect());
        for line in kept.difference(&current) {
            writeln!(out, "- {line}")?;
        }
        for line in current.difference(&kept) {
            writeln!(out, "+ {line}")?;
        }
    }
    Ok(out)
}

fn current(root: &Path, library: &str) -> Result<String> {
    list(library, &root.join(format!("crates/{library}/src/lib.rs")))
}
