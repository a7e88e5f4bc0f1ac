//! The C interface of pagetrail, declared by `include/pagetrail.h`, which is generated from
//! [`sys`].
//!
//! What it promises to C: a null pointer or a call at the wrong moment is an error code, never
//! undefined; no panic crosses the border; and no round needs the `malloc` of the program (`heap`),
//! so that a collector can ask for one while the world is stopped, whatever lock a stopped thread
//! holds.
//!
//! What it leaves to others: everything about tracking. This crate translates, and nothing more.
#![deny(unsafe_code)]

pub mod failure;
pub mod guest;
mod handle;
mod heap;
pub mod kept;
pub mod sys;
mod text;
pub mod types;
