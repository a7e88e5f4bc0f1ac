//! Where things are: the repository's root, cargo's target directory, cargo itself, the cache.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The paths that every task needs.
#[derive(Debug)]
pub struct Repo {
    /// The directory of the workspace manifest.
    pub root: PathBuf,
    /// Cargo's target directory, which need not be under the root.
    pub target: PathBuf,
}

impl Repo {
    /// Asks cargo, so that `CARGO_TARGET_DIR` and its relatives count.
    pub fn find() -> Result<Self> {
        let output = Command::new(cargo())
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stderr(Stdio::inherit())
            .output()
            .context("cannot run cargo")?;
        ensure!(output.status.success(), "cargo metadata failed");
        let metadata: Value = serde_json::from_slice(&output.stdout)?;
        let path = |key: &str| -> Result<PathBuf> {
            let path = metadata[key].as_str();
            Ok(path
                .with_context(|| format!("cargo metadata names no {key}"))?
                .into())
        };
        Ok(Self {
            root: path("workspace_root")?,
            target: path("target_directory")?,
        })
    }

    /// `cargo`, in the root, with no standard input.
    pub fn cargo(&self, args: &[&str]) -> Command {
        let mut command = Command::new(cargo());
        command
            .args(args)
            .current_dir(&self.root)
            .stdin(Stdio::null());
        command
    }

    /// Whether the compiler has the standard library of a target.
    pub fn has_target(&self, target: &str) -> Result<bool> {
        let output = Command::new("rustc")
            .args(["--print", "target-libdir", "--target", target])
            .current_dir(&self.root)
            .output()?;
        let dir = String::from_utf8_lossy(&output.stdout);
        Ok(Path::new(dir.trim()).is_dir())
    }

    /// Where `cargo xtask victims` puts its programs.
    pub fn victims(&self) -> PathBuf {
        self.target.join("victims")
    }
}

/// The cargo that runs us, or the one in `PATH`.
fn cargo() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// A directory for what is expensive to fetch, outside the repository: `name` in
/// `$XDG_CACHE_HOME/pagetrail` or `~/.cache/pagetrail`, made if need be.
pub fn cache(name: &str) -> Result<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))
        .context("neither XDG_CACHE_HOME nor HOME is set")?;
    let dir = base.join("pagetrail").join(name);
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir)
}

/// The full path of a program in `PATH`.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}
