//! Debian's kernels for guests: which there are, where they come from, and their modules.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::apt::{AMD64, Apt, Architecture};
use super::cache::Cache;
use super::mirror::Mirror;
use super::toolchain::Toolchain;
use pagetrail_steps::steps::NotHere;

/// A kernel that can be asked for. Its exact release is looked up, as the suites' versions move on.
#[derive(Debug)]
pub struct Series {
    /// What `--kernel` takes.
    pub name: &'static str,
    /// What its release begins with.
    prefix: &'static str,
    /// Suites that have or had it, the smaller list first.
    suites: &'static [&'static str],
    /// Whether its modules are compiled with the compiler of its own release of Debian, as this
    /// machine's may be too old.
    pub(super) own_compiler: bool,
}

/// All of them: without PAGEMAP_SCAN, with it, and with access tracking.
pub const SERIES: &[Series] = &[
    Series {
        name: "6.1",
        prefix: "6.1.",
        suites: &["bookworm"],
        own_compiler: false,
    },
    Series {
        name: "6.12",
        prefix: "6.12.",
        suites: &["bookworm-backports", "trixie"],
        own_compiler: false,
    },
    Series {
        name: "7.x",
        prefix: "7.",
        suites: &["trixie-backports"],
        own_compiler: true,
    },
];

impl Series {
    /// The series of that name.
    pub fn named(name: &str) -> Result<&'static Self> {
        let names: Vec<&str> = SERIES.iter().map(|series| series.name).collect();
        SERIES
            .iter()
            .find(|series| series.name == name)
            .with_context(|| format!("no kernel '{name}'; there are {}", names.join(", ")))
    }

    fn piece(&self, architecture: Architecture) -> String {
        architecture.piece(&format!("linux-{}", self.name))
    }

    /// The kernel in the cache.
    pub(super) fn cached(
        &self,
        cache: &Cache,
        architecture: Architecture,
    ) -> Option<Result<Kernel>> {
        Some(Kernel::open(&cache.existing(&self.piece(architecture))?))
    }

    /// The kernel, fetched if need be.
    pub(super) fn fetch(&self, cache: &Cache, architecture: Architecture) -> Result<Kernel> {
        let piece = cache.piece(&self.piece(architecture), |fresh| {
            let offer = self.resolve(cache, architecture)?;
            eprintln!("xtask: fetching Linux {}", offer.release);
            let packages: Vec<&str> = offer.packages.iter().map(String::as_str).collect();
            offer.apt.fetch(&packages, offer.suite, fresh)
        })?;
        Kernel::open(&piece)
    }

    /// What it takes to compile modules for a kernel of this series, fetched if need be.
    pub(super) fn headers(&self, cache: &Cache, kernel: &Kernel) -> Result<PathBuf> {
        let release = &kernel.release;
        let name = format!("headers-{release}");
        let piece = cache.piece(&name, |fresh| {
            eprintln!("xtask: fetching the headers of Linux {release}");
            let base = release
                .rsplit_once('-')
                .map_or(&**release, |(base, _)| base);
            let packages = [
                format!("linux-headers-{release}"),
                format!("linux-headers-{base}-common"),
                format!("linux-kbuild-{base}"),
            ];
            let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
            let mirror = Mirror::find()?;
            let fetched = self.suites.iter().any(|suite| {
                Apt::open_for(AMD64, cache, &mirror, suite)
                    .and_then(|apt| apt.fetch(&packages, suite, fresh))
                    .is_ok()
            });
            let reason = format!(
                "Debian no longer offers the headers of Linux {release}: delete linux-{} in {}",
                self.name,
                cache.dir.display()
            );
            fetched
                .then_some(())
                .ok_or_else(|| NotHere::error(&reason))?;
            relocate(&fresh.join("usr/src"), release, &cache.dir.join(&name))
        })?;
        Ok(piece
            .join("usr/src")
            .join(format!("linux-headers-{release}")))
    }

    /// A compiler with the headers of a kernel of this series, in a tree, fetched if need be.
    pub(super) fn toolchain(&self, cache: &Cache, kernel: &Kernel) -> Result<Toolchain> {
        Toolchain::fetch(cache, self.suites, &kernel.release)
    }

    /// The first suite that offers this series now.
    pub(super) fn resolve(&self, cache: &Cache, architecture: Architecture) -> Result<Offer> {
        let mirror = Mirror::find()?;
        let mut reasons = Vec::new();
        for suite in self.suites {
            match Offer::find(cache, architecture, &mirror, suite, self.prefix) {
                Ok(offer) => return Ok(offer),
                Err(error) => reasons.push(format!("{error:#}")),
            }
        }
        let reasons = reasons.join("; ");
        Err(NotHere::error(&format!(
            "no Linux {}: {reasons}",
            self.name
        )))
    }
}

