//! What carries rounds to the recorder, without what makes them.

#[path = "../rounds/collected.rs"]
mod collected;
#[path = "../rounds/link.rs"]
pub(crate) mod link;

pub use collected::Collected;
