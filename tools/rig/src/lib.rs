//! `cargo xtask vm`: runs a command of this tree in a guest with another kernel, on any Debian
//! machine.
//!
//! A guest sees the host's file system at the host's paths, read-only with an overlay in RAM, so
//! that everything built or installed here runs there. It runs in emulation: results and counts can
//! be relied on, times cannot. What it needs comes from Debian's packages into a cache; nothing is
//! installed on the host.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a task talks to the person who started it"
)]

mod apt;
pub mod arm64;
pub mod bochs;
mod cache;
mod clock;
pub mod criu;
mod doorbell;
mod engine;
pub mod guest;
mod initrd;
pub mod inner;
mod jobs;
pub mod kernel;
pub mod libgc;
pub mod mdbook;
mod mirror;
pub mod ooh;
pub mod posix;
mod process;
pub mod programs;
mod qemu;
pub mod redis;
mod sys;
mod toolchain;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use apt::{AMD64, Apt, Architecture};
use cache::{Cache, Kind};
pub use engine::Engine;
use guest::{End, Guest, Job, Machine};
use kernel::{Kernel, SERIES, Series};
use mirror::Mirror;
use pagetrail_steps::repo::Repo;
use pagetrail_steps::steps::NotHere;
use qemu::Qemu;

/// As timeout(1) has it.
const STATUS_TIMED_OUT: u8 = 124;

const USAGE: &str = "\
usage: cargo xtask vm [OPTIONS] -- COMMAND ..
       cargo xtask vm list

Runs COMMAND in a guest, in the current directory, and returns its output and exit status.
The guest sees the host's files; what it writes is lost, but for the directory $PAGETRAIL_OUT.
COMMAND is root there, and has no standard input. It runs in emulation: do not trust its times.

  --kernel SERIES    6.1, 6.12 or 7.x (default 6.12); 'list' shows the releases
  --numa 2           a second memory node, without processors and slow
  --nested           virtualization inside the guest (AMD's, with nested paging)
  --counted          one processor, and each instruction takes a nanosecond: the time stamp counter
                     counts instructions
  --module NAME      load this kernel module first (may be repeated, in their order)
  --memory SIZE      such as 512M or 2G (default)
  --timeout SECONDS  end the guest when COMMAND has run so long (default 300)

Exit status: that of COMMAND; 124 if it ran out of time; 3 if no guest is possible here, 2 if it failed.
PAGETRAIL_DEBIAN_MIRROR names a Debian mirror where the host's apt knows none.
";

/// `cargo xtask vm ARGS`.
pub fn run(repo: &Repo, args: &[String]) -> Result<ExitCode> {
    if args == ["list"] {
        return list();
    }
    if args
        .iter()
        .take_while(|arg| *arg != "--")
        .any(|arg| arg == "--help" || arg == "-h")
    {
        print!("{USAGE}");
        return Ok(ExitCode::SUCCESS);
    }
    let options = Options::parse(args)?;
    let rig = Rig::open(repo)?;
    let kernel = rig.kernel(options.series)?;
    let mut env = rig.environment(options.series);
    env.push(kernel.variable());
    let job = Job {
        dir: env::current_dir()?,
        command: options.command,
        env,
    };
    let end = rig.run(&kernel, &options.machine, &job, &mut guest::print_bytes)?;
    Ok(ExitCode::from(match end {
        End::Exited(status) => status,
        End::TimedOut => {
            let seconds = options.machine.timeout.as_secs();
            eprintln!("xtask: ended after {seconds} s (--timeout)");
            STATUS_TIMED_OUT
        }
    }))
}

/// What a guest must have for a command.
pub struct Needs {
    /// How long the command may run.
    pub timeout: Duration,
    /// Memory of the guest.
    pub memory_mib: u32,
    /// Kernel modules to load first, in their order.
    pub modules: &'static [&'static str],
    /// Guests of its own.
    pub nested: bool,
    /// Time that passes by instructions.
    pub counted: bool,
}

