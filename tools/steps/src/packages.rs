//! The system packages that the tests use: which, why, and how they get here.
//!
//! What is missing is installed when we may (root on Debian or its relatives), and named otherwise.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::repo::program;
use crate::steps::Outcome;

/// A package of Debian and its relatives.
struct Package {
    name: &'static str,
    /// A program in `PATH`, or an absolute path, that shows that it is here (however it came).
    shown_by: &'static str,
    /// What the tests do with it.
    why: &'static str,
}

/// Everything that a test wants from the system, beyond a Rust toolchain.
const PACKAGES: &[Package] = &[
    Package {
        name: "gcc",
        shown_by: "gcc",
        why: "compiles tests/victims and the tests of the C library",
    },
    Package {
        name: "libc6-dev",
        shown_by: "/usr/include/stdio.h",
        why: "compiles tests/victims",
    },
    Package {
        name: "gcc-aarch64-linux-gnu",
        shown_by: "aarch64-linux-gnu-gcc",
        why: "compiles what is in C for aarch64, where the workspace must build",
    },
    Package {
        name: "libc6-dev-arm64-cross",
        shown_by: "/usr/aarch64-linux-gnu/include/stdio.h",
        why: "compiles what is in C for aarch64",
    },
    Package {
        name: "g++",
        shown_by: "g++",
        why: "compiles pagetrail.h as C++",
    },
    Package {
        name: "pkg-config",
        shown_by: "pkg-config",
        why: "finds the C library, as its users do",
    },
    Package {
        name: "valgrind",
        shown_by: "valgrind",
        why: "runs the tests of the C library",
    },
    Package {
        name: "python3",
        shown_by: "python3",
        why: "is attached to while it computes",
    },
    Package {
        name: "redis-server",
        shown_by: "redis-server",
        why: "is attached to under load",
    },
    Package {
        name: "bsdutils",
        shown_by: "script",
        why: "gives a program a terminal, natively and as a guest of KVM",
    },
    Package {
        name: "redis-tools",
        shown_by: "redis-benchmark",
        why: "makes that load",
    },
    Package {
        name: "tcl",
        shown_by: "tclsh",
        why: "runs Redis' own tests",
    },
    Package {
        name: "sqlite3",
        shown_by: "sqlite3",
        why: "is measured under adaptive, and runs as a guest of KVM",
    },
    Package {
        name: "tkrzw-utils",
        shown_by: "tkrzw_dbm_perf",
        why: "is measured under adaptive, and runs as a guest of KVM",
    },
    Package {
        name: "tokyocabinet-bin",
        shown_by: "tchmgr",
        why: "runs as a guest of KVM",
    },
    Package {
        name: "gdb",
        shown_by: "gdb",
        why: "opens cores made of checkpoints",
    },
];

/// Installs what is missing, or says what to install.
pub fn ensure_installed() -> Result<Outcome> {
    let missing = missing();
    if missing.is_empty() {
        return Ok(Outcome::Passed);
    }
    for package in &missing {
        println!("missing: {} ({})", package.name, package.why);
    }
    let names: Vec<&str> = missing.iter().map(|package| package.name).collect();
    if !is_root() || program("apt-get").is_none() {
        let reason = format!("as root: apt-get install {}", names.join(" "));
        return Ok(Outcome::NotHere(reason));
    }
    install(&names)?;
    Ok(Outcome::Passed)
}

fn missing() -> Vec<&'static Package> {
    let here = |package: &&Package| match package.shown_by.starts_with('/') {
        true => Path::new(package.shown_by).exists(),
        false => program(package.shown_by).is_some(),
    };
    PACKAGES.iter().filter(|package| !here(package)).collect()
}

fn install(names: &[&str]) -> Result<()> {
    let _policy = NoServices::declare(Path::new("/usr/sbin/policy-rc.d"))?;
    apt_get(&["update", "--quiet"])?;
    let options = ["install", "--quiet", "--yes", "--no-install-recommends"];
    apt_get(&[&options, names].concat())
}

fn apt_get(args: &[&str]) -> Result<()> {
    let status = Command::new("apt-get")
        // Another apt may be at work on a machine that has just started.
        .args(["-o", "DPkg::Lock::Timeout=120"])
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .status()
        .context("cannot run apt-get")?;
    ensure!(status.success(), "apt-get {} failed: {status}", args[0]);
    Ok(())
}

/// True for the superuser: `/proc/self` belongs to our effective user.
pub fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

/// While this lives, packages do not start the services that they bring (tests start their own).
///
/// The file is Debian's interface for that:
/// `/usr/share/doc/init-system-helpers/README.policy-rc.d`.
struct NoServices {
    /// None where the machine has a policy of its own.
    file: Option<PathBuf>,
}

impl NoServices {
    fn declare(file: &Path) -> Result<Self> {
        if file.exists() {
            return Ok(Self { file: None });
        }
        let policy = || -> std::io::Result<()> {
            fs::write(file, "#!/bin/sh\nexit 101\n")?;
            fs::set_permissions(file, fs::Permissions::from_mode(0o755))
        };
        policy().with_context(|| format!("cannot write {}", file.display()))?;
        let file = Some(file.to_owned());
        Ok(Self { file })
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if let Some(file) = &self.file
            && let Err(error) = fs::remove_file(file)
        {
            eprintln!("xtask: remove {} yourself: {error}", file.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_lives_as_long_as_the_guard() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("policy-rc.d");
        let guard = NoServices::declare(&file).unwrap();
        let status = Command::new(&file).status().unwrap();
        assert_eq!(status.code(), Some(101), "101 forbids the action");
        drop(guard);
        assert!(!file.exists());
    }

    #[test]
    fn a_policy_of_the_machine_stays() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("policy-rc.d");
        fs::write(&file, "theirs").unwrap();
        drop(NoServices::declare(&file).unwrap());
        assert_eq!(fs::read_to_string(&file).unwrap(), "theirs");
    }
}
