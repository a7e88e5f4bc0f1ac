//! Virtual machines with a Linux kernel of their own, for the environments `kvm` and `kvm:shadow`:
//! each is started once for a comparison, and runs all that is run there.
//!
//! [`Settings`] are what they are made of.

use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pagetrail_probes::{Found, Probes};
use pagetrail_report::size::Size;

use super::paging::Host;
use super::running::{Guest, Look};
use super::{image, kernel};
use crate::environment::{Environment, Paging};
use crate::local::Limits;
use crate::method::Outcome;
use crate::suite::PROGRAM;

/// Names of QEMU for this processor: Debian's, Red Hat's.
const ENGINES: [&str; 2] = ["qemu-system-x86_64", "/usr/libexec/qemu-kvm"];

/// The suite that measures a disk, which guests do not have.
const DISK: &str = "disk";

/// What a comparison's guests are made of.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The Linux kernel, a bzImage; otherwise it is one that this machine has.
    pub kernel: Option<PathBuf>,
    /// An initial RAM disk, which is unpacked before our own files.
    pub initrd: Option<PathBuf>,
    /// Files and directories to be there beside what the program needs.
    pub files: Vec<PathBuf>,
    /// The memory of a guest, half of which its files may take.
    pub memory_bytes: u64,
    /// Parameters for the kernel.
    pub parameters: String,
    /// The arguments by which this program is the agent in a guest, before those of the command.
    pub agent: Vec<OsString>,
    /// The program to compare, and its arguments; empty for tests of suites.
    pub command: Vec<OsString>,
    /// How long a run may take.
    pub timeout: Duration,
}

/// The guests of a comparison.
#[derive(Debug)]
pub struct Guests {
    settings: Settings,
    running: Vec<(Paging, Guest)>,
    notes: Vec<String>,
}

/// What a guest is started with.
pub(super) struct Machine<'a> {
    pub(super) engine: PathBuf,
    pub(super) kernel: PathBuf,
    /// What is unpacked before our own files.
    pub(super) initrd: Option<File>,
    pub(super) memory_bytes: u64,
    pub(super) parameters: &'a str,
}

impl Settings {
    fn machine(&self) -> Result<Machine<'_>> {
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
        let open = |path: &PathBuf| {
            File::open(path).with_context(|| format!("cannot read {}", path.display()))
        };
        Ok(Machine {
            engine,
            kernel: kernel::find(self.kernel.as_deref())?,
            initrd: self.initrd.as_ref().map(open).transpose()?,
            memory_bytes: self.memory_bytes,
            parameters: &self.parameters,
        })
    }
}

impl Guests {
    /// Guests, none of which runs yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            running: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Why guests are not here, as far as is known without starting one.
    #[must_use]
    pub fn absence(&self, paging: Paging) -> Option<String> {
        let machine = self.settings.machine();
        machine
            .err()
            .map(|error| format!("{error:#}"))
            .or_else(|| Host::ask().absence(paging))
    }

    /// Runs a test in a guest, which is started first where it does not run yet.
    ///
    /// # Errors
    ///
    /// The comparison was interrupted, or a guest cannot be started although it seemed so.
    pub fn run(
        &mut self,
        paging: Paging,
        suite: &str,
        test: &str,
        limits: &mut Limits,
    ) -> Result<Outcome> {
        self.look(paging, suite, test, limits, &mut Look::default())
    }

    /// Runs a test once more, under probes of the guest's virtual processors.
    ///
    /// # Errors
    ///
    /// As for [`run`](Self::run).
    pub fn probe(
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
            let machine = self.settings.machine()?;
            let files = match image::make(&self.settings) {
                Ok(files) => files,
                Err(error) => return Ok(Outcome::NotHere(error.to_string())),
            };
            match Guest::boot(&machine, &files, limits)? {
                Ok(guest) => {
                    let note = note(paging, machine.memory_bytes, &guest);
                    if !self.notes.contains(&note) {
                        self.notes.push(note);
                    }
                    self.running.push((paging, guest));
                }
                Err(reason) => return Ok(Outcome::NotHere(reason)),
            }
        }
        let mut running = self.running.iter_mut();
        let Some((_, guest)) = running.find(|(of, _)| *of == paging) else {
            bail!("the guest is gone");
        };
        let outcome = match guest.run(suite, test, self.settings.timeout, limits, look)? {
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
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}

/// What there is to say of a guest that runs.
fn note(paging: Paging, memory_bytes: u64, guest: &Guest) -> String {
    let environment = Environment::Kvm(paging);
    let (kernel, cpus) = guest.setting();
    let mut note = format!(
        "{environment}: Linux {kernel}, {}, {} of memory",
        pagetrail_report::words::plural(cpus as u64, "CPU"),
        Size::shown(memory_bytes)
    );
    if let Err(error) = guest.counters() {
        note += &format!("; no counters of KVM, which root finds in debugfs: {error}");
    }
    note
}
