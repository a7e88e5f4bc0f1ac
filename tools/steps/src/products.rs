//! What tasks build and then use: the command, and the libraries that are no Rust libraries.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::repo::Repo;

/// A test that is quickly compiled.
const SMALL_TEST: &str = "snapshots";

/// How it is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// As tests are, which have built most of it already.
    Dev,
    /// As it ships.
    Release,
}

/// Something that a package of this workspace yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    /// `pagetrail`.
    Command,
    /// The library for `LD_PRELOAD` that gives soft-dirty bits.
    SoftDirtyLibrary,
    /// The sub-page allocator, for `LD_PRELOAD`.
    AllocatorLibrary,
    /// The C library, to be linked statically.
    CLibrary,
    /// An example, which keeps its memory in checkpoints: a test kills it.
    KeyValueStore,
}

impl Profile {
    /// Where cargo puts what it has compiled so, below its target directory.
    fn directory(self) -> &'static str {
        match self {
            Self::Dev => "debug",
            Self::Release => "release",
        }
    }
}

impl Product {
    /// The file.
    pub fn file(self) -> &'static str {
        match self {
            Self::Command => "pagetrail",
            Self::SoftDirtyLibrary => "libpagetrail_softdirty.so",
            Self::AllocatorLibrary => "libpagetrail_alloc.so",
            Self::CLibrary => "libpagetrail_capi.a",
            Self::KeyValueStore => "examples/kv",
        }
    }

    fn package(self) -> &'static str {
        match self {
            Self::Command => "pagetrail-cli",
            Self::SoftDirtyLibrary => "pagetrail-preload",
            Self::AllocatorLibrary => "pagetrail-alloc-preload",
            Self::CLibrary => "pagetrail-capi",
            Self::KeyValueStore => "pagetrail-checkpoint",
        }
    }

    /// Has cargo build it.
    pub fn build(self, repo: &Repo, profile: Profile) -> Result<PathBuf> {
        let mut cargo = repo.cargo(&["build", "--quiet"]);
        match (profile, self) {
            // Cargo compiles a dependency once for each set of features, and which features it has
            // depends on all that a command builds. So each builds what tests are built with: the
            // whole workspace, and, for the sake of what tests alone depend on, a test.
            (Profile::Dev, Self::Command) => {
                cargo.args(["--workspace", "--bin", self.file(), "--test", SMALL_TEST])
            }
            (Profile::Dev, Self::KeyValueStore) => {
                cargo.args(["--workspace", "--example", "kv", "--test", SMALL_TEST])
            }
            (Profile::Dev, _) => cargo.args(["--workspace", "--lib", "--test", SMALL_TEST]),
            (Profile::Release, Self::KeyValueStore) => {
                cargo.args(["--release", "--package", self.package(), "--example", "kv"])
            }
            (Profile::Release, _) => cargo.args(["--release", "--package", self.package()]),
        };
        let file = self.file();
        ensure!(cargo.status()?.success(), "{file} does not build");
        Ok(repo.target.join(profile.directory()).join(file))
    }
}
