//! The subcommands as their users call them, on this machine. One program, since each takes seconds
//! to compile and link; `cargo test -p pagetrail-cli --test commands record::` runs one file.
//! What runs in guests as well has programs of its own beside this folder.

#[path = "../common/mod.rs"]
mod common;

mod bench;
mod checkpoint;
mod checkpoint_tree;
mod command;
mod compare;
mod criu;
mod daily;
mod environments;
mod hostile_stores;
mod kvm;
mod lazy;
mod let_go;
#[cfg(feature = "model")]
mod model;
mod names;
mod overhead;
mod record;
mod record_files;
mod record_trees;
mod report;
mod retries;
mod stacks;
mod store_in_use;
mod subpage;
mod tier_examples;
mod top;
mod worker;
