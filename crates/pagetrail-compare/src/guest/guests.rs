//! Virtual machines with a Linux kernel of their own, for the environments `kvm` and `kvm:shadow`:
//! each is started once for a comparison, and runs all that is run there.
//!
//! `image` is what a guest finds in its memory, `kernel` the host's kernels, `guest` a machine that
//! runs, and `agent` this program inside it.

use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;

use anyhow::{Result, bail};
use pagetrail_compare::environment::Paging;
use pagetrail_compare::guest::paging::Host;
use pagetrail_compare::method::Outcome;
use pagetrail_probes::{Found, Probes};
use pagetrail_report::size::Size;

use self::args::LinuxArgs;
use self::guest::{Guest, Look};
use super::runner::PROGRAM;
use super::waiting::Limits;

pub(super) mod agent;
pub(super) mod args;
mod guest;
mod image;
mod kernel;

/// Names of QEMU for this processor: Debian's, Red Hat's.
const ENGINES: [&str; 2] = ["qemu-system-x86_64", "/usr/libexec/qemu-kvm"];

/// The suite that measures a disk, which guests do not have.
const DISK: &str = "disk";

/// The guests of a comparison.
pub(super) struct Guests<'a> {
    args: &'a LinuxArgs,
    command: &'a [OsString],
    timeout: std::time::Duration,
    running: Vec<(Paging, Guest)>,
    notes: Vec<String>,
}

/// What a guest is made of.
struct Machine<'a> {
    engine: PathBuf,
    kernel: PathBuf,
    /// What is unpacked before our own files.
    initrd: Option<File>,
    memory_bytes: u64,
    parameters: &'a str,
}

impl<'a> Guests<'a> {
    pub(super) fn new(
        args: &'a LinuxArgs,
        command: &'a [OsString],
        timeout: std::time::Duration,
    ) -> Self {
        Self {
            args,
            command,
            timeout,
            running: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Why guests are not here, as far as is known without starting one.
    pub(super) fn absence(&self, paging: Paging) -> Option<String> {
        let machine = self.machine();
        machine
            .err()
            .map(|error| format!("{error:#}"))
            .or_else(|| Host::ask().absence(paging))
    }

    fn machine(&self) -> Result<Machine<'a>> {
        if std::env::consts::ARCH != "x86_64" {
            bail!("guests with a kernel of their own are started on x86-64 only");
        }
        let kvm = File::options().read(true).write(true).open("/dev/kvm");
        if let Err(error) = kvm {
            bail!("/dev/kvm cannot be opened: {error}");
        }
        let mut engines = ENGINES.iter().filter_map(|name| image::find(name.as_ref()));
        let Some(engine) = engines.next() else {
            bail!("there is no {} in PATH: install QEMU", ENGINES[0]);
        };
        Ok(Machine {
            engine,
            kernel: kernel::find(self.args.kernel.as_deref())?,
            initrd: self.args.initrd()?,
            memory_bytes: self.args.memory_bytes(),
            parameters: self.args.parameters(),
        })
    }

    /// Runs a test in a guest, which is started first where it does not run yet.
    pub(super) fn run(
        &mut self,
        paging: Paging,
        suite: &str,
        test: &str,
        limits: &mut Limits,
    ) -> Result<Outcome> {
        self.look(paging, suite, test, limits, &mut Look::default())
    }

    /// Runs a test once more, under probes of the guest's virtual processors.
    pub(super) fn probe(
        &mut self,
        paging: Paging,
        suite: &str,
        test: &str,
        limits: &mut Limits,
        probes: &mut Probes,
    ) -> Result<Result<Found, String>> {
        let mut look = Look {
            probes: Some(probes),
            found: None,
        };
        self.look(paging, suite, test, limits, &mut look)?;
        let nothing = || Err("the guest ended before probes found anything".into());
        Ok(look.found.unwrap_or_else(nothing))
    }

    fn look(
        &mut self,
        paging: Paging,
        suite: &str,
        test: &str,
        limits: &mut Limits,
        look: &mut Look<'_>,
    ) -> Result<Outcome> {
        if suite == DISK {
            let reason = "the guest has its files in memory, so there is no disk to measure";
            return Ok(Outcome::Apart(reason.into()));
        }
        if !self.running.iter().any(|(of, _)| *of == paging) {
            let machine = self.machine()?;
            let files =
                match image::make(self.args, self.command, self.timeout, machine.memory_bytes) {
                    Ok(files) => files,
                    Err(error) => return Ok(Outcome::NotHere(error.to_string())),
                };
            match Guest::boot(&machine, &files, limits)? {
                Ok(guest) => {
                    self.note(paging, &machine, &guest);
                    self.running.push((paging, guest));
                }
                Err(reason) => return Ok(Outcome::NotHere(reason)),
            }
        }
        let mut running = self.running.iter_mut();
        let Some((_, guest)) = running.find(|(of, _)| *of == paging) else {
            bail!("the guest is gone");
        };
        let outcome = match guest.run(suite, test, self.timeout, limits, look)? {
            Ok(outcome) => outcome,
            Err(reason) => {
                self.running.retain(|(of, _)| *of != paging);
                return Ok(Outcome::Failed(reason));
            }
        };
        Ok(match outcome {
            // A program that the guest does not have is no reason to leave out other tests.
            Outcome::NotHere(reason) if suite != PROGRAM => Outcome::Apart(reason),
            outcome => outcome,
        })
    }

    /// What there is to say of the guests that ran.
    pub(super) fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn note(&mut self, paging: Paging, machine: &Machine<'_>, guest: &Guest) {
        let environment = pagetrail_compare::environment::Environment::Kvm(paging);
        let (kernel, cpus) = guest.setting();
        let mut note = format!(
            "{environment}: Linux {kernel}, {}, {} of memory",
            pagetrail_report::words::plural(cpus as u64, "CPU"),
            Size::shown(machine.memory_bytes)
        );
        if let Err(error) = guest.counters() {
            note += &format!("; no counters of KVM, which root finds in debugfs: {error}");
        }
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}
