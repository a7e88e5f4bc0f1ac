//! What carries rounds to the recorder, without what makes them.

#[path = "../rounds/collected.rs"]
mod collected;
#[path = "../rounds/link.rs"]
pub(crate) mod link;
#[path = "../rounds/mappings.rs"]
mod mappings;
#[path = "../rounds/source.rs"]
pub(crate) mod source;
#[path = "../rounds/strategy.rs"]
pub(crate) mod strategy;
#[path = "../rounds/unit_change.rs"]
pub(crate) mod unit_change;

pub use collected::Collected;
