//! Keeps the hot pages of many programs in fast memory: what `pagetrail tier` does, without its
//! flags.
//!
//! A [`Daemon`] reads a [`Config`], finds the processes of its targets, runs the loop of
//! [`pagetrail_tier`] for each, and shares fast memory among them. It says what it does as a
//! [`Status`], as numbers for Prometheus and as a page. [`plan`] watches one subject and moves
//! nothing. The caller keeps the time, shows the messages, and starts guests.
#![deny(unsafe_code)]

pub mod agent;
mod config;
mod daemon;
mod find;
mod guest_memory;
mod history;
mod kept;
mod kernel;
mod life;
mod metrics;
pub mod monitor;
mod notify;
mod page;
pub mod plan;
mod pressure;
mod process;
mod silent;
mod status;
mod sys;

pub use config::{Config, Memory, Mode, Slow, SourceKind, Target, Vm};
pub use daemon::{Daemon, StartGuest, machine_limit};
pub use kernel::{KernelMover, movers};
pub use notify::Notifier;
pub use status::{ProcessStatus, Status, TargetStatus, Weights};
