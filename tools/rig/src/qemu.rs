//! The emulator: the host's own where it is recent enough, else Debian's, unpacked into the cache.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::apt::Apt;
use super::cache::Cache;
use super::guest::quote;
use super::mirror::Mirror;
use super::process::bound;
use pagetrail_steps::repo::program;
use pagetrail_steps::steps::NotHere;

/// QEMU for one kind of processor.
#[derive(Debug)]
pub(super) struct Emulator {
    program: &'static str,
    package: &'static str,
    /// What of the cache it is unpacked to.
    piece: &'static str,
}

pub(super) const X86: &Emulator = &Emulator {
    program: "qemu-system-x86_64",
    package: "qemu-system-x86",
    piece: "qemu",
};

pub(super) const ARM64: &Emulator = &Emulator {
    program: "qemu-system-aarch64",
    package: "qemu-system-arm",
    piece: "qemu-arm64",
};

/// 7.2 loses guests at random under load (around `cmpxchg16b`); 8 and later were never seen to.
const MAJOR_MIN: u32 = 8;

/// Firmware that starts a kernel.
const DATA: [&str; 3] = ["bios-256k.bin", "kvmvapic.bin", "linuxboot_dma.bin"];

/// An emulator that is ready to run.
#[derive(Debug)]
pub(crate) struct Qemu {
    program: PathBuf,
    /// The cache's piece that it is in; none for the host's own.
    piece: Option<PathBuf>,
}

impl Qemu {
    /// The host's, or the one in the cache; no fetching.
    pub(super) fn existing(cache: &Cache, emulator: &Emulator) -> Option<Self> {
        let own = program(emulator.program).map(|program| Self {
            program,
            piece: None,
        });
        let own = own.filter(|qemu| qemu.version().is_some_and(|version| is_recent(&version)));
        own.or_else(|| Some(Self::unpacked(cache.existing(emulator.piece)?, emulator)))
    }

    /// An emulator, fetched if need be.
    pub(super) fn fetch(cache: &Cache, emulator: &Emulator) -> Result<Self> {
        if let Some(qemu) = Self::existing(cache, emulator)
            && qemu.version().is_some()
        {
            return Ok(qemu);
        }
        // One that no longer starts: the host has lost a library that it used.
        if let Some(broken) = cache.existing(emulator.piece) {
            std::fs::remove_dir_all(broken)?;
        }
        let piece = cache.piece(emulator.piece, |fresh| {
            let offer = Offer::find(cache, emulator)?;
            eprintln!("xtask: fetching QEMU {}", offer.version);
            offer
                .apt
                .fetch_with_missing(&[emulator.package], &offer.suite, fresh)
        })?;
        let qemu = Self::unpacked(piece, emulator);
        qemu.version().context("the unpacked QEMU does not start")?;
        Ok(qemu)
    }

    fn unpacked(piece: PathBuf, emulator: &Emulator) -> Self {
        Self {
            program: piece.join("usr/bin").join(emulator.program),
            piece: Some(piece),
        }
    }

    /// Such as `10.0.2`; none if it does not start.
    pub(super) fn version(&self) -> Option<String> {
        let mut command = self.command();
        let output = command
            .arg("--version")
            .stderr(Stdio::null())
            .output()
            .ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut words = text.split_whitespace();
        words.find(|word| *word == "version")?;
        words.next().map(str::to_owned)
    }

    /// The emulator, bound to our life, without a machine yet.
    pub(super) fn command(&self) -> Command {
        let mut command = bound(&self.program);
        if let Some(piece) = &self.piece {
            command.env("LD_LIBRARY_PATH", library_path(piece));
            for data in ["qemu", "seabios"] {
                command.arg("-L").arg(piece.join("usr/share").join(data));
            }
        }
        command
    }

