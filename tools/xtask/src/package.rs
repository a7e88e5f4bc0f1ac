//! `cargo xtask package`: what `cargo xtask install` puts under a prefix, as a package for Debian
//! and its descendants.
//!
//! The package is for systems at least as new as this one: it depends on this machine's version of
//! the C library. `DEBFULLNAME` and `DEBEMAIL` name who makes it, as for Debian's own tools.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::{capi, notices};
use pagetrail_steps::repo::{Repo, program};
use pagetrail_steps::steps::NotHere;

/// Builds `target/deb/pagetrail_VERSION_ARCHITECTURE.deb`.
pub(crate) fn run(repo: &Repo) -> Result<()> {
    for tool in ["dpkg-deb", "dpkg", "strip", "getconf"] {
        if program(tool).is_none() {
            return Err(NotHere::error(&format!(
                "no {tool}; on Debian: apt install dpkg binutils libc-bin"
            )));
        }
    }
    let out = repo.target.join("deb");
    let root = out.join("root");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    let usr = root.join("usr");
    capi::install_to(repo, &usr)?;
    let binaries = binaries(&usr)?;
    ensure!(
        Command::new("strip")
            .arg("--strip-unneeded")
            .args(&binaries)
            .status()?
            .success(),
        "strip failed"
    );
    // Where Debian's zsh looks for those of packages.
    let zsh = usr.join("share/zsh");
    fs::rename(zsh.join("site-functions"), zsh.join("vendor-completions"))?;
    documents(repo, &usr.join("share/doc/pagetrail"))?;

    let version = capi::version(&repo.root)?;
    let architecture = said(Command::new("dpkg").arg("--print-architecture"))?;
    let libc = said(Command::new("getconf").arg("GNU_LIBC_VERSION"))?;
    let libc = libc.strip_prefix("glibc ").unwrap_or(&libc);
    let debian = root.join("DEBIAN");
    fs::create_dir_all(&debian)?;
    let size = size(&usr)?.div_ceil(1024);
    let named = |variable, unnamed: &str| std::env::var(variable).unwrap_or(unnamed.to_owned());
    let maintainer = format!(
        "{} <{}>",
        named("DEBFULLNAME", "pagetrail"),
        named("DEBEMAIL", "root@localhost")
    );
    let control = control(&version, &architecture, &maintainer, libc, size);
    fs::write(debian.join("control"), control)?;
    open_to_all(&root)?;

    let package = out.join(format!("pagetrail_{version}_{architecture}.deb"));
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", "--build"]);
    let status = build.arg(&root).arg(&package).status()?;
    ensure!(status.success(), "dpkg-deb failed: {status}");
    println!("{}", package.display());
    Ok(())
}

/// The fields of `DEBIAN/control`: deb-control(5).
fn control(
    version: &str,
    architecture: &str,
    maintainer: &str,
    libc: &str,
    kibibytes: u64,
) -> String {
    format!(
        "Package: pagetrail\n\
         Version: {version}\n\
         Architecture: {architecture}\n\
         Maintainer: {maintainer}\n\
         Installed-Size: {kibibytes}\n\
         Depends: libc6 (>= {libc}), libgcc-s1\n\
         Section: devel\n\
         Priority: optional\n\
         Description: tracks the dirty pages of running programs\n \
         Records which pages a program writes, takes checkpoints of its memory, and keeps\n \
         its hot pages in fast memory. With a C library and two libraries for LD_PRELOAD.\n"
    )
}

/// The licences, ours and those of what is linked.
fn documents(repo: &Repo, dir: &Path) -> Result<()> {
    notices::write(repo, dir)?;
    let mut copyright = String::from("pagetrail is licensed under MIT or Apache-2.0.\n");
    for name in ["LICENSE-MIT", "LICENSE-APACHE"] {
        let text = fs::read_to_string(repo.root.join(name)).context(name)?;
        copyright += &format!("\n{}\n{text}", "=".repeat(80));
    }
    Ok(fs::write(dir.join("copyright"), copyright)?)
}

/// The command and the shared libraries.
fn binaries(usr: &Path) -> Result<Vec<PathBuf>> {
    let mut found = vec![usr.join("bin/pagetrail")];
    for path in files(&usr.join("lib"))? {
        if path.to_string_lossy().contains(".so") {
            found.push(path);
        }
    }
    Ok(found)
}

/// Every file under `dir`, but no link.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
            let entry = entry?;
            match entry.file_type()? {
                kind if kind.is_dir() => dirs.push(entry.path()),
                kind if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    files.sort();
    Ok(files)
}

fn size(dir: &Path) -> Result<u64> {
    let sizes = files(dir)?
        .into_iter()
        .map(|path| Ok(fs::metadata(path)?.len()));
    sizes.sum()
}

/// Modes as packages have them, whatever this user's umask is.
fn open_to_all(root: &Path) -> Result<()> {
    let mut dirs = vec![root.to_owned()];
    for path in files(root)? {
        let mode = fs::metadata(&path)?.permissions().mode();
        let mode = if mode & 0o100 == 0 { 0o644 } else { 0o755 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        let above = path.ancestors().skip(1).take_while(|dir| *dir != root);
        dirs.extend(above.map(Path::to_owned));
    }
    for dir in dirs {
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// What a command prints.
fn said(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "{command:?}: {}", output.status);
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field is a line, and a longer text goes on in lines that begin with a blank.
    #[test]
    fn the_fields_are_well_formed() {
        let text = control("0.1.0", "amd64", "A B <a@example.org>", "2.36", 12);
        assert!(text.contains("\nDepends: libc6 (>= 2.36), libgcc-s1\n"));
        assert!(text.ends_with('\n'));
        for line in text.lines() {
            let field = line.split_once(": ").map(|(name, _)| name);
            let is_field = field.is_some_and(|name| !name.contains(' '));
            assert!(is_field != line.starts_with(' '), "{line}");
        }
    }

    #[test]
    fn a_package_can_be_read_by_all() {
        let dir = tempfile::tempdir().unwrap();
        let (sub, file) = (dir.path().join("a/b"), dir.path().join("a/b/c"));
        fs::create_dir_all(&sub).unwrap();
        fs::write(&file, "text").unwrap();
        for (path, mode) in [(&file, 0o600), (&sub, 0o700)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        open_to_all(dir.path()).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(&sub)), (0o644, 0o755));
        assert_eq!(size(dir.path()).unwrap(), 4);
    }
}
