//! The names of `attach` where nothing can be attached to: on processors other than x86-64, and
//! without the feature `attach`. Targets are refused before any of them is reached.
//!
//! What attaching needs of a processor is in `attach/code.rs` (injected instructions), `restart.rs`
//! and `interrupted/` (registers of system calls), and `sys/ptrace.rs`.

use crate::error::{Error, Result};

#[path = "attach/target_check.rs"]
#[allow(
    dead_code,
    reason = "a part of it is about trackers, of which there is none here"
)]
mod any_target;

/// The error for every attempt.
fn refused() -> Error {
    Error::NoAttach {
        reason: match cfg!(target_arch = "x86_64") {
            true => "this program was built without pagetrail's feature 'attach'",
            false => "attaching works on x86-64 only",
        },
    }
}

pub(crate) mod target_check {
    use super::{Result, any_target, refused};
    pub(crate) use any_target::explain;

    /// Says what is wrong with a process, and refuses all others.
    pub(crate) fn check(pid: u32) -> Result<()> {
        any_target::check(pid)?;
        Err(refused())
    }
}

pub(crate) mod hold {
    use super::{Result, target_check};
    use crate::types::IfAbandoned;
    use std::convert::Infallible;
    use std::time::{Duration, Instant};

    /// A set of registers of a thread, as `PTRACE_GETREGSET` and core files have it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct RegisterSet {
        /// Which: `NT_PRSTATUS` (1), `NT_PRFPREG` (2), ...
        pub note: u32,
        /// The kernel's layout.
        pub bytes: Vec<u8>,
    }

    /// A thread that is held.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct HeldThread {
        /// Its thread ID.
        pub tid: u32,
        /// Its registers, the general ones first.
        pub registers: Vec<RegisterSet>,
        /// The signals that it blocks, one bit each, signal 1 the lowest.
        pub blocked_signals: u64,
    }

    /// A process whose threads all stand still; there is none in this build, because nothing can be
    /// attached to.
    #[derive(Debug)]
    pub struct Hold(Infallible);

    /// Lets a process go that another thread holds; there is none in this build.
    #[derive(Clone, Debug)]
    pub struct LetGo(Infallible);

    impl LetGo {
        /// Lets the process go, if it is still held.
        pub fn now(&self) {
            match self.0 {}
        }
    }

    /// Like the real one it has an end, so that `drop` of one means the same.
    impl Drop for Hold {
        fn drop(&mut self) {
            match self.0 {}
        }
    }

    impl Hold {
        /// Refuses every process.
        pub fn process(pid: u32) -> Result<Self> {
            target_check::check(pid)?;
            Err(super::refused())
        }

        pub(crate) fn still(_pid: u32) -> Result<Self> {
            Err(super::refused())
        }

        /// The process.
        pub fn pid(&self) -> u32 {
            match self.0 {}
        }

        /// Its threads, the main thread first.
        pub fn threads(&self) -> &[HeldThread] {
            match self.0 {}
        }

        /// When the first thread was asked to stop.
        pub fn since(&self) -> Instant {
            match self.0 {}
        }

        /// Checks that the process has stood still until now.
        pub fn check(&self) -> Result<()> {
            match self.0 {}
        }

        /// What lets the process go from another thread.
        pub fn let_go(&self) -> LetGo {
            match self.0 {}
        }

        pub(crate) fn rewrite(&mut self, _addresses: Vec<u64>) -> Result<Vec<u64>> {
            match self.0 {}
        }

        /// Chooses what becomes of the process if this one ends before it lets go.
        pub fn if_abandoned(&mut self, _what: IfAbandoned) -> Result<()> {
            match self.0 {}
        }

        /// Sets the registers and the blocked signals of threads.
        pub fn set_registers(&mut self, _threads: &[HeldThread]) -> Result<()> {
            match self.0 {}
        }

        /// Finds out what the kernel keeps for the process.
        pub fn kernel_state(&mut self) -> Result<crate::types::KernelState> {
            match self.0 {}
        }

        /// Lets the process go; returns for how long it stood still.
        pub fn release(self) -> Duration {
            match self.0 {}
        }
    }
}

pub(crate) mod inject {
    use super::{Result, refused};
    use rustix::fd::OwnedFd;
    use std::time::Duration;

    /// A userfaultfd of another process.
    pub(crate) struct Fetched {
        pub(crate) fd: OwnedFd,
        pub(crate) stopped: Duration,
    }

    pub(crate) fn fetch(_pid: u32, _faults: crate::sys::uffd::Faults) -> Result<Fetched> {
        Err(refused())
    }
}

pub(crate) mod launch {
    use super::{Result, refused};
    use rustix::fd::OwnedFd;
    use std::convert::Infallible;
    use std::process::Command;
    use std::time::Duration;

    /// How a program ended.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum Ended {
        /// With this exit code.
        Exited(i32),
        /// By this signal.
        Killed(i32),
    }

    /// What the technique needs from the program's address space.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Need {
        Nothing,
        Userfaultfd { faults: crate::sys::uffd::Faults },
        Tracing,
    }

    /// How long the program is traced.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Hold {
        AtItsStart,
        UntilItsEnd,
    }

    /// A new address space of the program.
    #[derive(Debug)]
    pub(crate) struct Image {
        pub(crate) fd: Option<OwnedFd>,
        pub(crate) stopped: Duration,
    }

    /// A program started under watch, of which there is none.
    pub(crate) struct Launched {
        pub(crate) pid: u32,
        never: Infallible,
    }

    impl Launched {
        pub(crate) fn start(_command: Command, _need: Need, _hold: Hold) -> Result<Self> {
            Err(refused())
        }

        pub(crate) fn take_image(&mut self, _timeout: Duration) -> Option<Result<Image>> {
            match self.never {}
        }

        pub(crate) fn go(&mut self) {
            match self.never {}
        }

        pub(crate) fn is_exiting(&mut self) -> bool {
            match self.never {}
        }

        pub(crate) fn ended(&mut self) -> Option<Ended> {
            match self.never {}
        }

        pub(crate) fn wait(&mut self, _timeout: Duration) {
            match self.never {}
        }
    }
}

pub(crate) mod stop {
    use std::time::Instant;

    /// A wait for other trackers, which is over at once: we do not attach after them.
    pub(crate) struct Backoff;

    impl Backoff {
        pub(crate) fn until(_deadline: Instant) -> Self {
            Self
        }

        pub(crate) fn wait(&mut self) -> bool {
            false
        }
    }
}
