//! Debian packages of any suite, without touching the host: an apt configuration of its own, and
//! `dpkg-deb --extract` into a directory. Nothing is installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::cache::Cache;
use super::mirror::Mirror;
use super::process::bound;
use pagetrail_steps::repo::program;
use pagetrail_steps::steps::NotHere;

/// A processor, as Debian names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Architecture(pub(super) &'static str);

/// That of the host.
pub(super) const AMD64: Architecture = Architecture("amd64");
pub(super) const ARM64: Architecture = Architecture("arm64");

impl Architecture {
    /// The name of a piece of the cache, or of a directory in it.
    pub(super) fn piece(self, name: &str) -> String {
        match self {
            AMD64 => name.to_owned(),
            Self(other) => format!("{name}-{other}"),
        }
    }
}

/// apt, looking at some suites of one mirror.
#[derive(Debug)]
pub(super) struct Apt {
    dir: PathBuf,
    suites: Vec<String>,
}

impl Apt {
    /// Configures apt in `dir` and fetches the lists of the suites.
    pub(super) fn open(dir: PathBuf, mirror: &Mirror, suites: &[&str]) -> Result<Self> {
        Self::open_kind("deb", AMD64, dir, mirror, suites)
    }

    /// The packages of one suite for an architecture, by lists of their own.
    pub(super) fn open_for(
        architecture: Architecture,
        cache: &Cache,
        mirror: &Mirror,
        suite: &str,
    ) -> Result<Self> {
        let dir = cache.dir.join("apt").join(architecture.piece(suite));
        Self::open_kind("deb", architecture, dir, mirror, &[suite])
    }

    /// Lists of source packages, in a directory of their own: their lists are large.
    pub(super) fn open_sources(dir: PathBuf, mirror: &Mirror, suite: &str) -> Result<Self> {
        Self::open_kind("deb-src", AMD64, dir, mirror, &[suite])
    }

    fn open_kind(
        kind: &str,
        architecture: Architecture,
        dir: PathBuf,
        mirror: &Mirror,
        suites: &[&str],
    ) -> Result<Self> {
        for tool in ["apt-get", "dpkg-deb", "nice", "setpriv"] {
            if program(tool).is_none() {
                return Err(NotHere::error(&format!("there is no {tool}")));
            }
        }
        fs::create_dir_all(dir.join("lists/partial"))?;
        fs::create_dir_all(dir.join("downloads"))?;
        fs::write(dir.join("status"), "")?;
        let source = |suite: &&str| {
            let keyring = mirror.keyring.display();
            format!("{kind} [signed-by={keyring}] {} {suite} main\n", mirror.uri)
        };
        let sources: String = suites.iter().map(source).collect();
        fs::write(dir.join("sources.list"), sources)?;
        let mut text = configuration(&dir)?;
        if architecture != AMD64 {
            let name = architecture.0;
            text += &format!("APT::Architecture \"{name}\";\nAPT::Architectures \"{name}\";\n");
        }
        fs::write(dir.join("apt.conf"), text)?;
        let apt = Self {
            dir,
            suites: suites.iter().map(|suite| (*suite).to_owned()).collect(),
        };
        apt.run("apt-get", &["update", "-o", "APT::Update::Error-Mode=any"])?;
        Ok(apt)
    }

    /// The version of `package` that `suite` offers, without epoch.
    pub(super) fn candidate(&self, package: &str, suite: &str) -> Result<Option<String>> {
        let output = self.run("apt-cache", &["-t", suite, "policy", package])?;
        let mut lines = output.lines().map(str::trim);
        let version = lines.find_map(|line| line.strip_prefix("Candidate: "));
        let version = version.filter(|version| *version != "(none)");
        Ok(version.map(|version| {
            version
                .split_once(':')
                .map_or(version, |(_, v)| v)
                .to_owned()
        }))
    }

    /// The names of `package` and of all that it depends on.
    pub(super) fn closure(&self, package: &str, suite: &str) -> Result<Vec<String>> {
        let args = [
            "-t",
            suite,
            "depends",
            "--recurse",
            "--no-recommends",
            "--no-suggests",
            "--no-conflicts",
            "--no-breaks",
            "--no-replaces",
            "--no-enhances",
            package,
        ];
        let output = self.run("apt-cache", &args)?;
        let names = output
            .lines()
            .filter(|line| !line.starts_with([' ', '|', '<']));
        Ok(names.map(str::to_owned).collect())
    }

    /// Unpacks these packages, and no others, into `into`.
    pub(super) fn fetch(&self, packages: &[&str], suite: &str, into: &Path) -> Result<()> {
        self.clear_downloads()?;
        self.run("apt-get", &[&["-t", suite, "download"], packages].concat())?;
        self.unpack(into)
    }

