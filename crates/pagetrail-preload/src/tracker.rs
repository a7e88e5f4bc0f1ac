//! [`State`]: whether we answer at all, and the watches that clears arm anew. Reached through
//! [`crate::sys::guard::with_state`] only.

use crate::answer::View;
use crate::descriptors::{self, Kind, Known};
use crate::holder::{self, Armed, Request};
use crate::log::Log;
use crate::machine::Machine;
use crate::own::Own;
use crate::settings::{self, Mode, log};
use crate::sys::kernel;
use pagetrail::{Capabilities, PageSet, Status, Target, Technique, Watch};
use rustix::fd::RawFd;
use rustix::io::Errno;

pub(crate) struct State {
    /// Whether we answer; not known before the first file of ours is opened.
    answers: Option<bool>,
    leaves_bits: bool,
    /// The own process, if it is a collector.
    collector: Option<u32>,
    /// On this process, unless it has a machine.
    own: Option<Own>,
    /// The virtual machine that this process is a guest of, if it is a collector.
    machine: Option<&'static Machine>,
    /// The log that the own bits are read from, if this process is a collector and asks for one.
    log: Option<Log>,
    /// What is armed, by process.
    armed: Vec<(u32, Armed)>,
}

static EMPTY: PageSet = PageSet::new();

impl State {
    pub(crate) const fn new() -> Self {
        Self {
            answers: None,
            leaves_bits: true,
            collector: None,
            own: None,
            machine: None,
            log: None,
            armed: Vec::new(),
        }
    }

    /// Whether we answer for the program.
    pub(crate) fn answers(&mut self) -> bool {
        match self.answers {
            Some(answers) => answers,
            None => {
                let answers = self.decide();
                self.answers = Some(answers);
                answers
            }
        }
    }

    fn decide(&mut self) -> bool {
        let mode = settings::mode();
        if mode == Mode::Off {
            return false;
        }
        self.collector = settings::is_for_collector().then(std::process::id);
        if let Some(collector) = self.collector {
            match Machine::start(collector) {
                Ok(machine) => {
                    log(format_args!(
                        "soft-dirty is answered by the virtual machine, for a collector"
                    ));
                    self.machine = Some(machine);
                    return true;
                }
                Err(pagetrail_guest::Error::NoGuest) => {}
                Err(error) => log(format_args!("not by the virtual machine: {error}")),
            }
            if let Some(technique) = settings::log_technique() {
                match Log::start(technique) {
                    Ok(started) => {
                        log(format_args!(
                            "soft-dirty is answered by {technique}, for a collector"
                        ));
                        self.log = Some(started);
                        return true;
                    }
                    Err(error) => log(format_args!("not by {technique}: {error}")),
                }
            }
        }
        match (mode, kernel::has_soft_dirty()) {
            (Mode::Auto, Some(true)) => {
                log(format_args!(
                    "the kernel has soft-dirty bits; all passes through"
                ));
                return false;
            }
            (_, None) => {
                log(format_args!(
                    "/proc/self/pagemap cannot be read; all passes through"
                ));
                return false;
            }
            _ => {}
        }
        match Capabilities::probe_one(Technique::PagemapScan) {
            Status::Works => {}
            status => {
                log(format_args!("pagemap-scan {status}; all passes through"));
                return false;
            }
        }
        self.leaves_bits = kernel::keeps_protection_when_moved(|page| {
            let watch = Watch::builder().target(Target::ranges([page]));
            watch.technique(Technique::PagemapScan).start().ok()
        });
        log(format_args!(
            "soft-dirty is answered by pagemap-scan{}",
            match (self.leaves_bits, self.collector) {
                (true, None) => ", moved pages looked after",
                (true, Some(_)) => ", moved pages looked after, for a collector",
                (false, None) => "",
                (false, Some(_)) => ", for a collector",
            }
        ));
        true
    }

    /// Looks at a descriptor that the program has just got for a file of such a name, and enters it
    /// if it is what it seems. False when it is, and there is no room: the program must not have it
    /// then.
    pub(crate) fn adopt(&mut self, fd: RawFd, kind: Kind) -> bool {
        if !self.answers() {
            return true;
        }
        let mut buffer = [0; 256];
        let Some(path) = kernel::path(fd, &mut buffer) else {
            return true;
        };
        if let Some(pid) = descriptors::substitute_for(path) {
            let kind = Kind::ClearRefs;
            return descriptors::enter(fd, Known { kind, pid });
        }
        let Some(pid) = descriptors::process_of(path).filter(|_| kernel::is_proc(fd)) else {
            return true;
        };
        if kind == Kind::ClearRefs {
            match kernel::substitute(fd, pid) {
                Ok(()) => {}
                Err(Errno::MFILE | Errno::NFILE) => return false,
                Err(error) => log(format_args!(
                    "no memfd in the place of clear_refs: {error}; writes past the library are lost"
                )),
            }
        }
        if kind == Kind::Pagemap && pid != std::process::id() {
            // Somebody else may have cleared it.
            self.note(pid, holder::ask(pid, Request::Look).unwrap_or_default());
        }
        descriptors::enter(fd, Known { kind, pid })
    }