/// Lets headers be used where they are unpacked: their makefile names where they would be
/// installed. Without the kernel's symbols, no types for BPF are made, which needs another tool.
fn relocate(sources: &Path, release: &str, piece: &Path) -> Result<()> {
    let headers = sources.join(format!("linux-headers-{release}"));
    let makefile = fs::read_to_string(headers.join("Makefile"))?;
    let sources = piece.join("usr/src").display().to_string();
    fs::write(
        headers.join("Makefile"),
        makefile.replace("/usr/src", &sources),
    )?;
    match fs::remove_file(headers.join("vmlinux")) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        outcome => Ok(outcome?),
    }
}

/// A kernel that a suite offers.
#[derive(Debug)]
pub(super) struct Offer {
    apt: Apt,
    pub(super) suite: &'static str,
    pub(super) release: String,
    packages: Vec<String>,
}

impl Offer {
    fn find(
        cache: &Cache,
        architecture: Architecture,
        mirror: &Mirror,
        suite: &'static str,
        prefix: &str,
    ) -> Result<Self> {
        let apt = Apt::open_for(architecture, cache, mirror, suite)?;
        let packages = apt.closure(&format!("linux-image-{}", architecture.0), suite)?;
        let mut releases = packages.iter().filter_map(|name| {
            let rest = name.strip_prefix("linux-image-")?;
            Some(rest).filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        });
        let release = releases.next().context("no kernel package")?.to_owned();
        ensure!(release.starts_with(prefix), "{suite} has {release}");
        // Newer kernels come in several packages (base, binary, modules), all with the release in
        // their names.
        let packages = packages
            .into_iter()
            .filter(|name| name.starts_with("linux-") && name.ends_with(&release))
            .collect();
        Ok(Self {
            apt,
            suite,
            release,
            packages,
        })
    }
}

/// An unpacked kernel.
#[derive(Debug)]
pub struct Kernel {
    pub(super) release: String,
    pub(super) image: PathBuf,
    modules: PathBuf,
}

impl Kernel {
    /// Its version, as `7.3.4`.
    pub fn version(&self) -> &str {
        let end = self.release.find(['-', '+']);
        &self.release[..end.unwrap_or(self.release.len())]
    }

    /// The kernel itself, a bzImage.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// The variable that names the kernel to who starts guests in a guest.
    pub fn variable(&self) -> (String, String) {
        let image = self.image.display().to_string();
        ("PAGETRAIL_GUEST_KERNEL".to_owned(), image)
    }

    /// Finds image and modules in the two places where Debian's packages put them.
    fn open(piece: &Path) -> Result<Self> {
        for parent in ["lib/modules", "usr/lib/modules"] {
            let Ok(entries) = fs::read_dir(piece.join(parent)) else {
                continue;
            };
            for entry in entries {
                let modules = entry?.path();
                let release = entry_name(&modules)?;
                let boot = piece.join(format!("boot/vmlinuz-{release}"));
                let images = [boot, modules.join("vmlinuz")];
                if let Some(image) = images.into_iter().find(|image| image.exists()) {
                    return Ok(Self {
                        release,
                        image,
                        modules,
                    });
                }
            }
        }
        bail!("no kernel in {}; delete that directory", piece.display())
    }

