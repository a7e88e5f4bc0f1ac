//! What `/proc` shows of a process: its command line ([`command_line`]), its mappings ([`maps`])
//! and their files ([`map_files`]), its state ([`status`]), whether it is frozen ([`freezer`]), and
//! a descriptor that stays with it ([`pidfd`]); which processes begin and end ([`connector`]); and
//! how to read without allocating ([`text`]). Of the whole
//! machine it shows whether processors are scarce ([`pressure`]).
//!
//! Read-only and safe; nothing here changes the process. The crate `procfs` is not used because
//! mapping names are arbitrary bytes (it panics on some and refuses others), and because a round
//! compares the raw text of `maps` with the last one before parsing anything.

pub(crate) mod cgroup;
pub(crate) mod command_line;
pub(crate) mod connector;
#[cfg(all(feature = "attach", target_arch = "x86_64"))]
pub(crate) mod freezer;
pub(crate) mod map_files;
pub(crate) mod maps;
pub(crate) mod pidfd;
pub(crate) mod pressure;
pub(crate) mod status;
#[cfg_attr(
    not(all(feature = "attach", target_arch = "x86_64")),
    allow(dead_code, reason = "most of it is for attaching")
)]
pub(crate) mod text;