impl Default for Needs {
    fn default() -> Self {
        let Machine {
            timeout,
            memory_mib,
            ..
        } = Machine::default();
        Self {
            timeout,
            memory_mib,
            modules: &[],
            nested: false,
            counted: false,
        }
    }
}

/// What a command prints in a guest of a series, in the root of the repository.
pub fn output(repo: &Repo, series: &str, needs: &Needs, command: Vec<String>) -> Result<Vec<u8>> {
    let series = Series::named(series)?;
    let rig = Rig::open(repo)?;
    let kernel = rig.kernel(series)?;
    let machine = Machine {
        timeout: needs.timeout,
        memory_mib: needs.memory_mib,
        modules: needs.modules.iter().map(|&name| name.to_owned()).collect(),
        nested: needs.nested,
        counted: needs.counted,
        ..Machine::default()
    };
    let job = Job {
        dir: repo.root.clone(),
        command,
        env: rig.environment(series),
    };
    let mut output = Vec::new();
    let end = rig.run(&kernel, &machine, &job, &mut |bytes| {
        output.extend_from_slice(bytes);
        Ok(())
    })?;
    if end != End::Exited(0) {
        eprint!("{}", String::from_utf8_lossy(&output));
    }
    match end {
        End::Exited(0) => Ok(output),
        End::Exited(status) => bail!("the command in the {} exits with {status}", place(series)),
        End::TimedOut => bail!("the command in the {} takes too long", place(series)),
    }
}

/// What a command line asks for.
#[derive(Debug)]
struct Options {
    series: &'static Series,
    machine: Machine,
    command: Vec<String>,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self> {
        let mut series = Series::named("6.12")?;
        let mut machine = Machine::default();
        let mut args = args.iter();
        loop {
            let option = args
                .next()
                .with_context(|| format!("no command\n{USAGE}"))?;
            let mut value = || {
                args.next()
                    .with_context(|| format!("{option} needs a value"))
            };
            match option.as_str() {
                "--" => break,
                "--kernel" => series = Series::named(value()?)?,
                "--numa" => {
                    let nodes = value()?;
                    ensure!(nodes == "2", "--numa takes 2, not '{nodes}'");
                    machine.numa = true;
                }
                "--nested" => machine.nested = true,
                "--counted" => machine.counted = true,
                "--module" => machine.modules.push(value()?.clone()),
                "--memory" => machine.memory_mib = mebibytes(value()?)?,
                "--timeout" => machine.timeout = seconds(value()?)?,
                other => bail!("unknown option '{other}'\n{USAGE}"),
            }
        }
        let command: Vec<String> = args.cloned().collect();
        ensure!(!command.is_empty(), "no command after --\n{USAGE}");
        Ok(Self {
            series,
            machine,
            command,
        })
    }
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            memory_mib: 2048,
            numa: false,
            nested: false,
            counted: false,
            plugin: None,
            ooh: None,
            modules: Vec::new(),
            channel: None,
            timeout: Duration::from_secs(300),
        }
    }
}

/// `512M` or `2G`, between what boots and what fits a small machine.
fn mebibytes(size: &str) -> Result<u32> {
    let unit = |suffix, factor| Some((size.strip_suffix(suffix)?, factor));
    let parsed = unit('M', 1).or_else(|| unit('G', 1024));
    let parsed =
        parsed.and_then(|(number, factor)| number.parse::<u32>().ok()?.checked_mul(factor));
    let mib = parsed.with_context(|| format!("'{size}' is no size such as 512M or 2G"))?;
    ensure!(
        (256..=65536).contains(&mib),
        "a guest has between 256M and 64G, not {size}"
    );
    Ok(mib)
}

