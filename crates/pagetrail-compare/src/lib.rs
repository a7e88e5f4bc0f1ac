//! What tracking, or a virtual machine, costs a program: the method of `pagetrail compare`.
//!
//! A program, or the tests of [`suite`]s, runs in several [`environment`]s. [`method`] says which
//! run is when, and what the runs come to, after "A Comparison of Hardware Virtual Machines Versus
//! Native Performance in Xen" (Kloster et al., 2007): medians of interleaved runs, normalised to
//! one environment, and the noise of this machine measured first. [`results`] is the document,
//! shown as [`text`] or as a [`page`]; [`condition`] judges it.
//!
//! All of this is arithmetic over a [`method::Runner`], which has programs run: [`local`] has what
//! it takes on this machine, [`guest`] in virtual machines. [`work`] is what the tests of suites
//! do, in a process of their own.
#![deny(unsafe_code)]

pub mod behaviour;
pub mod capture;
pub mod condition;
pub mod environment;
pub mod guest;
pub mod local;
pub mod method;
pub mod page;
mod progress;
mod random;
pub mod results;
pub mod sample;
mod score;
mod scratch;
pub mod statistics;
pub mod suite;
#[allow(unsafe_code, reason = "unsafe code lives in sys/")]
mod sys;
#[cfg(test)]
mod testing;
pub mod text;
pub mod work;

pub use progress::Progress;
pub use scratch::Scratch;
pub use sys::usage::Usage;
