//! Checkpoints of memory that hardly pause the program, in a store that survives whatever happens
//! to its writer.
//!
//! A [`Store`] is a chain of checkpoints: a base and increments over it, page contents compressed
//! and stored once, every byte under a hash. `docs/image-format.md` has the bytes. Four things
//! take checkpoints:
//!
//! * [`ProcessCheckpointer`]: another process, memory and registers, which hardly pauses;
//! * [`TreeCheckpointer`]: all processes of a tree, at one instant;
//! * [`Checkpointer`]: regions of the own program, there again at its next start;
//! * [`Snapshot`]: memory that goes back to what it was, thousands of times a second, without any
//!   store.
//!
//! CRIU takes them too, of whole trees of processes, and starts the processes anew: [`criu`].
#![deny(unsafe_code)]

pub mod criu;
mod error;
mod export;
mod format;
mod hash;
mod label;
mod limits;
mod map;
mod parallel;
mod process;
mod program;
mod progress;
pub mod storage;
mod store;
mod sys;
mod tree;

pub use error::{Error, Result};
pub use format::codec::Compression;
pub use format::listener::{Listener, ListenerAddress};
pub use format::manifest::{Cost, Descriptor, Manifest, Mapping, Parent, Process, Thread};
pub use format::mapped_file::MappedFile;
pub use format::objects::{Objects, PairedSocket, PipeContents, SharedMemory};
pub use format::open_file::{FileKind, OpenFile};
pub use format::state::{Credentials, MemoryParts, ProcessState};
pub use hash::Hash;
pub use label::Label;
pub use process::build_id::build_id as build_id_of;
pub use process::changed::Change;
pub use process::rewind::Rewound;
pub use process::state::files::{is_stateless_device, is_terminal_name};
pub use process::state::{check_restartable, credentials_of, is_shared_anonymous};
pub use process::{MaxOverhead, Mode, ProcessCheckpointer, ProcessOptions};
pub use program::checkpointer::{Checkpointer, CheckpointerBuilder, Completion};
pub use program::cow::CowSnapshot;
pub use program::snapshot::{Arena, Reset, Snapshot};
pub use progress::{Advance, Progress};
pub use storage::WorldWritable;
pub use store::Store;
pub use store::diff::MappingDiff;
pub use store::image::Image;
pub use store::prune::Pruned;
pub use store::repair::Repaired;
pub use store::retention::Retention;
pub use store::survey::{Survey, spans};
pub use store::verify::Verified;
pub use store::writer::{Description, Draft, Writer, WriterOptions};
pub use tree::{TreeCheckpointer, TreeInstant, TreePart, TreeStore};
