//! A static program of arm64 in a guest with that processor, in emulation: alone, since nothing of
//! this machine runs there.
//!
//! What it prints, on both outputs, comes over the guest's serial port, and after it the line
//! `RIG rc=N`.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::apt::ARM64;
use super::busybox;
use super::cache::{Cache, Kind};
use super::guest::End;
use super::initrd::Archive;
use super::kernel::Series;
use super::process::Running;
use super::qemu::{self, Qemu};
use pagetrail_steps::repo::Repo;

/// Mebibytes of the guest.
const MEMORY: &str = "1536";
/// What begins the last line.
const STATUS: &str = "RIG rc=";

/// A program, and how it is run.
pub struct Job<'a> {
    /// A static program.
    pub program: &'a Path,
    /// Its arguments.
    pub arguments: &'a [&'a str],
    /// Its environment: names and values without quotes.
    pub environment: &'a [(&'a str, &'a str)],
    /// Whether it has guests of its own: the processor's virtualization, for the kernel's KVM.
    pub nested: bool,
    /// How long it may run, from the start of the guest on.
    pub timeout: Duration,
}

/// Runs a job with the kernel of a series, and gives what it prints to `stdout`.
pub fn run(
    repo: &Repo,
    series: &str,
    job: &Job<'_>,
    stdout: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> Result<End> {
    let cache = Cache::open()?;
    let _turn = cache.turn(Kind::OtherProcessor)?;
    let fetching = cache.lock()?;
    let qemu = Qemu::fetch(&cache, qemu::ARM64)?;
    let kernel = Series::named(series)?.fetch(&cache, ARM64)?;
    let busybox = busybox(&cache, ARM64)?;
    drop(fetching);
    let dir = repo.target.join("vm");
    fs::create_dir_all(&dir)?;
    let disk = disk(job, &busybox, dir.join("arm64.initrd"))?;
    let mut command = qemu.command();
    command
        .args(["-machine", machine(job), "-cpu", "cortex-a72", "-m", MEMORY])
        // Time passes by instructions: on a busy host the guest's ticks would come late otherwise,
        // and files' times stand still for longer than on any machine.
        .args(["-smp", "1", "-icount", "shift=1,sleep=off"])
        .args(["-nodefaults", "-no-user-config", "-no-reboot"])
        .args(["-display", "none", "-serial", "stdio"])
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(&disk)
        .args(["-append", "console=ttyAMA0 quiet loglevel=1 panic=-1"])
        .stdout(Stdio::piped());
    let mut guest = Running::start(&mut command)?;
    let port = guest.0.stdout.take().context("no serial port")?;
    let end = follow(port, Instant::now() + job.timeout, stdout);
    fs::remove_file(&disk)?;
    end
}

/// KVM needs the interrupt controller's virtualization, too, which comes with the processor's.
fn machine(job: &Job<'_>) -> &'static str {
    match job.nested {
        true => "virt,virtualization=on,gic-version=3",
        false => "virt",
    }
}

/// The initial RAM disk: the program, a shell, and what says how it is run.
fn disk(job: &Job<'_>, busybox: &Path, file: PathBuf) -> Result<PathBuf> {
    let read = |path: &Path| fs::read(path).with_context(|| format!("cannot read {path:?}"));
    let mut environment = String::new();
    for (name, value) in job.environment {
        environment += &format!("export {name}='{value}'\n");
    }
    let arguments: String = job.arguments.iter().map(|arg| format!("{arg}\n")).collect();
    let mut archive = Archive::default();
    archive.directory("bin");
    archive.file("bin/busybox", &read(busybox)?);
    archive.file("program", &read(job.program)?);
    archive.file("environment", environment.as_bytes());
    archive.file("arguments", arguments.as_bytes());
    archive.file("init", include_bytes!("arm64.sh"));
    fs::write(&file, archive.finish())?;
    Ok(file)
}

/// Passes on what comes over the serial port, up to the line with the status.
fn follow(
    mut port: impl Read + Send + 'static,
    deadline: Instant,
    stdout: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> Result<End> {
    let (sender, pieces) = mpsc::channel();
    // It ends with the guest.
    thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(length @ 1..) = port.read(&mut piece) {
            if sender.send(piece[..length].to_vec()).is_err() {
                break;
            }
        }
    });
    let mut lines = Lines::default();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match pieces.recv_timeout(left) {
            Ok(piece) => {
                let status = lines.feed(&piece, stdout)?;
                if let Some(status) = status {
                    return Ok(End::Exited(status));
                }
            }
            Err(RecvTimeoutError::Timeout) => return Ok(End::TimedOut),
            Err(RecvTimeoutError::Disconnected) => bail!("the guest of arm64 ended by itself"),
        }
    }
}

/// Bytes of a serial port as lines, which end with `\r\n` there.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    /// Passes on the lines that are whole; returns the status once it has come.
    fn feed(
        &mut self,
        piece: &[u8],
        stdout: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<Option<u8>> {
        self.0.extend(piece.iter().filter(|&&byte| byte != b'\r'));
        while let Some(end) = self.0.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.0.drain(..=end).collect();
            let text = String::from_utf8_lossy(&line);
            if let Some(status) = text.trim_end().strip_prefix(STATUS) {
                return Ok(Some(status.parse().context("no exit status")?));
            }
            stdout(&line)?;
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_and_the_status_ends_them() {
        let mut printed = Vec::new();
        let mut lines = Lines::default();
        let mut feed = |piece: &[u8]| {
            let mut keep = |bytes: &[u8]| {
                printed.extend_from_slice(bytes);
                Ok(())
            };
            lines.feed(piece, &mut keep).unwrap()
        };
        assert_eq!(feed(b"one\r\ntw"), None);
        assert_eq!(feed(b"o\r\nRIG r"), None);
        assert_eq!(feed(b"c=101\r\nmore"), Some(101));
        assert_eq!(printed, b"one\ntwo\n");
        assert!(lines.feed(b"\nRIG rc=x\n", &mut |_| Ok(())).is_err());
    }
}