    /// Gets ready to watch a process that is about to be traced.
    pub(crate) fn about_to_trace(&mut self, pid: u32) {
        if !self.answers() || !holder::may_attach(pid) {
            return;
        }
        if let Err(error) = holder::ask(pid, Request::Attach) {
            log(format_args!("attaching to process {pid}: {error}"));
        }
    }

    /// What is known about the memory of a process.
    pub(crate) fn view(&self, pid: u32) -> View<'_> {
        let known = self.armed.iter().find(|(of, _)| *of == pid);
        View {
            armed: known.map_or(&EMPTY, |(_, sets)| &sets.armed),
            shared: known.map_or(&EMPTY, |(_, sets)| &sets.shared),
            anonymous: known.map_or(&EMPTY, |(_, sets)| &sets.anonymous),
            leaves_bits: self.leaves_bits,
            written: known.and_then(|(_, sets)| sets.written.as_ref()),
        }
    }

    /// Looks again at what was written to another process's memory, where no entry tells it: a
    /// program may keep its `pagemap` open while the process runs.
    pub(crate) fn look_again(&mut self, pid: u32) {
        if self.view(pid).written.is_some() {
            self.note(pid, holder::ask(pid, Request::Look).unwrap_or_default());
        }
    }

    /// Fills in bare entries of the own process by the virtual machine or a log; false where it has
    /// neither, or everything counts as written.
    pub(crate) fn bare_by_log(&mut self, first: u64, entries: &mut [u8]) -> bool {
        if let Some(log) = &mut self.log {
            return log.bare(first, entries);
        }
        self.machine
            .is_some_and(|machine| machine.bare(first, entries))
    }

    /// Whether to answer reads of the entries of a process by bare ones.
    pub(crate) fn answers_bare(&self, pid: u32) -> bool {
        self.collector == Some(pid)
    }

    fn note(&mut self, pid: u32, armed: Armed) {
        self.armed.retain(|(of, _)| *of != pid);
        self.armed.push((pid, armed));
    }

    /// Clears all soft-dirty bits of a process. When that fails everything stays, or becomes,
    /// soft-dirty.
    pub(crate) fn clear(&mut self, pid: u32) {
        let is_own = pid == std::process::id();
        if let Some(machine) = self.machine.filter(|_| is_own) {
            if let Err(error) = machine.clear() {
                machine.give_up();
                log(format_args!(
                    "clearing by the virtual machine: {error}; all of it counts as written"
                ));
            }
            return;
        }
        if let Some(own) = self.log.as_mut().filter(|_| is_own) {
            if let Err(error) = own.clear() {
                log(format_args!(
                    "clearing by the log: {error}; all of it counts as written"
                ));
            }
            return;
        }
        let armed = match is_own {
            true => self.clear_own().map_err(|error| error.to_string()),
            false => match holder::ask(pid, Request::Clear) {
                Ok(armed) => Ok(Some(armed)),
                Err(error) => Err(error.to_string()),
            },
        };
        match armed {
            Ok(None) => {}
            Ok(Some(armed)) => self.note(pid, armed),
            Err(error) => {
                log(format_args!(
                    "clearing process {pid}: {error}; all of it counts as written"
                ));
                self.armed.retain(|(of, _)| *of != pid);
                if is_own {
                    self.own = None;
                }
            }
        }
    }

    /// What is armed now, if that has changed.
    fn clear_own(&mut self) -> pagetrail::Result<Option<Armed>> {
        match &mut self.own {
            Some(own) => own.clear(),
            none => {
                let (own, armed) = Own::start(self.collector.is_some())?;
                *none = Some(own);
                Ok(Some(armed))
            }
        }
    }

    /// Forgets all watches, so that everything counts as written.
    pub(crate) fn give_up(&mut self, why: &str) {
        log(format_args!(
            "{why}; everything counts as written until the next clear"
        ));
        self.own = None;
        self.machine.into_iter().for_each(Machine::give_up);
        self.log.as_mut().into_iter().for_each(Log::give_up);
        self.armed.clear();
    }
}
