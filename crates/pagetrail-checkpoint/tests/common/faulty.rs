//! [`Faulty`]: a storage that fails, or kills its process, at a chosen step. With it tests reach
//! every point between two steps of a writer.

#![allow(dead_code, reason = "each test program uses a part")]

use pagetrail_checkpoint::storage::{Draft, Name, Object, Publish, Storage};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What happens at the chosen step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The step fails as on a full disk; the steps after it work again.
    Once,
    /// The step and all after it fail.
    FromThen,
    /// The process gets `SIGKILL`.
    Kill,
}

/// Another storage, with a fault at the step of a given number: each creation, write, publication
/// and removal is one. A write that fails has written half of its bytes.
#[derive(Debug)]
pub(crate) struct Faulty<S> {
    inner: S,
    plan: Arc<Plan>,
}

struct Plan {
    at: u64,
    fault: Fault,
    steps: AtomicU64,
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at step {}", self.fault, self.at)
    }
}

impl Plan {
    /// Counts a step; `half` is done first where it fails.
    fn step(&self, half: impl FnOnce()) -> io::Result<()> {
        let step = self.steps.fetch_add(1, Ordering::SeqCst);
        let fails = match self.fault {
            Fault::FromThen => step >= self.at,
            Fault::Once | Fault::Kill => step == self.at,
        };
        if !fails {
            return Ok(());
        }
        half();
        if self.fault == Fault::Kill {
            let me = rustix::process::getpid();
            let _ = rustix::process::kill_process(me, rustix::process::Signal::KILL);
        }
        Err(rustix::io::Errno::NOSPC.into())
    }
}

impl<S: Storage> Faulty<S> {
    /// Fails at step `at`, counted from 0.
    pub(crate) fn new(inner: S, at: u64, fault: Fault) -> Self {
        let plan = Plan {
            at,
            fault,
            steps: AtomicU64::new(0),
        };
        Self {
            inner,
            plan: Arc::new(plan),
        }
    }

    /// A counter of the steps so far, which outlives this.
    pub(crate) fn steps(&self) -> impl Fn() -> u64 + use<S> {
        let plan = Arc::clone(&self.plan);
        move || plan.steps.load(Ordering::SeqCst)
    }
}

impl<S: Storage> Storage for Faulty<S> {
    fn place(&self) -> String {
        self.inner.place()
    }

    fn names(&self) -> io::Result<Vec<Name>> {
        self.inner.names()
    }

    fn open(&self, name: Name) -> io::Result<Box<dyn Object>> {
        self.inner.open(name)
    }

    fn create(&self) -> io::Result<Box<dyn Draft>> {
        self.plan.step(|| ())?;
        Ok(Box::new(FaultyDraft {
            inner: self.inner.create()?,
            plan: Arc::clone(&self.plan),
        }))
    }

    fn remove(&self, name: Name) -> io::Result<()> {
        self.plan.step(|| ())?;
        self.inner.remove(name)
    }

    fn lock(&self) -> io::Result<Option<Box<dyn Send>>> {
        self.inner.lock()
    }

    fn is_held(&self) -> bool {
        self.inner.is_held()
    }

    fn may_have_late_writes(&self) -> bool {
        self.inner.may_have_late_writes()
    }

    fn set_aside(&self, name: Name) -> io::Result<()> {
        self.plan.step(|| ())?;
        self.inner.set_aside(name)
    }

    fn sweep(&self) -> io::Result<()> {
        self.inner.sweep()
    }
}

struct FaultyDraft {
    inner: Box<dyn Draft>,
    plan: Arc<Plan>,
}

impl Draft for FaultyDraft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (inner, half) = (&mut self.inner, &bytes[..bytes.len() / 2]);
        self.plan.step(|| {
            let _ = inner.write(half);
        })?;
        self.inner.write(bytes)
    }

    fn can_rewrite(&self) -> bool {
        self.inner.can_rewrite()
    }

    fn rewrite(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let (inner, half) = (&mut self.inner, &bytes[..bytes.len() / 2]);
        self.plan.step(|| {
            let _ = inner.rewrite(offset, half);
        })?;
        self.inner.rewrite(offset, bytes)
    }

    fn written(&self) -> Option<&dyn Object> {
        self.inner.written()
    }

    fn publish(self: Box<Self>, name: Name, how: Publish) -> io::Result<()> {
        self.plan.step(|| ())?;
        self.inner.publish(name, how)
    }
}
