//! Keeps the hot pages of programs in fast memory, on machines with tiered memory: local DRAM as
//! fast memory; CXL memory, another NUMA node or swap as slow memory.
//!
//! The loop is that of HMM-V (Sha et al.), for any process on a stock kernel. A
//! [`Source`](source::Source) reports, window by window, which pages were accessed. The [`Policy`]
//! chooses which pages to sample again, ranks them, and plans moves. A [`Mover`](mover::Mover)
//! moves pages. A [`Pool`] shares fast memory among several programs. [`TierLoop`] runs the loop
//! for one program.
//!
//! The policy is pure: it makes no system call, reads no clock, and the same samples give the same
//! plan. Sources and movers are traits, so that tests can replace them.
#![deny(unsafe_code)]

mod error;
mod gains;
pub mod mover;
mod policy;
#[cfg(feature = "test-equipment")]
pub mod simulate;
pub mod source;
mod steps;
mod sys;
mod tier_loop;

pub use error::{Error, Result};
pub use gains::{Speed, Tiers};
pub use policy::clock::Clock;
pub use policy::histogram::Histogram;
pub use policy::plan::{Plan, Unit};
pub use policy::pool::{Member, Pool, PoolError};
pub use policy::settings::{Ranking, Settings, SettingsError};
pub use policy::table::{Place, Run};
pub use policy::{Demand, Noted, Policy, Sample, SourceCaps, Usage};
pub use sys::nodes::{Node, nodes};
pub use tier_loop::{Moves, TierLoop, TierLoopOptions, Totals, WindowReport};