    /// Unpacks packages and those of their dependencies that the host lacks into `into`.
    pub(super) fn fetch_with_missing(
        &self,
        packages: &[&str],
        suite: &str,
        into: &Path,
    ) -> Result<()> {
        self.clear_downloads()?;
        let archives = format!("Dir::Cache::archives={}", self.downloads().display());
        let args = [
            // The host's list of installed packages, to read. Nothing is changed, so no lock is
            // needed.
            "-o",
            "Dir::State::status=/var/lib/dpkg/status",
            "-o",
            "Debug::NoLocking=true",
            "-o",
            &archives,
            "-t",
            suite,
            "--yes",
            "--no-install-recommends",
            "--download-only",
            "install",
        ];
        self.run("apt-get", &[&args, packages].concat())?;
        self.unpack(into)
    }

    /// Downloads a source package, and unpacks its upstream archive, without the top directory,
    /// into `into`.
    pub(super) fn unpack_source(&self, package: &str, into: &Path) -> Result<()> {
        self.clear_downloads()?;
        self.run("apt-get", &["source", "--download-only", package])?;
        for entry in fs::read_dir(self.downloads())? {
            let file = entry?.path();
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            if name.contains(".orig.tar.") && !name.ends_with(".asc") {
                fs::create_dir_all(into)?;
                let mut tar = bound("tar");
                tar.arg("-xf").arg(&file).arg("--strip-components=1");
                let status = tar.arg("-C").arg(into).status().context("cannot run tar")?;
                ensure!(status.success(), "tar fails on {}", file.display());
                return Ok(());
            }
        }
        bail!("the source package {package} has no upstream archive")
    }

    fn downloads(&self) -> PathBuf {
        self.dir.join("downloads")
    }

    /// A download that was cut short must not be unpacked later.
    fn clear_downloads(&self) -> Result<()> {
        fs::remove_dir_all(self.downloads())?;
        Ok(fs::create_dir_all(self.downloads().join("partial"))?)
    }

    /// Unpacks and deletes what was downloaded.
    fn unpack(&self, into: &Path) -> Result<()> {
        for entry in fs::read_dir(self.downloads())? {
            let package = entry?.path();
            if package
                .extension()
                .is_some_and(|extension| extension == "deb")
            {
                let mut unpack = bound("dpkg-deb");
                unpack.arg("--extract").arg(&package).arg(into);
                succeed(&mut unpack)?;
                fs::remove_file(&package)?;
            }
        }
        Ok(())
    }

    /// Runs an apt tool with our configuration; what it prints.
    fn run(&self, tool: &str, args: &[&str]) -> Result<String> {
        let mut command = bound(tool);
        command
            .args(args)
            .current_dir(self.downloads())
            .env("APT_CONFIG", self.dir.join("apt.conf"))
            .env("LC_ALL", "C");
        let from = self.suites.join(", ");
        let output = succeed(&mut command)
            .map_err(|error| NotHere::error(&format!("no packages from {from}: {error:#}")))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// An apt.conf(5) that keeps everything in `dir`, with the host's way to the network (proxies).
fn configuration(dir: &Path) -> Result<String> {
    let mut text = String::new();
    for (key, value) in [
        ("Dir::Etc::main", "/dev/null"),
        ("Dir::Etc::parts", "/dev/null"),
        ("Dir::Etc::sourceparts", "/dev/null"),
        ("Dir::Etc::preferences", "/dev/null"),
        ("Dir::Etc::preferencesparts", "/dev/null"),
        ("Acquire::Languages", "none"),
        ("Acquire::GzipIndexes", "true"),
        // apt's own caches of the lists take more room than they save time.
        ("Dir::Cache::pkgcache", ""),
        ("Dir::Cache::srcpkgcache", ""),
        ("Acquire::Retries", "2"),
        ("Acquire::http::Timeout", "30"),
        ("Acquire::https::Timeout", "30"),
        // apt's own user could not write here.
        ("APT::Sandbox::User", ""),
    ] {
        text += &format!("{key} \"{value}\";\n");
    }
    for (key, file) in [
        ("Dir::Etc::sourcelist", "sources.list"),
        ("Dir::State", "."),
        ("Dir::State::status", "status"),
        ("Dir::State::lists", "lists"),
        ("Dir::Cache", "cache"),
    ] {
        text += &format!("{key} \"{}\";\n", dir.join(file).display());
    }
    let host = succeed(Command::new("apt-config").arg("dump"))?;
    let host = String::from_utf8_lossy(&host.stdout).into_owned();
    let network = ["Acquire::http", "Acquire::ftp", "Acquire::Check-"];
    let is_network = |line: &&str| network.iter().any(|prefix| line.starts_with(prefix));
    for line in host.lines().filter(is_network) {
        text += line;
        text.push('\n');
    }
    Ok(text)
}

/// Runs a command to its end; an error tells the first that it complained of.
fn succeed(command: &mut Command) -> Result<Output> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {command:?}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let first = errors.lines().find_map(|line| line.strip_prefix("E: "));
    ensure!(
        output.status.success(),
        "{}",
        first.unwrap_or("no reason given")
    );
    Ok(output)
}
