//! `pagetrail model`: designs that need other hardware, run on a machine in software and priced.
//!
//! The crate `pagetrail-model` does the work. Here are its command line ([`args`]), the cost tables that users write
//! ([`costs`], [`calibrate`]), programs and recordings ([`program`], [`recording`]), and the forms of the results.

pub(crate) mod args;
pub(crate) mod calibrate;
pub(crate) mod compare;
pub(crate) mod costs;
mod measured;
pub(crate) mod outcome;
pub(crate) mod page;
pub(crate) mod program;
pub(crate) mod recording;
pub(crate) mod reproduced;
pub(crate) mod reproduced_page;
pub(crate) mod single;
