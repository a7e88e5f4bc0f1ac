//! [`Guest`]: QEMU with a guest in it, and what is said to the agent there.
//!
//! Its first serial port is the kernel's console, of which the end is kept for when something goes
//! wrong; the second is the agent's. QEMU ends with this process, and when a `Guest` is dropped.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, Result};
use pagetrail_probes::{Found, Probes};
use pagetrail_report::words;
use rustix::fs::{MemfdFlags, memfd_create};

use super::counters::Counters;
use super::guests::Machine;
use super::wire::{self, Order, Reply};
use crate::local::Limits;
use crate::method::Outcome;
use crate::sys::machine::ends_with_us;

/// Linux boots in a second or two; where virtual machines are themselves emulated, in minutes.
const BOOT_MAX: Duration = Duration::from_secs(300);

/// Between two looks at the limits.
const LOOK: Duration = Duration::from_millis(100);

/// Beyond what the agent itself allows a program.
const GRACE: Duration = Duration::from_secs(60);

/// No more of a console is kept in memory by readers.
const CONSOLE_END: u64 = 64 << 10;

/// The kernel says what goes wrong, and then the machine is off; the agent is the first process,
/// and needs no file system but the one in memory.
const PARAMETERS: &str = "console=ttyS0 quiet panic=-1 oops=panic nowatchdog rdinit=/init";

/// What looks at a guest while a program runs there.
#[derive(Default)]
pub(super) struct Look<'p> {
    /// Probes, where they are wanted.
    pub(super) probes: Option<&'p mut Probes>,
    /// What they have found; otherwise why they have not.
    pub(super) found: Option<Result<Found, String>>,
}

impl Look<'_> {
    fn begin(&mut self, engine: u32) {
        if let Some(probes) = &mut self.probes {
            let begun = probes
                .begin()
                .and_then(|()| probes.follow(&threads(engine)));
            self.found = begun.err().map(|error| Err(error.to_string()));
        }
    }

    fn end(&mut self) {
        if let (Some(probes), None) = (&self.probes, &self.found) {
            self.found = Some(probes.found().map_err(|error| error.to_string()));
        }
    }
}

/// The threads of a process.
fn threads(process: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task"));
    let threads = threads.into_iter().flatten().filter_map(Result::ok);
    threads
        .filter_map(|thread| thread.file_name().to_str()?.parse().ok())
        .collect()
}

/// A guest that waits for orders.
#[derive(Debug)]
pub(super) struct Guest {
    engine: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    console: File,
    errors: File,
    kernel: String,
    cpus: usize,
}

