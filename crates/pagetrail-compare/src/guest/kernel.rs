//! Finds a Linux kernel for a guest.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};

/// Where a bzImage says `HdrS`; Documentation/arch/x86/boot.rst.
const MAGIC_AT: usize = 0x202;
const MAGIC: &[u8] = b"HdrS";

/// The kernel that is named, or one that this machine has.
pub(super) fn find(named: Option<&Path>) -> Result<PathBuf> {
    let release = rustix::system::uname();
    let release = release.release().to_string_lossy().into_owned();
    find_below(named, Path::new("/"), &release)
}

fn find_below(named: Option<&Path>, root: &Path, release: &str) -> Result<PathBuf> {
    if let Some(named) = named {
        return check(named).map(|()| named.into());
    }
    let boot = root.join("boot");
    let own = [
        boot.join(format!("vmlinuz-{release}")),
        root.join("lib/modules").join(release).join("vmlinuz"),
        boot.join("vmlinuz"),
    ];
    let own = own.into_iter().find(|path| path.exists());
    match own.or_else(|| newest(&boot)) {
        Some(kernel) => check(&kernel).map(|()| kernel),
        None => bail!("there is no Linux kernel for the guest in /boot, and none is named"),
    }
}

/// The newest of a distribution's kernels.
fn newest(boot: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(boot).ok()?.filter_map(Result::ok);
    let kernels = entries.filter(|entry| {
        let name = entry.file_name();
        name.to_string_lossy().starts_with("vmlinuz-")
    });
    let age = |path: &PathBuf| {
        let metadata = fs::metadata(path).and_then(|metadata| metadata.modified());
        metadata.unwrap_or(SystemTime::UNIX_EPOCH)
    };
    kernels.map(|entry| entry.path()).max_by_key(age)
}

/// Refuses what cannot be read, and what is no kernel.
///
/// # Errors
///
/// As said.
pub fn check(kernel: &Path) -> Result<()> {
    let mut start = Vec::new();
    let read = File::open(kernel).and_then(|file| {
        let length = (MAGIC_AT + MAGIC.len()) as u64;
        file.take(length).read_to_end(&mut start)
    });
    read.with_context(|| format!("cannot read the guest's kernel {}", kernel.display()))?;
    if start.get(MAGIC_AT..) != Some(MAGIC) {
        bail!(
            "{} is no Linux kernel for x86-64 (a bzImage)",
            kernel.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_kernel_comes_first_and_others_are_refused() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let found = || find_below(None, root.path(), "6.9");
        let error = found().expect_err("there is none").to_string();
        assert!(error.contains("none is named"), "{error}");
        let image = [vec![0; MAGIC_AT], MAGIC.to_vec(), vec![1; 100]].concat();
        let add = |name: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().expect("it has one")).expect("it can be made");
            fs::write(&path, &image).expect("it can be written");
            path
        };
        let other = add("boot/vmlinuz-6.1");
        assert_eq!(found().expect("it is there"), other);
        let of_modules = add("lib/modules/6.9/vmlinuz");
        assert_eq!(found().expect("it is there"), of_modules);
        let own = add("boot/vmlinuz-6.9");
        assert_eq!(found().expect("it is there"), own);
        assert_eq!(
            find_below(Some(&other), root.path(), "6.9").expect("named"),
            other
        );
        for (content, part) in [
            (&b"text"[..], "no Linux kernel"),
            (&[0; 900], "no Linux kernel"),
        ] {
            fs::write(&own, content).expect("it can be written");
            let error = found().expect_err("it is none").to_string();
            assert!(error.contains(part), "{error}");
        }
        let error = check(Path::new("/nowhere/vmlinuz")).expect_err("it is nowhere");
        assert!(format!("{error:#}").starts_with("cannot read the guest's kernel /nowhere"));
    }
}
