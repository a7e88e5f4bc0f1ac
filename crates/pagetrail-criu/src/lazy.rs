//! [`Lazy`]: pages for a process that runs already, as it touches them.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Child;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pagetrail_checkpoint::criu::{Handled, PageServer};
use pagetrail_checkpoint::{Store, WriterOptions};

use crate::engine::{self, Engine};
use crate::error::{Error, Result};

/// CRIU's command.
const VERB: &str = "lazy-pages";
/// What CRIU calls the socket at which it waits for a restored process.
const LAZY_SOCKET: &str = "lazy-pages.socket";
/// How often is looked whether it is there.
const SOCKET_POLL: Duration = Duration::from_millis(2);
/// What is said when a wait fails.
const UNWAITED: &str = "cannot wait for CRIU";

/// CRIU's other half of a lazy restore, and the thread that gives it pages. Dropped, both end.
#[derive(Debug)]
pub struct Lazy {
    child: Child,
    serving: Option<JoinHandle<Result<Handled, pagetrail_checkpoint::Error>>>,
    ours: UnixStream,
}

impl Lazy {
    /// Starts CRIU's half on the images in `directory`, and gives it the pages of checkpoint
    /// `number`; returns when a restored process can be connected.
    pub fn start(engine: &Engine, directory: &Path, store: &Store, number: u64) -> Result<Self> {
        let (ours, theirs) =
            UnixStream::pair().map_err(Error::io("cannot make a pair of sockets"))?;
        let child = engine::start_with(
            engine.command_that_ends_with_us(VERB, directory),
            theirs.into(),
        )?;
        let writable = store.clone();
        let open = move || writable.writer(WriterOptions::default());
        let server = PageServer::new(store.clone(), Some(number), open);
        let stream = ours
            .try_clone()
            .map_err(Error::io("cannot share a socket"))?;
        let serving = thread::Builder::new().spawn(move || {
            let handled = server.handle(&stream);
            if handled.is_err() {
                // CRIU would wait for its answer, and the process for CRIU. Where it has gone, too.
                let _ = stream.shutdown(Shutdown::Both);
            }
            handled
        });
        let mut lazy = Self {
            child,
            serving: Some(serving.map_err(Error::io("cannot start a thread"))?),
            ours,
        };
        while !directory.join(LAZY_SOCKET).exists() {
            let ended = lazy.child.try_wait().map_err(Error::io(UNWAITED))?;
            if ended.is_some() {
                return Err(Error::Failed {
                    what: format!("CRIU cannot restore checkpoint {number} lazily"),
                    reason: engine::reason(VERB, directory),
                });
            }
            thread::sleep(SOCKET_POLL);
        }
        Ok(lazy)
    }

    /// Waits until the process has all its pages; returns how many were given.
    pub fn finish(mut self, directory: &Path) -> Result<u64> {
        let status = self.child.wait().map_err(Error::io(UNWAITED))?;
        let handled = match self.serving.take().map(JoinHandle::join) {
            Some(Ok(handled)) => handled,
            _ => {
                let cause = io::Error::other("its thread has failed");
                return Err(Error::io("cannot give out pages")(cause));
            }
        };
        if !status.success() && handled.is_ok() {
            return Err(Error::Failed {
                what: "the process may lack pages: CRIU could not go on".into(),
                reason: engine::reason(VERB, directory),
            });
        }
        match handled {
            Ok(Handled::Served { pages, .. }) => Ok(pages),
            Ok(_) => Ok(0),
            Err(error) => Err(Error::LacksPages(error)),
        }
    }
}

impl Drop for Lazy {
    fn drop(&mut self) {
        if self.serving.is_some() {
            let _ = self.child.kill();
            let _ = self.child.wait();
            // The thread reads from it.
            let _ = self.ours.shutdown(Shutdown::Both);
        }
    }
}
