//! [`Lazy`]: pages for a process that runs already, as it touches them.

use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pagetrail_checkpoint::criu::{Handled, PageServer};
use pagetrail_checkpoint::{Store, WriterOptions};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::engine::{self, Engine};
use crate::error::{Error, Result};

/// CRIU's command.
const VERB: &str = "lazy-pages";
/// What CRIU calls the socket at which it waits for a restored process.
const LAZY_SOCKET: &str = "lazy-pages.socket";
/// How often is looked whether something has happened.
const POLL: Duration = Duration::from_millis(2);
/// What is said when a wait fails.
const UNWAITED: &str = "cannot wait for CRIU";

/// CRIU's other half of a lazy restore, and the thread that gives it pages.
///
/// CRIU's half holds the userfaultfd of the process. When that is closed too early, the kernel
/// gives the process zeros for what it lacks, silently (`userfaultfd_release` in
/// `fs/userfaultfd.c`). So whatever goes wrong, the processes are ended first, and CRIU's half
/// after them: by this process, or by a guard if this one is killed. Dropped, all end.
#[derive(Debug)]
pub(crate) struct Lazy {
    child: Child,
    serving: Option<JoinHandle<Handling>>,
    ours: UnixStream,
    guard: Guard,
    processes: Vec<OwnedFd>,
}

type Handling = Result<Handled, pagetrail_checkpoint::Error>;

impl Lazy {
    /// Starts CRIU's half on the images in `directory`, and gives it the pages of checkpoint
    /// `number`, of the processes `pids`; returns when a restored process can be connected.
    pub(crate) fn start(
        engine: &Engine,
        directory: &Path,
        store: &Store,
        number: u64,
        pids: &[u32],
    ) -> Result<Self> {
        let (ours, theirs) =
            UnixStream::pair().map_err(Error::io("cannot make a pair of sockets"))?;
        let child = engine::start_with(engine.command(VERB, directory), theirs.into())?;
        let guard = Guard::start(pids, child.id());
        let writable = store.clone();
        let open = move || writable.writer(WriterOptions::default());
        let server = PageServer::new(store.clone(), Some(number), open);
        let stream = ours
            .try_clone()
            .map_err(Error::io("cannot share a socket"))?;
        let serving = thread::Builder::new().spawn(move || server.handle(&stream));
        let mut lazy = Self {
            child,
            serving: Some(serving.map_err(Error::io("cannot start a thread"))?),
            ours,
            guard: guard?,
            processes: Vec::new(),
        };
        while !directory.join(LAZY_SOCKET).exists() {
            let ended = lazy.child.try_wait().map_err(Error::io(UNWAITED))?;
            if ended.is_some() || lazy.has_stopped_serving() {
                return Err(Error::Failed {
                    what: format!("CRIU cannot restore checkpoint {number} lazily"),
                    reason: engine::reason(VERB, directory),
                });
            }
            thread::sleep(POLL);
        }
        Ok(lazy)
    }

    /// Takes charge of the processes that run now, and lack pages.
    pub(crate) fn watch(&mut self, pids: &[u32]) -> Result<()> {
        let guard = Guard::start(pids, self.child.id())?;
        std::mem::replace(&mut self.guard, guard).dismiss();
        let known = pids.iter().filter_map(|pid| Pid::from_raw(*pid as i32));
        // One that has ended lacks nothing.
        self.processes = known
            .filter_map(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
            .collect();
        Ok(())
    }

    fn has_stopped_serving(&self) -> bool {
        self.serving.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until the process has all its pages; returns how many were given. Where it cannot get
    /// them it is ended.
    pub(crate) fn finish(mut self, directory: &Path) -> Result<u64> {
        let mut handled = None;
        let status = loop {
            if let Some(status) = self.child.try_wait().map_err(Error::io(UNWAITED))? {
                break status;
            }
            if handled.is_none() && self.has_stopped_serving() {
                let outcome = self.served()?;
                if outcome.is_err() {
                    // CRIU would wait for its answer, and the process for CRIU.
                    self.end();
                }
                handled = Some(outcome);
            }
            thread::sleep(POLL);
        };
        let handled = match handled {
            Some(handled) => handled,
            None => {
                if !status.success() {
                    // The thread reads from it.
                    let _ = self.ours.shutdown(Shutdown::Both);
                }
                self.served()?
            }
        };
        if !status.success() || handled.is_err() {
            self.end();
        }
        if !status.success() && handled.is_ok() {
            return Err(Error::Failed {
                what: "the process lacked pages, and was ended: CRIU could not go on".into(),
                reason: engine::reason(VERB, directory),
            });
        }
        self.processes.clear();
        match handled {
            Ok(Handled::Served { pages, .. }) => Ok(pages),
            Ok(_) => Ok(0),
            Err(error) => Err(Error::LacksPages(error)),
        }
    }

    /// The outcome of the thread.
    fn served(&mut self) -> Result<Handling> {
        match self.serving.take().map(JoinHandle::join) {
            Some(Ok(handled)) => Ok(handled),
            _ => {
                let cause = io::Error::other("its thread has failed");
                Err(Error::io("cannot give out pages")(cause))
            }
        }
    }

    /// Ends the processes, then CRIU's half.
    fn end(&mut self) {
        for process in self.processes.drain(..) {
            let _ = pidfd_send_signal(&process, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.ours.shutdown(Shutdown::Both);
    }
}

impl Drop for Lazy {
    fn drop(&mut self) {
        // Processes are left where the outcome is not known: the thread has failed, or nobody
        // waited for it.
        if self.serving.is_some() || !self.processes.is_empty() {
            self.end();
        }
        self.guard.dismiss_now();
    }
}

/// A process that outlives this one, if this one is killed, for as long as it takes to end the
/// processes that lack pages, and then CRIU's half.
#[derive(Debug)]
struct Guard {
    shell: Child,
    tell: Option<ChildStdin>,
}

impl Guard {
    /// What it does: without a line before its input ends, it kills.
    const SCRIPT: &str = "read -r line || kill -s KILL \"$@\"";

    fn start(pids: &[u32], lazy_pages: u32) -> Result<Self> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", Self::SCRIPT, "sh"]);
        command.args(pids.iter().chain([&lazy_pages]).map(u32::to_string));
        // A signal to this process' group is not for it.
        command.process_group(0).stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut shell = command.spawn().map_err(Error::io("cannot run /bin/sh"))?;
        let tell = shell.stdin.take();
        Ok(Self { shell, tell })
    }

    fn dismiss(mut self) {
        self.dismiss_now();
    }

    fn dismiss_now(&mut self) {
        if let Some(mut tell) = self.tell.take() {
            let _ = tell.write_all(b"\n");
            let _ = self.shell.wait();
        }
    }
}
