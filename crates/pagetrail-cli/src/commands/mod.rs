//! The subcommands: glue between arguments, files and the parts that do the work.

pub(crate) mod bench;
pub(crate) mod report;
