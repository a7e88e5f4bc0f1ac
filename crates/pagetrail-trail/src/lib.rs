//! The trail: the dirty pages of a program, round by round, as `pagetrail record` writes them to a
//! file.
//!
//! [`Trail`] is a recording of one process in memory, [`TreeTrail`] one of several;
//! [`Analysis`] and [`Heatmap`] are computed from a [`Trail`].
//! [`Writer`] appends to a trail file during the recording; [`Reader`] and [`Trail::read`] read
//! one. `docs/trail-format.md` documents every byte of the file.
#![forbid(unsafe_code)]

pub mod analysis;
mod contents;
mod error;
mod format;
pub mod heatmap;
mod history;
mod model;
mod overhead;
mod pages;
mod parts;
mod payload;
mod reader;
mod stacks;
mod subpages;
mod tree;
mod writer;

pub use analysis::Analysis;
pub use error::{ReadError, WriteError};
pub use format::is_trail;
pub use heatmap::Heatmap;
pub use model::{
    End, Event, Header, Mapping, Overhead, Predicted, Round, SharedMemory, SubpageWrites, Trail,
};
pub use overhead::OverheadCounts;
pub use parts::{Part, for_each_part};
pub use reader::{Reader, Record};
pub use stacks::{
    Attribution, BUILD_ID_BYTES_MAX, Frame, Module, STACK_FRAMES_MAX, Stack, StackTable,
    StackWrites, Thread, Weight,
};
pub use subpages::SubpageCounts;
pub use tree::{Inherited, Origin, Process, ProcessTrail, TreeTrail};
pub use writer::Writer;
