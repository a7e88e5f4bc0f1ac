//! What tasks build and then use: the command, and the libraries that are no Rust libraries.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::repo::Repo;

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
        }
    }

    fn package(self) -> &'static str {
        match self {
            Self::Command => "pagetrail-cli",
            Self::SoftDirtyLibrary => "pagetrail-preload",
            Self::AllocatorLibrary => "pagetrail-alloc-preload",
            Self::CLibrary => "pagetrail-capi",
        }
    }

    /// Has cargo build it.
    pub fn build(self, repo: &Repo, profile: Profile) -> Result<PathBuf> {
        let mut cargo = repo.cargo(&["build", "--quiet"]);
        match (profile, self) {
            // A package by itself has other features of its dependencies than the workspace that
            // was just tested, so cargo would compile all of these once more.
            (Profile::Dev, Self::Command) => cargo.args(["--workspace", "--bin", self.file()]),
            (Profile::Dev, _) => cargo.args(["--workspace", "--lib"]),
            (Profile::Release, _) => cargo.args(["--release", "--package", self.package()]),
        };
        let file = self.file();
        ensure!(cargo.status()?.success(), "{file} does not build");
        Ok(repo.target.join(profile.directory()).join(file))
    }
}
