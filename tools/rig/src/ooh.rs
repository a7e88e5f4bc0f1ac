//! The log of `research/ooh` in a guest: the kernel module, compiled for the guest's kernel, and
//! the plugin that plays the log.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::Rig;
use super::doorbell::Doorbell;
use super::kernel::{Kernel, Series};
use pagetrail_steps::repo::{Repo, program};
use pagetrail_steps::steps::NotHere;

/// `OOH_DEVICE_BYTES` of `device.h`.
const MEMORY_BYTES: u64 = 16 << 20;

/// What a guest's machine needs for the log.
#[derive(Clone, Debug)]
pub struct Ooh {
    /// The module, compiled for the guest's kernel.
    pub module: PathBuf,
    plugin: PathBuf,
    /// The log's memory.
    memory: PathBuf,
    /// Whether the device says by an interrupt that a log is full.
    pub interrupts: bool,
}

/// QEMU's arguments for the log, and what they name.
pub(super) struct Arguments {
    pub(super) words: Vec<String>,
    /// Kept while QEMU runs.
    pub(super) doorbell: Option<Doorbell>,
}

impl Ooh {
    /// Compiles both to `target/ooh`.
    pub fn build(repo: &Repo, rig: &Rig, series: &Series, kernel: &Kernel) -> Result<Self> {
        if program("gcc").is_none() {
            return Err(NotHere::error("there is no gcc"));
        }
        let version = rig.qemu.version().unwrap_or_default();
        if !shows_registers(&version) {
            return Err(NotHere::error(&format!(
                "the plugin that plays the log needs QEMU 9.1 or later, not {version}"
            )));
        }
        let out = repo.target.join("ooh");
        fs::create_dir_all(&out)?;
        Ok(Self {
            module: module(repo, rig, series, kernel, &out.join(series.name))?,
            plugin: compile(
                repo,
                "plugin/log.c",
                // An index that a guest made up ends the emulator, and not its memory.
                &[
                    "-shared",
                    "-fPIC",
                    "-fsanitize=bounds",
                    "-fsanitize-undefined-trap-on-error",
                ],
                &out.join("log.so"),
            )?,
            memory: out.join("memory"),
            interrupts: true,
        })
    }

    /// QEMU's arguments; `path` writes a path within an option.
    pub(super) fn arguments(&self, path: impl Fn(&Path) -> String) -> Result<Arguments> {
        let (plugin, memory) = (path(&self.plugin), path(&self.memory));
        let doorbell = self
            .interrupts
            .then(|| Doorbell::new(&self.memory, MEMORY_BYTES))
            .transpose()?;
        let words = match &doorbell {
            Some(doorbell) => [
                "-chardev".to_owned(),
                format!("socket,id=ooh,fd={}", doorbell.socket()),
                "-device".to_owned(),
                "ivshmem-doorbell,vectors=1,chardev=ooh".to_owned(),
                "-plugin".to_owned(),
                format!("{plugin},memory={memory},interrupt={}", doorbell.event()),
            ],
            None => [
                "-object".to_owned(),
                format!(
                    "memory-backend-file,id=ooh,share=on,size={MEMORY_BYTES},mem-path={memory}"
                ),
                "-device".to_owned(),
                "ivshmem-plain,memdev=ooh".to_owned(),
                "-plugin".to_owned(),
                format!("{plugin},memory={memory}"),
            ],
        };
        let words = words.to_vec();
        Ok(Arguments { words, doorbell })
    }
}

/// Whether plugins of this QEMU can read a register and an instruction's bytes, as `log.c` does
/// (version 3 of their interface).
fn shows_registers(version: &str) -> bool {
    let mut numbers = version
        .split('.')
        .map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(9), Some(1))
}

/// Compiles a C file of `research/ooh`.
pub fn compile(repo: &Repo, source: &str, form: &[&str], to: &Path) -> Result<PathBuf> {
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]);
    gcc.args(form).arg("-o").arg(to);
    gcc.arg(repo.root.join("research/ooh").join(source));
    let status = gcc.status().context("cannot run gcc")?;
    ensure!(status.success(), "{source}: gcc failed");
    Ok(to.to_owned())
}

/// The module as it would be in another version of the interface, for those who have to refuse it.
pub fn module_of_version(
    repo: &Repo,
    rig: &Rig,
    series: &Series,
    kernel: &Kernel,
    version: u32,
) -> Result<PathBuf> {
    const OWN: &str = "#define OOH_ABI_VERSION 1\n";
    let to = repo
        .target
        .join("ooh")
        .join(format!("{}-{version}", series.name));
    copy_sources(repo, &to)?;
    let header = to.join("ooh.h");
    let text = fs::read_to_string(&header)?;
    ensure!(text.contains(OWN), "ooh.h has another version");
    let other = format!("#define OOH_ABI_VERSION {version}\n");
    fs::write(&header, text.replace(OWN, &other))?;
    compile_module(rig, series, kernel, &to)
}

/// The module.
fn module(repo: &Repo, rig: &Rig, series: &Series, kernel: &Kernel, to: &Path) -> Result<PathBuf> {
    copy_sources(repo, to)?;
    compile_module(rig, series, kernel, to)
}

/// The kernel's build writes beside the sources, so it gets copies.
fn copy_sources(repo: &Repo, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(repo.root.join("research/ooh/module"))? {
        let from = entry?.path();
        let name = from.file_name().context("a file without a name")?;
        fs::copy(&from, to.join(name))?;
    }
    Ok(())
}

fn compile_module(rig: &Rig, series: &Series, kernel: &Kernel, to: &Path) -> Result<PathBuf> {
    let fetching = rig.cache.lock()?;
    let mut make = match series.own_compiler {
        true => series.toolchain(&rig.cache, kernel)?.make(to)?,
        false => make_here(rig, series, kernel, to)?,
    };
    drop(fetching);
    make.arg("KCFLAGS=-Wall -Werror");
    let output = make.output().context("cannot run make")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "the module does not build:\n{said}"
    );
    Ok(to.join("ooh.ko"))
}

/// make with this machine's compiler.
fn make_here(rig: &Rig, series: &Series, kernel: &Kernel, dir: &Path) -> Result<Command> {
    for tool in ["gcc", "make"] {
        if program(tool).is_none() {
            return Err(NotHere::error(&format!("there is no {tool}")));
        }
    }
    let headers = series.headers(&rig.cache, kernel)?;
    let modpost = headers.join("scripts/mod/modpost");
    let run = Command::new(&modpost).stdout(Stdio::null()).output();
    // What the loader says of a release with an older library.
    let lacks = |output: std::process::Output| {
        String::from_utf8_lossy(&output.stderr).contains("not found")
    };
    if run.map_or(true, lacks) {
        return Err(NotHere::error(&format!(
            "the tools that come with the headers of Linux {} do not run on this release of Debian",
            series.name
        )));
    }
    let mut make = Command::new("make");
    make.arg("--silent").arg("-C").arg(dir);
    make.arg(format!("KERNEL={}", headers.display()));
    // The kernel's own compiler, by a name that only its release has.
    make.arg("CC=gcc");
    Ok(make)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_an_emulator_that_can_play_the_log() {
        for version in ["9.1.0", "10.0.2", "11.1"] {
            assert!(shows_registers(version), "{version}");
        }
        for version in ["9.0.2", "8.2.2", ""] {
            assert!(!shows_registers(version), "{version}");
        }
    }
}
