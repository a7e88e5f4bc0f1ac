//! Which code dirtied pages: samples the page faults of a process with address, thread and call
//! chain, and attributes the dirty pages of a round to call stacks.
//!
//! A technique that write-protects pages makes the first write to each page in a round a page
//! fault. [`Sampler`] has the kernel report these faults (`perf_event_open(2)`), without stopping
//! the process. A sample at an address attributes the page of that address; a page that was
//! reported without a sample stays unattributed and is never guessed. [`Symbolizer`] finds the
//! names of functions later, also on another machine, by the build IDs that the stacks carry.
//! [`MemoryNames`] says what memory without a name is for: stacks, heaps, code.
//!
//! The crate writes nothing into the process and takes nothing from it but time: [`Period`] bounds
//! how much.
#![deny(unsafe_code)]

mod budget;
mod elf;
mod error;
mod events;
mod names;
mod pending;
mod perf_map;
mod price;
mod record;
mod sampler;
mod space;
mod stack_copy;
mod symbolize;
mod sys;
mod timeout;
mod unwind;

pub use error::{Error, Result};
pub use names::MemoryNames;
pub use sampler::{Mark, Options, Period, Sampler, Summary, Unwind};
pub use symbolize::{Function, Symbolizer};
