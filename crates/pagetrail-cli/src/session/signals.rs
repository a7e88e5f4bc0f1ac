//! [`Signals`]: signals that arrived for this process, checked between rounds.

use std::io;

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXFSZ};

/// The process that the signals are meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Addressee {
    /// pagetrail itself: each signal is a request to stop.
    Us,
    /// The program with this PID, which pagetrail started. The terminal sends keyboard signals to
    /// it directly.
    Program(u32),
}

/// Signals that arrived since the last check.
pub(crate) struct Signals {
    pending: signal_hook::iterator::Signals,
    addressee: Addressee,
}

impl Signals {
    /// Installs the handlers. Programs started later are not affected, because `execve(2)` resets
    /// handlers.
    pub(crate) fn take(addressee: Addressee) -> io::Result<Self> {
        // With SIGXFSZ handled, write(2) fails with EFBIG at a file size limit, as at a full disk.
        let signals = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGXFSZ];
        Ok(Self {
            pending: signal_hook::iterator::Signals::new(signals)?,
            addressee,
        })
    }

    /// Returns whether a signal asked pagetrail to stop; forwards signals that are meant for the
    /// program.
    pub(crate) fn stop_requested(&mut self) -> bool {
        let mut stop = false;
        for signal in self.pending.pending() {
            let pass_on = match signal {
                SIGTERM => Signal::TERM,
                SIGHUP => Signal::HUP,
                SIGXFSZ => continue,
                _ => Signal::INT,
            };
            match self.addressee {
                Addressee::Us => stop = true,
                Addressee::Program(pid) if pass_on != Signal::INT => {
                    if let Some(pid) = Pid::from_raw(pid as i32) {
                        // It may have ended just now.
                        let _ = kill_process(pid, pass_on);
                    }
                }
                Addressee::Program(_) => {}
            }
        }
        stop
    }
}
