//! What compiles modules for a kernel of a newer Debian than this one: that release's compiler and
//! headers, as a tree of files in which they run. Nothing is installed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};

use super::apt::Apt;
use super::cache::Cache;
use super::mirror::Mirror;
use pagetrail_steps::steps::NotHere;

/// What the kernel's build calls, besides what its headers depend on.
const TOOLS: &[&str] = &[
    "base-files",
    "bash",
    "binutils",
    "coreutils",
    "dash",
    "diffutils",
    "findutils",
    "grep",
    "make",
    "mawk",
    "sed",
];

/// Where a module's sources appear in the tree.
const SOURCES: &str = "build";

/// A tree for one kernel.
#[derive(Debug)]
pub(super) struct Toolchain {
    tree: PathBuf,
    headers: String,
}

impl Toolchain {
    /// The tree for the kernel `release`, fetched if need be from one of `suites`.
    pub(super) fn fetch(cache: &Cache, suites: &[&str], release: &str) -> Result<Self> {
        let tree = cache.piece(&format!("toolchain-{release}"), |fresh| {
            eprintln!("xtask: fetching the compiler and headers of Linux {release}");
            let mirror = Mirror::find()?;
            let filled = suites.iter().try_fold(Vec::new(), |mut failures, suite| {
                match fill(cache, &mirror, suite, release, fresh) {
                    Ok(()) => Err(()),
                    Err(error) => {
                        failures.push(format!("{error:#}"));
                        Ok(failures)
                    }
                }
            });
            match filled {
                Err(()) => Ok(()),
                Ok(failures) => Err(NotHere::error(&format!(
                    "no compiler for Linux {release}: {}",
                    failures.join("; ")
                ))),
            }
        })?;
        Ok(Self {
            tree,
            headers: format!("/usr/src/linux-headers-{release}"),
        })
    }

    /// A command that runs `make` in the tree for the module in `dir`, outside which it writes
    /// nothing.
    pub(super) fn make(&self, dir: &Path) -> Result<Command> {
        let namespace = namespace()?;
        let mut command = Command::new("nice");
        // The script's `$0` is the tree, `$1` the directory; the rest is make's.
        let script = "mount --rbind /proc \"$0/proc\" && mount --rbind /dev \"$0/dev\" && \
                      mount --bind \"$1\" \"$0/build\" && shift && exec chroot \"$0\" make \"$@\"";
        command
            .arg("unshare")
            .args(namespace)
            .args(["sh", "-c", script]);
        command.arg(&self.tree).arg(dir);
        command.args(["--silent", "-C", &format!("/{SOURCES}")]);
        command.arg(format!("KERNEL={}", self.headers));
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        Ok(command)
    }
}

/// Options of unshare(1) that let us mount and change the root.
fn namespace() -> Result<&'static [&'static str]> {
    let options: [&[&str]; 2] = [&["--mount"], &["--map-root-user", "--mount"]];
    let works = |options: &&[&str]| {
        let mut attempt = Command::new("unshare");
        attempt.args(*options).args(["chroot", "/", "true"]);
        let status = attempt.stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    options.into_iter().find(works).ok_or_else(|| {
        NotHere::error(
            "this kernel's modules are compiled in a tree of its own release, and no mount namespace can be had here",
        )
    })
}

/// Unpacks the packages into `tree`.
fn fill(cache: &Cache, mirror: &Mirror, suite: &str, release: &str, tree: &Path) -> Result<()> {
    // Backports rest on the release's own packages.
    let base = suite.strip_suffix("-backports").unwrap_or(suite);
    let mut suites = vec![base, suite];
    suites.dedup();
    let apt = Apt::open(cache.dir.join("apt/toolchain"), mirror, &suites)?;
    let mut packages = apt.closure(&format!("linux-headers-{release}"), suite)?;
    for tool in TOOLS {
        packages.extend(apt.closure(tool, suite)?);
    }
    packages.sort();
    packages.dedup();
    ensure!(
        packages.iter().any(|package| package.starts_with("gcc-")),
        "{suite} has no linux-headers-{release}"
    );
    let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
    apt.fetch(&packages, suite, tree)?;
    for dir in [SOURCES, "proc", "dev", "tmp"] {
        fs::create_dir_all(tree.join(dir))?;
    }
    // As its package would, once installed.
    symlink("mawk", tree.join("usr/bin/awk"))?;
    Ok(())
}
