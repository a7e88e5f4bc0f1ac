//! [`TreeTrail`]: a recording of several processes, each with a [`Trail`] of its own.
//!
//! Their times differ: those within a [`Trail`] are since its process was attached to, which is
//! [`ProcessTrail::appeared_ns`] after the recording began.

use std::io::BufRead;

use pagetrail::PageSet;

use crate::error::ReadError;
use crate::{End, Header, Reader, Record, Trail};

/// How a process came into a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The recording began with it.
    #[default]
    Root,
    /// It was there when the recording began.
    Present,
    /// The process was found later; its first round holds all memory that it had then, except
    /// [`Inherited::shared`], which its parent had, too.
    New,
}

/// What a process still had of its parent's memory when it was attached to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inherited {
    /// Pages of private memory that the process and its parent had at the same address.
    pub pages: PageSet,
    /// The part of `pages` of which both had the same page frame, and so the same content: who
    /// rebuilds the process's memory takes it from the parent's.
    pub shared: PageSet,
}

/// A process that appears in a recording, after the first one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// The number of its parent, counted from 0 in the order in which processes appear; `None` if
    /// that is not recorded.
    pub parent: Option<u32>,
    /// How it came into the recording.
    pub origin: Origin,
    /// When it was attached to.
    pub appeared_ns: u64,
    /// What it had of its parent's memory; empty where that is not known.
    pub inherited: Inherited,
    /// Facts that hold for all of its rounds.
    pub header: Header,
}

/// One process of a recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessTrail {
    /// The number of its parent; `None` if that is not recorded.
    pub parent: Option<u32>,
    /// How it came into the recording.
    pub origin: Origin,
    /// When it was attached to, since the recording began.
    pub appeared_ns: u64,
    /// When its end was noticed, since the recording began; `None` if it outlived the recording.
    pub ended_ns: Option<u64>,
    /// What it had of its parent's memory; empty where that is not known.
    pub inherited: Inherited,
    /// Its rounds. The end is that of the process, or [`End::Detached`] if it outlived the
    /// recording.
    pub trail: Trail,
}

/// A recording of one process or several.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TreeTrail {
    /// The processes in the order in which they appeared. The first is the one that was named or
    /// started.
    pub processes: Vec<ProcessTrail>,
    /// Processes that began and ended between two rounds, so that nothing of them is recorded.
    pub short_lives: u64,
}

impl TreeTrail {
    /// Reads a whole trail with all its processes. A trail that is cut off is no error: the result
    /// has all whole records, and the processes that had not ended by then have no end.
    pub fn read(input: impl BufRead) -> Result<Self, ReadError> {
        let mut reader = Reader::open(input)?;
        let mut tree = Self {
            processes: vec![ProcessTrail {
                trail: Trail {
                    header: reader.header().clone(),
                    ..Trail::default()
                },
                ..ProcessTrail::default()
            }],
            short_lives: 0,
        };
        while let Some(record) = reader.next_record()? {
            tree.take(record);
        }
        Ok(tree)
    }

    /// Takes in a record. The reader has checked the numbers in it.
    fn take(&mut self, record: Record) {
        match record {
            Record::Process(process) => self.processes.push(ProcessTrail {
                parent: process.parent,
                origin: process.origin,
                appeared_ns: process.appeared_ns,
                ended_ns: None,
                inherited: process.inherited,
                trail: Trail {
                    header: process.header,
                    ..Trail::default()
                },
            }),
            Record::Of { process, record } => {
                if let Some(process) = self.processes.get_mut(process as usize) {
                    process.trail.take(*record);
                }
            }
            Record::ProcessEnded {
                process,
                at_ns,
                end,
            } => {
                if let Some(process) = self.processes.get_mut(process as usize) {
                    process.ended_ns = Some(at_ns);
                    process.trail.end = Some(end);
                }
            }
            Record::ShortLives { count, .. } => {
                self.short_lives = self.short_lives.saturating_add(count);
            }
            Record::End(end) => self.end(end),
            of_the_first => {
                if let Some(process) = self.processes.first_mut() {
                    process.trail.take(of_the_first);
                }
            }
        }
    }

    /// Ends the recording: processes that have not ended go on without it.
    fn end(&mut self, end: End) {
        for (number, process) in self.processes.iter_mut().enumerate() {
            let end = if number == 0 { &end } else { &End::Detached };
            process.trail.end.get_or_insert_with(|| end.clone());
        }
    }
}
