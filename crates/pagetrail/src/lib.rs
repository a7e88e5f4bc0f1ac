//! pagetrail tracks the dirty pages of a program with the cheapest technique that the machine
//! offers, and hands them out in rounds that cannot be lost.
//!
//! ```no_run
//! use pagetrail::{Choice, Target, Watch};
//! # fn main() -> Result<(), pagetrail::Error> {
//! # let pid = 1234;
//! let mut watch = Watch::builder().target(Target::process(pid)?).technique(Choice::Auto).start()?;
//! let round = watch.collect()?; // pages written since the last round, armed again
//! for range in round.dirty_ranges() {
//!     println!("{range}");
//! }
//! round.commit(); // dropped instead, the pages come back in the next round
//! # Ok(())
//! # }
//! ```
//!
//! Two promises hold for every technique. *Superset*: a write that completes before
//! [`Watch::collect`] returns is in that round or in the next. *Transaction*: a round that is not
//! [committed](Round::commit) comes back.
//!
//! Data flows one way: a [`Technique`] arms a [`Target`]'s mappings ([`Region`]), the dirty pages
//! are collected into a [`Round`], and a consumer reads the round without knowing which technique
//! found it. A [`Watch`] is one [`DirtySource`]; others, a guest of KVM for example, have rounds of
//! the same type, and a consumer of sources works with all of them. ARCHITECTURE.md has the map.
//!
//! Features, both on by default: `attach`, everything about other processes (x86-64 only; without
//! it, [`Target::process`] and [`Target::command`] are refused); `hashing`, [`Precision::Exact`],
//! which brings `blake3`.
#![deny(unsafe_code)]

#[cfg(all(feature = "attach", target_arch = "x86_64"))]
mod attach;
#[cfg(not(all(feature = "attach", target_arch = "x86_64")))]
#[path = "no_attach.rs"]
mod attach;
mod budget;
mod capabilities;
mod contents;
mod error;
#[cfg(all(feature = "attach", target_arch = "x86_64"))]
mod freeze;
mod heap;
mod memory;
mod page_set;
mod proc;
mod region;
mod round;
mod source;
mod sys;
mod target;
mod technique;
mod tree;
mod types;
mod watch;

pub use attach::hold::{HeldThread, Hold, LetGo, RegisterSet};
pub use attach::launch::Ended;
pub use budget::pace::Pace;
pub use capabilities::{Capabilities, DISABLE_VARIABLE};
pub use contents::{Mapped, mapped_pages, owned_pages, pages_with_content};
pub use error::{Error, ErrorKind, Result};
pub use heap::heaps::Heaps;
pub use heap::subpages::Subpages;
pub use memory::Memory;
pub use page_set::{EmptyRange, PageRange, PageSet, page_size};
pub use proc::command_line::command_line;
pub use region::{Permissions, Region};
pub use round::{Found, Round, RoundBuffer};
pub use source::{DirtySource, Frozen, Held, State};
pub use sys::cpu_clock::cpu_time;
pub use sys::urgent::Urgent;
pub use target::{Target, pages_of};
pub use technique::adaptive::{FalsePositiveCost, Precision};
pub use technique::pagemap_scan::HugePages;
pub use technique::userfaultfd::BLOCK_PAGES_MAX;
pub use tree::{Change, ListedProcess, Member, Origin, Tree};
pub use types::{
    AccessKind, AtExit, Children, Choice, CollectAt, Event, IfAbandoned, Inherited, KernelState,
    Overhead, PendingSignal, PredictionStats, ReportPages, RoundCost, RseqArea, SignalAction,
    Status, Technique, ThreadState, TrackMode, UnknownTechnique, UntrackedPolicy, UntrackedRegion,
};
pub use watch::attached::Attached;
pub use watch::builder::WatchBuilder;
pub use watch::{Unwritable, Watch};
