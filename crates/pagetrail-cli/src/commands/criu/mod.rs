//! Checkpoints that CRIU makes and restores: `checkpoint --restorable` and `restore`. CRIU is the
//! program on `PATH`, which `pagetrail-criu` runs; its pages go through a socket pair to and from
//! the store, its other files through a directory that is gone afterwards.

pub(crate) mod args;
mod copies;
mod first;
pub(crate) mod restore;
pub(crate) mod take;
