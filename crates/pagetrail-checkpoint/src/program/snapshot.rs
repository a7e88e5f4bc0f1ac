//! [`Snapshot`]: memory that goes back to what it was, again and again, at the price of what was
//! written.
//!
//! The memory is mapped twice. One mapping is the user's, and watched; through the other the saved
//! contents are copied back, which costs no faults there and counts as no writes.

use super::policy::{Policy, Way};
use crate::error::{Error, Result};
use crate::sys::mapping::Mapping;
use pagetrail::Choice;
use pagetrail_guest::WriteSet;
use std::ops::{Deref, DerefMut};

/// Memory of which a [`Snapshot`] can be taken: zeroed, whole pages, used as a slice of bytes.
///
/// It is shared memory: a child made by `fork(2)` sees the parent's writes, and the other way
/// round.
#[derive(Debug)]
pub struct Arena(Mapping);

impl Arena {
    /// Maps at least so many bytes.
    ///
    /// # Errors
    ///
    /// Memory cannot be had.
    pub fn new(bytes: usize) -> Result<Self> {
        let mapping = Mapping::twin(bytes);
        mapping
            .map(Self)
            .map_err(|errno| Error::io("cannot map memory")(errno.into()))
    }
}

impl Deref for Arena {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_slice()
    }
}

impl DerefMut for Arena {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.as_mut_slice()
    }
}

/// What a reset did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    /// Pages that were copied back.
    pub pages: u64,
    /// Whether it was all of them, without asking which were written.
    pub whole: bool,
}

/// An instant of an [`Arena`], to which it can be put back.
///
/// ```
/// use pagetrail_checkpoint::{Arena, Snapshot};
/// let mut arena = Arena::new(1 << 20)?;
/// arena[..5].copy_from_slice(b"ready");
/// let mut snapshot = Snapshot::take(arena)?;
/// for input in 0..3 {
///     snapshot[input] = b'x'; // a test case, a request
///     snapshot[1 << 19] = 1;
///     let reset = snapshot.reset()?; // copies two pages, not a megabyte
///     assert_eq!(reset.pages, 2);
///     assert_eq!(&snapshot[..5], b"ready");
///     assert_eq!(snapshot[1 << 19], 0);
/// }
/// # Ok::<(), pagetrail_checkpoint::Error>(())
/// ```
///
/// Where more than a quarter of the pages are written between resets, watching them costs more than
/// copying all of them; it finds out by itself, and then just copies.
#[derive(Debug)]
pub struct Snapshot {
    /// Before the arena: it ends first. `None` while everything is copied.
    watch: Option<WriteSet>,
    arena: Arena,
    saved: Vec<u8>,
    technique: Choice,
    policy: Policy,
}

impl Snapshot {
    /// Remembers what the arena holds now.
    ///
    /// # Errors
    ///
    /// No technique works here.
    pub fn take(arena: Arena) -> Result<Self> {
        Self::take_with(arena, Choice::Auto)
    }

    /// Takes a snapshot with the given technique.
    ///
    /// # Errors
    ///
    /// The technique does not work here.
    pub fn take_with(arena: Arena, technique: Choice) -> Result<Self> {
        let saved = arena.to_vec();
        let mut snapshot = Self {
            watch: None,
            arena,
            saved,
            technique,
            policy: Policy::new(),
        };
        snapshot.watch()?;
        Ok(snapshot)
    }

    /// Puts the arena back to what it was.
    ///
    /// # Errors
    ///
    /// Watching fails. The arena holds what it did before the call, or partly what was saved.
    pub fn reset(&mut self) -> Result<Reset> {
        let page = pagetrail::page_size();
        let Some(watch) = &mut self.watch else {
            // By the user's mapping: its page tables have the pages.
            self.arena.copy_from_slice(&self.saved);
            self.policy.copied();
            if self.policy.way() == Way::Watch {
                self.watch()?;
            }
            return Ok(Reset {
                pages: self.saved.len() as u64 / page,
                whole: true,
            });
        };
        let dirty = watch.take()?;
        let start = self.arena.0.range().start();
        for range in dirty.ranges() {
            let from = (range.start() - start) as usize;
            let saved = &self.saved[from..from + range.bytes() as usize];
            self.arena.0.write_behind(from, saved);
        }
        let pages = dirty.page_count();
        self.policy
            .watched((pages * page) as f64 / self.saved.len() as f64);
        if self.policy.way() == Way::Copy {
            self.watch = None;
        }
        Ok(Reset {
            pages,
            whole: false,
        })
    }

    /// The name of what finds dirty pages: `guest` for the virtual machine (`pagetrail vm`),
    /// otherwise that of the technique; `None` while all pages are copied back.
    pub fn technique_name(&self) -> Option<&str> {
        self.watch.as_ref().map(WriteSet::technique_name)
    }

    /// Ends the snapshot; the memory is as it is.
    pub fn into_arena(self) -> Arena {
        self.arena
    }

    fn watch(&mut self) -> Result<()> {
        self.watch = Some(WriteSet::start_with(
            [self.arena.0.range()],
            self.technique,
        )?);
        Ok(())
    }
}

impl Deref for Snapshot {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.arena
    }
}

impl DerefMut for Snapshot {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.arena
    }
}