    /// The code of the modules `wanted` and of all that they depend on, in the order in which they
    /// load.
    pub(super) fn modules(
        &self,
        wanted: &[String],
        busybox: &Path,
    ) -> Result<Vec<(String, Vec<u8>)>> {
        let mut files = BTreeMap::new();
        index(&self.modules.join("kernel"), &mut files)?;
        let builtin = fs::read_to_string(self.modules.join("modules.builtin"))?;
        let builtin: Vec<String> = builtin
            .lines()
            .map(|line| module_name(Path::new(line)))
            .collect();
        let mut loading = Loading {
            read: |name: &str| match files.get(name) {
                Some(file) => read_module(file, busybox).map(Some),
                None if builtin.iter().any(|other| other == name) => Ok(None),
                None => bail!("Linux {} has no module {name}", self.release),
            },
            loaded: Vec::new(),
        };
        for name in wanted {
            loading.add(name)?;
        }
        Ok(loading.loaded)
    }
}

/// A depth-first walk over the modules' own lists of dependencies.
struct Loading<R> {
    /// A module's code; none if it is part of the kernel.
    read: R,
    loaded: Vec<(String, Vec<u8>)>,
}

impl<R: Fn(&str) -> Result<Option<Vec<u8>>>> Loading<R> {
    fn add(&mut self, name: &str) -> Result<()> {
        let name = name.replace('-', "_");
        if self.loaded.iter().any(|(other, _)| *other == name) {
            return Ok(());
        }
        let Some(code) = (self.read)(&name)? else {
            return Ok(());
        };
        for dependency in dependencies(&code) {
            self.add(&dependency)?;
        }
        self.loaded.push((name, code));
        Ok(())
    }
}

/// The names in the `depends=` entry of a module's `.modinfo` section.
fn dependencies(code: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = code.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let value = code[at + KEY.len()..].split(|&byte| byte == 0).next();
    let value = String::from_utf8_lossy(value.unwrap_or_default()).into_owned();
    let names = value.split(',').filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

/// All module files below `dir`, by name.
fn index(dir: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            index(&entry.path(), files)?;
        } else {
            files.insert(module_name(&entry.path()), entry.path());
        }
    }
    Ok(())
}

/// `kvm_amd` for `.../kvm-amd.ko.xz`.
fn module_name(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.split('.').next().unwrap_or_default().replace('-', "_")
}

fn read_module(file: &Path, busybox: &Path) -> Result<Vec<u8>> {
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("ko") => Ok(fs::read(file)?),
        Some("xz") => {
            let mut xz = Command::new(busybox);
            let xz = xz.args(["xz", "-dc"]).arg(file).stderr(Stdio::inherit());
            let output = xz.output()?;
            ensure!(output.status.success(), "cannot unpack {}", file.display());
            Ok(output.stdout)
        }
        _ => bail!("{}: an unknown kind of module", file.display()),
    }
}

fn entry_name(path: &Path) -> Result<String> {
    let name = path.file_name().context("a path without a name")?;
    Ok(name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_load_after_what_they_depend_on() {
        let read = |name: &str| -> Result<Option<Vec<u8>>> {
            let info: &[u8] = match name {
                "9p" => b"code\0license=GPL\0depends=9pnet,netfs\0name=9p\0",
                "9pnet_virtio" => b"\0depends=9pnet,virtio\0",
                "9pnet" | "netfs" => b"\0depends=\0",
                "virtio" => return Ok(None),
                _ => bail!("no {name}"),
            };
            Ok(Some(info.to_owned()))
        };
        let mut loading = Loading {
            read,
            loaded: Vec::new(),
        };
        loading.add("9p").unwrap();
        loading.add("9pnet-virtio").unwrap();
        let names: Vec<&str> = loading
            .loaded
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(names, ["9pnet", "netfs", "9p", "9pnet_virtio"]);
        assert!(loading.add("absent").is_err());
    }

    #[test]
    fn finds_a_kernel_in_both_layouts() {
        for (image, modules) in [
            ("boot/vmlinuz-6.1.0-9", "lib/modules/6.1.0-9"),
            ("usr/lib/modules/7.3.4/vmlinuz", "usr/lib/modules/7.3.4"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            assert!(Kernel::open(dir.path()).is_err());
            fs::create_dir_all(dir.path().join(modules)).unwrap();
            fs::create_dir_all(dir.path().join(image).parent().unwrap()).unwrap();
            fs::write(dir.path().join(image), "").unwrap();
            let kernel = Kernel::open(dir.path()).unwrap();
            assert_eq!(kernel.image, dir.path().join(image));
            assert!(modules.ends_with(&kernel.release));
        }
    }
}
