//! `pagetrail tier`: what is particular to it: arguments, configuration, targets, the daemon, and what it tells.

pub(crate) mod args;
pub(crate) mod config;
pub(crate) mod daemon;
mod find;
pub(crate) mod heat;
pub(crate) mod metrics;
pub(crate) mod page;
pub(crate) mod plan;
mod process;
pub(crate) mod status;