fn seconds(text: &str) -> Result<Duration> {
    let seconds = text
        .parse()
        .ok()
        .filter(|seconds| (1..=86400).contains(seconds));
    let seconds =
        seconds.with_context(|| format!("'{text}' is no number of seconds within a day"))?;
    Ok(Duration::from_secs(seconds))
}

/// Everything that guests share. While it lives, other runs on this machine start one less.
pub struct Rig {
    cache: Cache,
    qemu: Qemu,
    busybox: PathBuf,
    /// Of the guest that runs: its files, and what it leaves.
    dir: PathBuf,
    /// Of guests, and of `dir`, which a run with another cache would use as well.
    _locks: [fs::File; 2],
}

impl Rig {
    /// Fetches what is missing, kernels aside.
    pub fn open(repo: &Repo) -> Result<Self> {
        if env::consts::ARCH != "x86_64" {
            return Err(NotHere::error(
                "guests are x86-64, and run the host's programs",
            ));
        }
        let cache = Cache::open()?;
        let turn = cache.turn(Kind::Guest)?;
        let fetching = cache.lock()?;
        let qemu = Qemu::fetch(&cache, qemu::X86)?;
        let busybox = busybox(&cache, AMD64)?;
        drop(fetching);
        let dirs = ["1", "2"].map(|name| repo.target.join("vm").join(name));
        let (dir, of_dir) = cache::free_directory(&dirs)?;
        Ok(Self {
            cache,
            qemu,
            busybox,
            dir: dir.to_owned(),
            _locks: [turn, of_dir],
        })
    }

    /// The kernel of a series, fetched if need be.
    pub fn kernel(&self, series: &Series) -> Result<Kernel> {
        let _lock = self.cache.lock()?;
        series.fetch(&self.cache, AMD64)
    }

    /// A directory that has nothing but the emulator, by its own name and as the host would have it
    /// installed, for commands that look for it in `PATH`.
    pub fn engine(&self, dir: &Path) -> Result<PathBuf> {
        fs::create_dir_all(dir)?;
        self.qemu.wrap(dir)?;
        Ok(dir.to_owned())
    }

    /// A static shell with tools, for guests to run.
    pub fn busybox(&self) -> &Path {
        &self.busybox
    }

