//! What guests of a guest boot: the emulator, a kernel of Debian's, and a RAM disk with a few
//! programs, all in one directory, which a job finds by [`VARIABLE`].

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::Rig;
use super::initrd::Archive;
use super::kernel::Kernel;

/// The variable that names the directory: `qemu-system-x86_64`, `kernel` and `initrd` in it.
pub const VARIABLE: &str = "PAGETRAIL_INNER_GUESTS";

/// The RAM disk of a guest of a guest.
#[derive(Debug)]
pub struct Inner<'a> {
    /// Its first program, a script for busybox.
    pub init: &'a str,
    /// Programs by their names in its root; what they are linked to comes with them.
    pub programs: &'a [(&'a str, &'a Path)],
    /// Modules, which `/modules/order` lists in the order in which they load.
    pub modules: &'a [&'a str],
}

impl Rig {
    /// Puts all that it boots into a directory.
    pub fn inner(&self, kernel: &Kernel, inner: &Inner<'_>, dir: &Path) -> Result<()> {
        self.engine(dir)?;
        let link = dir.join("kernel");
        if fs::symlink_metadata(&link).is_ok() {
            fs::remove_file(&link)?;
        }
        symlink(kernel.image(), link)?;
        Ok(fs::write(
            dir.join("initrd"),
            self.inner_initrd(kernel, inner)?,
        )?)
    }

    fn inner_initrd(&self, kernel: &Kernel, inner: &Inner<'_>) -> Result<Vec<u8>> {
        let mut archive = Archive::default();
        for directory in ["bin", "dev", "proc", "sys", "modules"] {
            archive.directory(directory);
        }
        archive.file("init", inner.init.as_bytes());
        archive.file("bin/busybox", &fs::read(&self.busybox)?);
        let wanted: Vec<String> = inner.modules.iter().map(|&name| name.to_owned()).collect();
        let mut order = String::new();
        for (name, code) in kernel.modules(&wanted, &self.busybox)? {
            archive.file(&format!("modules/{name}"), &code);
            order += &format!("{name}\n");
        }
        archive.file("modules/order", order.as_bytes());
        let mut libraries: Vec<PathBuf> = Vec::new();
        for (name, program) in inner.programs {
            archive.file(name, &fs::read(program)?);
            libraries.extend(linked(program)?);
        }
        libraries.sort();
        libraries.dedup();
        let parents = libraries
            .iter()
            .flat_map(|library| library.ancestors().skip(1));
        let mut parents: Vec<&Path> = parents.filter(|parent| *parent != Path::new("/")).collect();
        // Parents first.
        parents.sort();
        parents.dedup();
        for parent in parents {
            archive.directory(in_root(parent)?);
        }
        for library in &libraries {
            archive.file(in_root(library)?, &fs::read(library)?);
        }
        Ok(archive.finish())
    }
}

/// A path of this machine as the archive has it.
fn in_root(path: &Path) -> Result<&str> {
    let text = path.to_str().and_then(|text| text.strip_prefix('/'));
    text.with_context(|| format!("{} is no path that an archive can have", path.display()))
}

/// The shared objects that a program is linked to, its loader among them.
fn linked(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("ldd")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let is_static = || String::from_utf8_lossy(&output.stderr).contains("not a dynamic executable");
    ensure!(
        output.status.success() || is_static(),
        "ldd cannot read {}",
        program.display()
    );
    Ok(paths(&text))
}

/// The paths in what `ldd` prints.
fn paths(text: &str) -> Vec<PathBuf> {
    let paths = text
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    paths.map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_a_program_is_linked_to() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                    \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f65)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f68)\n";
        let expected = [
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/lib64/ld-linux-x86-64.so.2",
        ];
        assert_eq!(paths(text), expected.map(PathBuf::from));
        assert!(paths("\tstatically linked\n").is_empty());
        let own = linked(&std::env::current_exe().unwrap()).unwrap();
        assert!(
            own.iter().any(|path| path.ends_with("libc.so.6")),
            "{own:?}"
        );
        assert!(linked(Path::new("/nonexistent")).is_err());
    }
}