    /// Writes a program that is this emulator, wherever its libraries and data are.
    pub(super) fn wrap(&self, dir: &Path) -> Result<()> {
        let mut script = "#!/bin/sh\n".to_owned();
        let quoted = |path: &Path| quote(&path.display().to_string());
        if let Some(piece) = &self.piece {
            script += &format!("export LD_LIBRARY_PATH={}\n", quote(&library_path(piece)));
        }
        script += &format!("exec {}", quoted(&self.program));
        if let Some(piece) = &self.piece {
            for data in ["qemu", "seabios"] {
                script += &format!(" -L {}", quoted(&piece.join("usr/share").join(data)));
            }
        }
        script += " \"$@\"\n";
        let wrapper = dir.join(X86.program);
        fs::write(&wrapper, script)?;
        fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755))?;
        Ok(())
    }

    /// All that it takes to start a guest, for a machine that has nothing: a wrapper in `bin`, and
    /// the rest in a directory of its own.
    pub(super) fn files(&self, dir: &Path) -> Result<Vec<(String, PathBuf)>> {
        let mut command = Command::new("ldd");
        command.arg(&self.program);
        if let Some(piece) = &self.piece {
            command.env("LD_LIBRARY_PATH", library_path(piece));
        }
        let output = command.output().context("cannot run ldd")?;
        let listed = String::from_utf8_lossy(&output.stdout).into_owned();
        let libraries = listed
            .split_whitespace()
            .filter(|word| word.starts_with('/'));
        let mut files = vec![("qemu".to_owned(), dir.to_owned())];
        let mut loader = None;
        for library in libraries.map(PathBuf::from) {
            let name = library.file_name().context("a library has a name")?;
            let place = format!("qemu/{}", name.display());
            if place.contains("/ld-linux") {
                loader = Some(place.clone());
            }
            files.push((place, library));
        }
        let loader = loader.context("ldd names no loader")?;
        files.push(("qemu/qemu".to_owned(), self.program.clone()));
        let share = self.piece.as_deref().unwrap_or(Path::new("/"));
        let share = share.join("usr/share");
        for name in DATA {
            let places = ["qemu", "seabios"].map(|package| share.join(package).join(name));
            let found = places.into_iter().find(|place| place.exists());
            let found = found.with_context(|| format!("QEMU's {name} is missing"))?;
            files.push((format!("qemu/{name}"), found));
        }
        let wrapper = dir.join("wrapper");
        let script =
            format!("#!/bin/sh\nexec /{loader} --library-path /qemu /qemu/qemu -L /qemu \"$@\"\n");
        fs::write(&wrapper, script)?;
        files.push((format!("bin/{}", X86.program), wrapper));
        Ok(files)
    }

    /// Where it is from.
    pub(super) fn origin(&self) -> &'static str {
        match self.piece {
            Some(_) => "cached",
            None => "the host's own",
        }
    }
}

/// An emulator that the host's release offers.
#[derive(Debug)]
pub(super) struct Offer {
    apt: Apt,
    pub(super) suite: String,
    pub(super) version: String,
}

impl Offer {
    /// The release's own QEMU, or its backport.
    pub(super) fn find(cache: &Cache, emulator: &Emulator) -> Result<Self> {
        let package = emulator.package;
        let mirror = Mirror::find()?;
        let Some(host) = mirror.host_suite.as_deref() else {
            let reason =
                format!("needs QEMU {MAJOR_MIN} or later; as root: apt-get install {package}");
            return Err(NotHere::error(&reason));
        };
        let backports = format!("{host}-backports");
        let apt = Apt::open(cache.dir.join("apt/qemu"), &mirror, &[host, &backports])?;
        for suite in [host, &backports] {
            if let Some(version) = apt.candidate(package, suite)?
                && is_recent(&version)
            {
                return Ok(Self {
                    apt,
                    suite: suite.to_owned(),
                    version,
                });
            }
        }
        let reason = format!("{host} offers no QEMU {MAJOR_MIN} or later");
        Err(NotHere::error(&reason))
    }
}

fn is_recent(version: &str) -> bool {
    let major = version.split('.').next().unwrap_or_default();
    major.parse().is_ok_and(|major: u32| major >= MAJOR_MIN)
}

fn library_path(piece: &Path) -> String {
    let dirs = ["usr/lib", "lib"].map(|lib| piece.join(lib).join("x86_64-linux-gnu"));
    dirs.map(|dir| dir.display().to_string()).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_a_recent_version() {
        for version in ["8.2.2", "10.0.2+ds-2+deb13u1", "11"] {
            assert!(is_recent(version));
        }
        for version in ["7.2+dfsg", "", "(none)"] {
            assert!(!is_recent(version));
        }
    }
}