impl Guest {
    /// Starts a guest and waits until it can run something; otherwise why it cannot.
    pub(super) fn boot(
        machine: &Machine<'_>,
        files: &File,
        limits: &mut Limits,
    ) -> Result<Result<Self, String>> {
        let memory = |name| -> Result<File> {
            let file = memfd_create(name, MemfdFlags::CLOEXEC);
            Ok(file
                .context("cannot make room for the guest's console")?
                .into())
        };
        let (console, errors) = (memory("pagetrail-console")?, memory("pagetrail-errors")?);
        let initrd = match &machine.initrd {
            None => files.try_clone()?,
            Some(first) => both(first, files)?,
        };
        let mut command = command(machine, &initrd, &console);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors.try_clone()?);
        // Keys of the terminal are for this process, which ends the guest.
        command.process_group(0);
        ends_with_us(&mut command);
        let mut engine = match command.spawn() {
            Ok(engine) => engine,
            Err(error) => {
                let engine = machine.engine.display();
                return Ok(Err(format!("cannot start {engine}: {error}")));
            }
        };
        let input = engine.stdin.take().context("QEMU has no input")?;
        let output = engine.stdout.take().context("QEMU has no output")?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n') {
                let Ok(line) = line else { break };
                let line = String::from_utf8_lossy(&line).into_owned();
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut guest = Self {
            engine,
            input,
            lines,
            console,
            errors,
            kernel: String::new(),
            cpus: 0,
        };
        limits.begin(BOOT_MAX);
        let ready = guest.reply(limits, "the guest does not boot")?;
        Ok(match ready {
            Ok(Reply::Ready { kernel, cpus }) => {
                (guest.kernel, guest.cpus) = (kernel, cpus);
                Ok(guest)
            }
            Ok(_) => Err("the guest begins with something else".into()),
            Err(reason) => Err(reason),
        })
    }

    /// The version of its kernel, and its processors.
    pub(super) fn setting(&self) -> (&str, usize) {
        (&self.kernel, self.cpus)
    }

    /// What KVM has counted of it.
    pub(super) fn counters(&self) -> io::Result<Counters> {
        Counters::of(self.engine.id())
    }

    /// Runs a test; otherwise why the guest is lost.
    pub(super) fn run(
        &mut self,
        suite: &str,
        test: &str,
        timeout: Duration,
        limits: &mut Limits,
        look: &mut Look<'_>,
    ) -> Result<Result<Outcome, String>> {
        let order = Order {
            suite: suite.into(),
            test: test.into(),
        };
        limits.begin(timeout.saturating_add(GRACE));
        self.say(&wire::line(&order));
        let (mut before, mut after) = (None, None);
        loop {
            match self.reply(limits, "the guest does not answer")? {
                Ok(Reply::Prepared) => {
                    look.begin(self.engine.id());
                    before = self.counters().ok();
                }
                Ok(Reply::Ended) => {
                    after = self.counters().ok();
                    look.end();
                }
                Ok(Reply::Done(Outcome::Ran(mut sample))) => {
                    if let (Some(before), Some(after)) = (&before, &after) {
                        sample.kvm = after.since(before);
                    }
                    return Ok(Ok(Outcome::Ran(sample)));
                }
                Ok(Reply::Done(outcome)) => return Ok(Ok(outcome)),
                Ok(Reply::Refused(reason)) => return Ok(Ok(Outcome::NotHere(reason))),
                Ok(Reply::Ready { .. }) => return Ok(Err("the guest has started anew".into())),
                Err(reason) => return Ok(Err(reason)),
            }
            self.say("\n");
        }
    }

    /// Where QEMU has ended, the answer will not come, and that says why.
    fn say(&mut self, line: &str) {
        let _ = self.input.write_all(line.as_bytes());
        let _ = self.input.flush();
    }

    /// What the agent says next; otherwise why it says nothing.
    fn reply(&mut self, limits: &mut Limits, late: &str) -> Result<Result<Reply, String>> {
        loop {
            match self.lines.recv_timeout(LOOK) {
                Ok(line) => {
                    if let Some(reply) = wire::read(&line) {
                        return Ok(Ok(reply));
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    // QEMU keeps such a guest, stopped, for a debugger.
                    if is_given_up(&text(&mut self.errors)) {
                        return Ok(Err(format!("the guest stopped{}", self.last_words())));
                    }
                    if limits.check()?.is_some() {
                        return Ok(Err(format!("{late}{}", self.last_words())));
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    // It has closed its output, so it ends.
                    let _ = self.engine.wait();
                    return Ok(Err(format!("the guest died{}", self.last_words())));
                }
            }
        }
    }

    /// What QEMU said last, or the kernel of the guest, for the end of a line.
    fn last_words(&mut self) -> String {
        let (console, errors) = (text(&mut self.console), text(&mut self.errors));
        let mut lines = console.lines();
        let panic = lines.find(|line| line.contains("Kernel panic"));
        // What follows it are registers.
        let given_up = errors.lines().find(|line| is_given_up(line));
        let last = |text: &str| {
            let line = text.lines().rev().find(|line| !line.trim().is_empty());
            line.map(str::to_owned)
        };
        let said = panic.or(given_up).map(str::to_owned);
        match said.or_else(|| last(&errors)).or_else(|| last(&console)) {
            Some(line) => format!(": {}", words::printable(line.trim())),
            None => String::new(),
        }
    }
}

/// Whether QEMU says that KVM cannot go on with the guest, as where it cannot emulate an
/// instruction on kinds of KVM without the processor's help.
fn is_given_up(errors: &str) -> bool {
    errors.contains("KVM internal error") || errors.contains("error: kvm run failed")
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Fails only where there is nothing left to end.
        let _ = self.engine.kill();
        let _ = self.engine.wait();
    }
}

fn command(machine: &Machine<'_>, initrd: &File, console: &File) -> Command {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut command = Command::new(&machine.engine);
    command
        .args(["-enable-kvm", "-cpu", "host", "-smp", &cpus.to_string()])
        .args(["-m", &format!("{}M", machine.memory_bytes >> 20)])
        .args(["-nodefaults", "-no-user-config", "-no-reboot"])
        .args(["-display", "none", "-monitor", "none"])
        .arg("-kernel")
        .arg(&machine.kernel)
        .arg("-initrd")
        .arg(path_of(initrd))
        .arg("-append")
        .arg(format!("{PARAMETERS} {}", machine.parameters))
        .arg("-serial")
        .arg(format!("file:{}", path_of(console).display()))
        .args(["-serial", "stdio"]);
    command
}

/// The path by which another process opens a file that has none.
fn path_of(file: &File) -> PathBuf {
    let process = std::process::id();
    format!("/proc/{process}/fd/{}", file.as_raw_fd()).into()
}

/// One archive after the other, as the kernel unpacks them.
fn both(first: &File, second: &File) -> Result<File> {
    let file = memfd_create("pagetrail-initrd", MemfdFlags::CLOEXEC);
    let mut file = File::from(file.context("cannot make room for the guest's files")?);
    let (mut first, mut second) = (first.try_clone()?, second.try_clone()?);
    first.rewind()?;
    let length = io::copy(&mut first, &mut file).context("cannot read the initial RAM disk")?;
    let padding = length.next_multiple_of(4) - length;
    file.write_all(&[0; 3][..padding as usize])?;
    second.rewind()?;
    io::copy(&mut second, &mut file)?;
    Ok(file)
}

/// The end of what was written to a file.
fn text(file: &mut File) -> String {
    let mut end = Vec::new();
    let read = file.seek(io::SeekFrom::End(0)).and_then(|length| {
        file.seek(io::SeekFrom::Start(length.saturating_sub(CONSOLE_END)))?;
        file.take(CONSOLE_END).read_to_end(&mut end)
    });
    match read {
        Ok(_) => String::from_utf8_lossy(&end).into_owned(),
        Err(_) => String::new(),
    }
}
