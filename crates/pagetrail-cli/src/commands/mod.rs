//! The subcommands: glue between arguments, files and the parts that do the work.

pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod checkpoint;
pub(crate) mod compare;
pub(crate) mod criu;
pub(crate) mod generate;
#[cfg(feature = "model")]
pub(crate) mod model;
pub(crate) mod page_server;
pub(crate) mod record;
pub(crate) mod report;
pub(crate) mod restore;
pub(crate) mod tier;
pub(crate) mod top;
pub(crate) mod vm;
