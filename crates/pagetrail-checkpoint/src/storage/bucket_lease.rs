//! [`Lease`]: the right to write to a [bucket](super::bucket), as an object `lock` that its holder
//! writes anew all the time.
//!
//! An object store has no lock that goes with its holder, and no clock that all agree on. So times
//! are not compared: a process that finds the object watches for a while whether it changes. If it
//! does, its holder lives; if not, the holder was killed, and the object is taken over by a write
//! on the condition that it is still the same.
//!
//! A holder that has not been able to renew in time gives up by itself before another may take
//! over: what it writes is refused here, with an error. A request that it had sent before may still
//! arrive, minutes later; so manifests are written on conditions, too ([bucket](super::bucket)),
//! and who has taken over leaves everything that such a request may need.

use super::bucket::Remote;
use object_store::{ObjectStoreExt, PutMode, UpdateVersion};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const LOCK: &str = "lock";

/// How often is renewed, and how long one watches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// An object that does not change for so long was left behind.
    stale: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self::stale_after(Duration::from_secs(30))
    }
}

impl Timing {
    pub(super) fn stale_after(stale: Duration) -> Self {
        Self { stale }
    }

    fn renew_every(self) -> Duration {
        self.stale / 6
    }

    /// Without having been renewed for so long, a holder no longer writes. What it has begun has
    /// until `stale` to end.
    fn give_up_after(self) -> Duration {
        self.stale / 2
    }
}

/// Held. Dropped, it is given back.
#[derive(Debug)]
pub(super) struct Lease {
    remote: Remote,
    timing: Timing,
    began: Instant,
    /// When it was renewed last, in ns since it began.
    renewed: Arc<AtomicU64>,
    /// Dropped, it ends the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<UpdateVersion>>,
}

impl Lease {
    /// Takes the lease, and says whether from a holder that had left it behind; `None` when
    /// somebody has it.
    pub(super) fn take(remote: &Remote, timing: Timing) -> io::Result<Option<(Self, bool)>> {
        let path = remote.path(LOCK);
        let deadline = Instant::now() + timing.stale;
        let mut seen: Option<UpdateVersion> = None;
        let (version, left_behind) = loop {
            match put(remote, PutMode::Create) {
                Ok(version) => break (version, false),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
            let found = match remote.wait(remote.objects.head(&path)) {
                // Given back meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                outcome => outcome?,
            };
            let found = UpdateVersion {
                e_tag: found.e_tag,
                version: found.version,
            };
            match &seen {
                Some(before) if *before != found => return Ok(None),
                Some(before) if Instant::now() >= deadline => {
                    match put(remote, PutMode::Update(before.clone())) {
                        Ok(version) => break (version, true),
                        // Somebody else was faster.
                        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(None),
                        Err(error) => return Err(error),
                    }
                }
                Some(_) => {}
                None => {
                    tracing::info!(
                        "another writer may be at work: watching it for {:?}",
                        timing.stale
                    );
                    seen = Some(found);
                }
            }
            std::thread::sleep(timing.renew_every() / 4);
        };
        Ok(Some((Self::hold(remote, timing, version)?, left_behind)))
    }

    fn hold(remote: &Remote, timing: Timing, mut version: UpdateVersion) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let began = Instant::now();
        let renewed = Arc::new(AtomicU64::new(0));
        let (stamp, own) = (Arc::clone(&renewed), remote.clone());
        let thread = std::thread::Builder::new().name("pagetrail-lease".into());
        let thread = thread.spawn(move || {
            while stopped.recv_timeout(timing.renew_every()) == Err(RecvTimeoutError::Timeout) {
                // By when it was asked for: it may have been done at once, and answered late.
                let asked = began.elapsed().as_nanos() as u64;
                match put(&own, PutMode::Update(version.clone())) {
                    Ok(new) => {
                        version = new;
                        stamp.store(asked, Ordering::Release);
                    }
                    Err(error) => tracing::warn!("the lock on the store is not renewed: {error}"),
                }
            }
            version
        })?;
        Ok(Self {
            remote: remote.clone(),
            timing,
            began,
            renewed,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Fails when somebody else may have taken over.
    pub(super) fn check(&self) -> io::Result<()> {
        let renewed = Duration::from_nanos(self.renewed.load(Ordering::Acquire));
        if self.began.elapsed().saturating_sub(renewed) < self.timing.give_up_after() {
            return Ok(());
        }
        let reason =
            "the lock on the store could not be renewed, and may be another writer's by now";
        Err(io::Error::other(reason))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let held = self.check().is_ok();
        self.stop = None;
        let version = self.thread.take().and_then(|thread| thread.join().ok());
        // One that may be another's by now is not for us to remove.
        if let Some(version) = version
            && held
            && put(&self.remote, PutMode::Update(version)).is_ok()
        {
            let path = self.remote.path(LOCK);
            let _ = self.remote.wait(self.remote.objects.delete(&path));
        }
    }
}

/// Writes the object, with contents that it never had before. [`ErrorKind::AlreadyExists`] says
/// that the condition fails.
fn put(remote: &Remote, mode: PutMode) -> io::Result<UpdateVersion> {
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let contents = format!(
        "process {} of {}, {} ns, {}\n",
        std::process::id(),
        rustix::system::uname().nodename().to_string_lossy(),
        now.unwrap_or_default().as_nanos(),
        WRITTEN.fetch_add(1, Ordering::Relaxed),
    );
    remote.put_on_condition(LOCK, contents.into_bytes(), mode)
}