    /// The directory of the guest that runs: its files, and what it leaves.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What a command in a guest of this series finds in its environment.
    pub fn environment(&self, series: &Series) -> Vec<(String, String)> {
        let passed = |name: &str| {
            matches!(name, "PATH" | "HOME" | "LANG")
                || name.starts_with("PAGETRAIL_")
                || name.starts_with("RUST_")
        };
        let text = |(name, value): (OsString, OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let mut env: Vec<(String, String)> = env::vars_os().filter_map(text).collect();
        env.retain(|(name, _)| passed(name));
        let out = Guest::out(&self.dir);
        for (name, value) in [
            ("TERM", "dumb".to_owned()),
            ("PAGETRAIL_WHERE", place(series)),
            ("PAGETRAIL_OUT", out.display().to_string()),
            (ROWS, out.join("rows").display().to_string()),
        ] {
            env.retain(|(other, _)| other != name);
            env.push((name.to_owned(), value));
        }
        env
    }

    /// Runs a job in a fresh guest, with an empty directory for what it leaves.
    pub fn run(
        &self,
        kernel: &Kernel,
        machine: &Machine,
        job: &Job,
        stdout: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<End> {
        let jobs = std::slice::from_ref(job);
        let mut ends = self.run_all(kernel, machine, jobs, &mut |_, bytes| stdout(bytes))?;
        ends.pop().context("the guest ran nothing")?
    }

    /// Runs jobs one after the other in a fresh guest, with one empty directory for what they
    /// leave, and those within it where their rows go. See [`Guest::run`].
    pub fn run_all(
        &self,
        kernel: &Kernel,
        machine: &Machine,
        jobs: &[Job],
        stdout: &mut dyn FnMut(usize, &[u8]) -> io::Result<()>,
    ) -> Result<Vec<Result<End>>> {
        let out = Guest::out(&self.dir);
        if out.exists() {
            fs::remove_dir_all(&out)?;
        }
        fs::create_dir_all(out.join("rows"))?;
        let variables = jobs.iter().flat_map(|job| &job.env);
        for (_, rows) in variables.filter(|(name, _)| name == ROWS) {
            fs::create_dir_all(rows)?;
        }
        let guest = Guest {
            kernel,
            qemu: &self.qemu,
            busybox: &self.busybox,
            machine,
            dir: &self.dir,
        };
        guest.run(jobs, stdout)
    }
}

/// The variable that names the directory where tests leave rows for the table of techniques.
pub const ROWS: &str = "PAGETRAIL_ROWS";

/// What tests in a guest write into the column `where`.
pub fn place(series: &Series) -> String {
    format!("Linux {} guest", series.name)
}

/// A static shell for the initial RAM disk; any Debian's will do.
fn busybox(cache: &Cache, architecture: Architecture) -> Result<PathBuf> {
    let name = architecture.piece("busybox");
    let piece = cache.piece(&name, |fresh: &Path| {
        let mirror = Mirror::find()?;
        let suite = mirror.host_suite.as_deref().unwrap_or("stable");
        let apt = Apt::open_for(architecture, cache, &mirror, suite)?;
        apt.fetch(&["busybox-static"], suite, fresh)
    })?;
    // Where it is depends on the age of the package.
    let places = ["bin/busybox", "usr/bin/busybox"].map(|place| piece.join(place));
    let found = places.into_iter().find(|place| place.exists());
    found.context("the package has no busybox")
}

fn list() -> Result<ExitCode> {
    let cache = Cache::open()?;
    let _lock = cache.lock()?;
    let mut possible = true;
    let mut line = |name: &str, found: Result<String>| {
        let text = found.unwrap_or_else(|error| {
            possible = false;
            format!("not here: {error:#}")
        });
        println!("{name:6}  {text}");
    };
    line("QEMU", list_qemu(&cache));
    for series in SERIES {
        line(series.name, list_kernel(&cache, series));
    }
    println!("cache   {}", cache.dir.display());
    Ok(ExitCode::from(if possible { 0 } else { 3 }))
}

fn list_qemu(cache: &Cache) -> Result<String> {
    if let Some(qemu) = Qemu::existing(cache, qemu::X86)
        && let Some(version) = qemu.version()
    {
        return Ok(format!("{version} ({})", qemu.origin()));
    }
    let offer = qemu::Offer::find(cache, qemu::X86)?;
    Ok(format!(
        "{} (to be fetched from {})",
        offer.version, offer.suite
    ))
}

fn list_kernel(cache: &Cache, series: &Series) -> Result<String> {
    if let Some(kernel) = series.cached(cache, AMD64) {
        return Ok(format!("{} (cached)", kernel?.release));
    }
    let offer = series.resolve(cache, AMD64)?;
    Ok(format!(
        "{} (to be fetched from {})",
        offer.release, offer.suite
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        Options::parse(&words)
    }

    #[test]
    fn reads_options() {
        let options =
            parse("--kernel 7.x --numa 2 --memory 3G --timeout 9 -- ls --nested").unwrap();
        assert_eq!(options.series.name, "7.x");
        assert_eq!(options.command, ["ls", "--nested"]);
        let machine = options.machine;
        assert!(machine.numa && !machine.nested);
        assert_eq!((machine.memory_mib, machine.timeout.as_secs()), (3072, 9));
    }

    #[test]
    fn refuses_what_makes_no_sense() {
        for line in [
            "",
            "--",
            "ls",
            "--kernel 5.4 -- ls",
            "--kernel",
            "--numa 3 -- ls",
            "--memory 2 -- ls",
            "--memory 9999999999G -- ls",
            "--memory 16M -- ls",
            "--timeout 0 -- ls",
            "--timeout 5m -- ls",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
