//! Keeps the hot pages of programs in fast memory, on machines whose memory is of two kinds: next to the processor, and
//! behind CXL, on another socket, or in swap.
//!
//! The loop is that of HMM-V (Sha et al.), for any process on a stock kernel. A [`Source`](source::Source) tells window by
//! window which pages were touched; the [`Policy`] says which of them to ask about again, which are hot, and what should
//! move; a [`Mover`](mover::Mover) moves it; a [`Pool`] shares fast memory among several programs. [`Keeper`] turns the
//! loop for one program.
//!
//! [`simulate`] is a machine in software with programs whose accesses are known, to hold policies against.
//!
//! The policy is pure: it makes no system call, reads no clock, and the same samples give the same plan. Everything else is
//! behind a trait, so that tests replace it.
#![deny(unsafe_code)]

mod error;
mod keeper;
pub mod mover;
mod policy;
pub mod simulate;
pub mod source;
mod sys;

pub use error::{Error, Result};
pub use keeper::{Keeper, KeeperOptions, Totals, WindowReport};
pub use policy::clock::Clock;
pub use policy::histogram::Histogram;
pub use policy::plan::{Plan, Unit};
pub use policy::pool::{Member, Pool, PoolError};
pub use policy::settings::{Ranking, Settings, SettingsError};
pub use policy::table::{Place, Run};
pub use policy::{Demand, Noted, Policy, Sample, Tells, Usage};
pub use sys::nodes::{Node, nodes};
