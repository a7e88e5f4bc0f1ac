//! What carries rounds to the recorder, without what makes them.

#[path = "../rounds/announce.rs"]
pub(crate) mod announce;
#[path = "../rounds/collected.rs"]
mod collected;
#[path = "../rounds/control/mod.rs"]
pub(crate) mod control;
#[path = "../rounds/followed.rs"]
mod followed;
#[path = "../rounds/link.rs"]
pub(crate) mod link;
#[path = "../rounds/mappings.rs"]
mod mappings;
#[path = "../rounds/process.rs"]
mod process;
#[path = "../rounds/source.rs"]
pub(crate) mod source;
#[path = "../rounds/strategy.rs"]
pub(crate) mod strategy;
#[path = "../rounds/threads.rs"]
pub(crate) mod threads;
#[path = "../rounds/tree.rs"]
pub(crate) mod tree;
#[path = "../rounds/unit_change.rs"]
pub(crate) mod unit_change;

pub use collected::Collected;
