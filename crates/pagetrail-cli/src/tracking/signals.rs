//! [`Signals`]: what was asked of this process by signals, to be looked at between rounds.

use std::io;

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXFSZ};

/// Whose signals they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Addressee {
    /// Ours: each asks us to come to an end.
    Us,
    /// Those of the program with this PID, which we started. It gets the keyboard's signals by itself.
    Program(u32),
}

/// Signals since the last look.
pub(crate) struct Signals {
    pending: signal_hook::iterator::Signals,
    addressee: Addressee,
}

impl Signals {
    /// Takes them over from now on; programs started later are not affected, because handlers end at `execve(2)`.
    pub(crate) fn take(addressee: Addressee) -> io::Result<Self> {
        // A file that may not grow is to be an error of write(2), as a full disk is.
        let signals = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGXFSZ];
        Ok(Self {
            pending: signal_hook::iterator::Signals::new(signals)?,
            addressee,
        })
    }

    /// Whether to come to an end; passes on what is not for us.
    pub(crate) fn stop_asked(&mut self) -> bool {
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
