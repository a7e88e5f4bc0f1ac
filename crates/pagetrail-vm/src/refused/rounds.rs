//! What carries rounds to the recorder, without what makes them.

#[path = "../rounds/collected.rs"]
mod collected;
#[path = "../rounds/link.rs"]
pub(crate) mod link;
#[path = "../rounds/mappings.rs"]
mod mappings;
#[path = "../rounds/source.rs"]
pub(crate) mod source;

pub use collected::Collected;
