//! [`Engine`]: what it takes to start guests on a machine that has nothing, as files.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::apt::AMD64;
use super::cache::Cache;
use super::kernel::{Kernel, Series};
use super::qemu::{self, Qemu};

/// What it takes to start guests with a kernel of their own on a machine that has nothing.
pub struct Engine {
    /// The guests' kernel.
    pub kernel: Kernel,
    /// The emulator's files, each with its place on that machine.
    pub files: Vec<(String, PathBuf)>,
}

impl Engine {
    /// Fetches what is missing; `dir` is for what is written anew. Unlike a [`Rig`](crate::Rig) it
    /// keeps no other run from starting guests.
    pub fn fetch(series: &Series, dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let cache = Cache::open()?;
        let _fetching = cache.lock()?;
        Ok(Self {
            kernel: series.fetch(&cache, AMD64)?,
            files: Qemu::fetch(&cache, qemu::X86)?.files(dir)?,
        })
    }
}
