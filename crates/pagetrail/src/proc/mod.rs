//! What `/proc` says about a process: its mappings ([`maps`]) and its state ([`status`]).
//!
//! Read-only and safe; nothing here changes the process. The crate `procfs` is not used because mapping
//! names are arbitrary bytes (it panics on some and refuses others), and because a round compares the raw
//! text of `maps` with the last one before it parses anything.

pub(crate) mod maps;
pub(crate) mod status;
