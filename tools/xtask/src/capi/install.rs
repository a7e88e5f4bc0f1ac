//! Puts the C library under a prefix: header, shared and static library, pkg-config file, man page.
//!
//! Cargo makes the static library. The shared one is linked from it here, with its soname and the
//! version script: rustc gives its own shared libraries a version script, and GNU ld takes no
//! second.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::header;
use pagetrail_steps::products::{Product, Profile};
use pagetrail_steps::repo::{Repo, program};
use pagetrail_steps::steps::NotHere;

/// What the static library needs from the system: `rustc --print native-static-libs`.
const PRIVATE_LIBRARIES: &str = "-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc";

/// The libraries for programs that link statically: of what unwinds the stack, `libgcc_s` is shared
/// only.
const STATIC_LIBRARIES: &str = "-lgcc_eh -lutil -lrt -lpthread -lm -ldl -lc";

/// Builds and installs; nothing outside of `prefix` changes.
pub(super) fn install(repo: &Repo, prefix: &Path, profile: Profile) -> Result<()> {
    if program("gcc").is_none() {
        return Err(NotHere::error("no gcc to link the shared library"));
    }
    let version = super::version(&repo.root)?;
    let dir = |name: &str| -> Result<PathBuf> {
        let dir = prefix.join(name);
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(dir)
    };
    let archive = Product::CLibrary.build(repo, profile)?;
    let lib = dir("lib")?;
    let own = lib.join("libpagetrail.a");
    copy(&archive, &own)?;
    if profile == Profile::Release {
        // That of the standard library and all dependencies, four times the size of the code.
        let status = Command::new("strip")
            .arg("--strip-debug")
            .arg(&own)
            .status()?;
        ensure!(status.success(), "strip failed: {status}");
    }
    link_shared(repo, &own, &lib, &version)?;
    copy(
        &header::path(&repo.root),
        &dir("include")?.join("pagetrail.h"),
    )?;
    copy(
        &repo
            .root
            .join("crates/pagetrail-guest/include/pagetrail_guest.h"),
        &dir("include")?.join("pagetrail_guest.h"),
    )?;
    fs::write(
        dir("lib/pkgconfig")?.join("pagetrail.pc"),
        pkg_config(&version),
    )?;
    super::man::write(&repo.root, &dir("share/man/man3")?)
}

/// The first number of the version: what programs are linked to.
fn soname(version: &str) -> String {
    let major = version.split('.').next().unwrap_or(version);
    format!("libpagetrail.so.{major}")
}

fn link_shared(repo: &Repo, archive: &Path, lib: &Path, version: &str) -> Result<()> {
    let full = format!("libpagetrail.so.{version}");
    let soname = soname(version);
    let script = header::crate_dir(&repo.root).join("pagetrail.map");
    let status = Command::new("gcc")
        .args(["-shared", "-o"])
        .arg(lib.join(&full))
        .arg(format!("-Wl,-soname,{soname}"))
        .arg(format!("-Wl,--version-script={}", script.display()))
        .args(["-Wl,--gc-sections", "-Wl,-z,defs,-z,relro,-z,now"])
        .arg("-Wl,--whole-archive")
        .arg(archive)
        .arg("-Wl,--no-whole-archive,--as-needed")
        .args(PRIVATE_LIBRARIES.split(' '))
        .stdin(Stdio::null())
        .status()
        .context("cannot run gcc")?;
    ensure!(status.success(), "the shared library does not link");
    for name in [soname.as_str(), "libpagetrail.so"] {
        let link = lib.join(name);
        if link.is_symlink() {
            fs::remove_file(&link)?;
        }
        symlink(&full, &link).with_context(|| format!("cannot make {}", link.display()))?;
    }
    Ok(())
}

/// It finds the rest from where it lies itself, so that a prefix may be moved.
fn pkg_config(version: &str) -> String {
    format!(
        "prefix=${{pcfiledir}}/../..\n\
         includedir=${{prefix}}/include\n\
         libdir=${{prefix}}/lib\n\
         \n\
         Name: pagetrail\n\
         Description: Tells which memory a program wrote, with the cheapest technique the machine offers\n\
         Version: {version}\n\
         Cflags: -I${{includedir}}\n\
         Libs: -L${{libdir}} -lpagetrail\n\
         Libs.private: {STATIC_LIBRARIES}\n"
    )
}

/// Replaces the file, which a running program may have mapped, instead of writing to it.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_file(to).with_context(|| format!("cannot replace {}", to.display()))?;
    }
    fs::copy(from, to)
        .map(drop)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soname_has_one_number() {
        assert_eq!(soname("0.1.0"), "libpagetrail.so.0");
        assert_eq!(soname("12.0.3"), "libpagetrail.so.12");
    }
}
