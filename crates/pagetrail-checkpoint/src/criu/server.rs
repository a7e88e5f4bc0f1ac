//! [`PageServer`]: what a connection wants, and giving it that; and [`Dumps`], which become
//! checkpoints one over the other.

use super::contents::Contents;
use super::dump::{Before, Dump};
use super::link::{Link, broken};
use super::protocol::Request;
use super::serve::serve;
use crate::error::{Error, Result};
use crate::format::manifest::Manifest;
use crate::format::wire::Malformed;
use crate::store::Store;
use crate::store::image::Image;
use crate::store::writer::Writer;
use std::io::{Read, Write};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::Duration;

/// Dumps that become checkpoints of a store: each an increment over the one before, of what CRIU
/// says was not written since.
///
/// CRIU says so of the dump before (`--track-mem --prev-images-dir`), and this takes it for the
/// last that was published here. So after one that failed the next is whole.
#[derive(Debug)]
pub struct Dumps {
    writer: Writer,
    before: Option<Before>,
}

impl Dumps {
    /// Of a store that one may write to; the first is whole.
    pub fn new(mut writer: Writer) -> Self {
        writer.begin_anew();
        Self {
            writer,
            before: None,
        }
    }

    /// Makes the next dump an increment over a checkpoint that CRIU made, the one that the process
    /// was restored from, say: it takes of the store what has changed since. CRIU has to send all
    /// pages, as it cannot know which these are.
    ///
    /// # Errors
    ///
    /// There is no such checkpoint, CRIU did not make it, it is damaged, or the storage fails. The
    /// next dump is whole then.
    pub fn build_on(&mut self, number: u64) -> Result<()> {
        self.before = None;
        self.writer.begin_anew();
        let contents = Contents::of(&mut self.writer.store().image(number)?)?;
        let contents = contents
            .ok_or_else(|| Error::Refused(format!("checkpoint {number} was not made by CRIU")))?;
        self.writer.build_on(number)?;
        self.before = Some(Before {
            contents,
            is_tracked: false,
        });
        Ok(())
    }

    /// The writer, to prune, say.
    pub fn writer(&mut self) -> &mut Writer {
        &mut self.writer
    }

    /// Takes the dump that comes over a connection; CRIU hears that it went well once it is
    /// published.
    ///
    /// # Errors
    ///
    /// The connection ends early, what comes is not as it should be, or the storage fails. The
    /// store is as it was.
    pub fn take<S: Read + Write>(&mut self, stream: S) -> Result<Manifest> {
        self.take_from(&mut Link::new(stream), None)
    }

    /// Takes the dump that comes over a connection and adds to it before it is published. CRIU
    /// hears that the pages are there ([`Dump::pages`]); then `finish` waits until it has ended,
    /// adds its image files, and says how long the processes stood still.
    ///
    /// # Errors
    ///
    /// As [`Self::take`], and what `finish` fails with.
    pub fn take_with<S: Read + Write>(
        &mut self,
        stream: S,
        finish: impl FnOnce(&mut Dump<'_>) -> Result<Duration>,
    ) -> Result<Manifest> {
        self.take_by(|dump| {
            dump.pages(stream)?;
            finish(dump)
        })
    }

    fn take_from<S: Read + Write>(
        &mut self,
        link: &mut Link<S>,
        first: Option<Request>,
    ) -> Result<Manifest> {
        let manifest = self.take_by(|dump| {
            dump.receive(link, first)?;
            Ok(Duration::ZERO)
        })?;
        // It is published, whether the other side hears of it or not.
        let _ = link.done();
        Ok(manifest)
    }

    /// Takes a dump of several parts as one checkpoint: `fill` lets the pre-dumps, the pages and
    /// the image files come, and says how long the processes stood still.
    ///
    /// # Errors
    ///
    /// `fill` fails, or the storage does. The store is as it was.
    pub fn take_by(
        &mut self,
        fill: impl FnOnce(&mut Dump<'_>) -> Result<Duration>,
    ) -> Result<Manifest> {
        self.writer.catch_up()?;
        let mut dump = Dump::new(&mut self.writer, self.before.take());
        let published = fill(&mut dump).and_then(|frozen| dump.publish(frozen));
        match published {
            Ok((manifest, contents)) => {
                self.before = Some(Before {
                    contents,
                    is_tracked: true,
                });
                Ok(manifest)
            }
            Err(error) => {
                // CRIU has forgotten what was written before this one, which is not there.
                self.writer.begin_anew();
                Err(error)
            }
        }
    }
}

/// What became of a connection.
#[derive(Debug)]
#[non_exhaustive]
pub enum Handled {
    /// A dump was taken.
    Taken(Box<Manifest>),
    /// Pages of a checkpoint were given out.
    Served {
        /// The checkpoint.
        number: u64,
        /// How many pages.
        pages: u64,
    },
    /// The other side wanted nothing.
    Nothing,
}

/// Opens the store to write, when the first dump comes.
type Open = Box<dyn Fn() -> Result<Writer> + Send + Sync>;

/// Serves CRIU's page-server protocol from a store: takes dumps, and gives out pages.
pub struct PageServer {
    store: Store,
    at: Option<u64>,
    open: Open,
    dumps: Mutex<Option<Dumps>>,
}

impl std::fmt::Debug for PageServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageServer")
            .field("store", &self.store)
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

impl PageServer {
    /// A server of a store, which `open` opens to write once a dump comes. It gives out pages of
    /// the checkpoint `at`, or of the newest at the time.
    pub fn new(
        store: Store,
        at: Option<u64>,
        open: impl Fn() -> Result<Writer> + Send + Sync + 'static,
    ) -> Self {
        Self {
            store,
            at,
            open: Box::new(open),
            dumps: Mutex::new(None),
        }
    }

    /// Does what a connection asks for, until it ends. Several threads may call this: one dump is
    /// taken at a time, and another refused meanwhile.
    ///
    /// # Errors
    ///
    /// The connection ends early, what comes is not as it should be, the checkpoint lacks what is
    /// asked for, or the store fails.
    pub fn handle<S: Read + Write>(&self, stream: S) -> Result<Handled> {
        let mut link = Link::new(stream);
        match link.next()? {
            None => Ok(Handled::Nothing),
            Some(Request::Close) => link.done().map(|()| Handled::Nothing),
            first @ Some(Request::Get { .. }) => {
                let mut image = self.image()?;
                let number = image.manifest().number;
                let contents = Contents::of(&mut image)?.ok_or_else(|| {
                    Error::Refused(format!("checkpoint {number} was not made by CRIU"))
                })?;
                let pages = serve(&mut link, first, &mut image, &contents)?;
                Ok(Handled::Served { number, pages })
            }
            first @ Some(_) => {
                let mut dumps = match self.dumps.try_lock() {
                    Ok(dumps) => dumps,
                    Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
                    Err(TryLockError::WouldBlock) => {
                        return Err(broken(Malformed("another dump is under way")));
                    }
                };
                let dumps = match &mut *dumps {
                    Some(dumps) => dumps,
                    none => none.insert(Dumps::new((self.open)()?)),
                };
                let manifest = dumps.take_from(&mut link, first)?;
                Ok(Handled::Taken(Box::new(manifest)))
            }
        }
    }

    fn image(&self) -> Result<Image> {
        match self.at {
            Some(number) => self.store.image(number),
            None => self.store.newest_image(),
        }
    }
}
