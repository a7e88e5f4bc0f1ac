//! The kept lists of public items are those of the sources, and the lister sees what changes.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_public_items_are_those_of_the_snapshots() {
    let differences = pagetrail_public_api::differences(&root()).unwrap();
    assert!(
        differences.is_empty(),
        "the public interface has changed:\n{differences}\
         If that is meant: cargo xtask api, a line in CHANGELOG.md, and commit the lists."
    );
}

#[test]
fn each_kind_of_item_is_listed_once_with_its_public_path() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    write(
        "lib.rs",
        "mod inner; pub mod open { pub use super::inner::Kind as Sort; }
         pub use inner::{Kind, Thing, make};
         pub use std::sync::Arc;
         #[path = \"elsewhere/far.rs\"] pub mod near;
         #[cfg(test)] pub mod hidden { pub fn no() {} }
         mod other { use crate::inner::Thing;
            impl Thing { pub fn far(&self) {} fn private(&self) {} pub(crate) fn ours(&self) {} }
            impl std::fmt::Display for Thing { } }",
    );
    write(
        "inner.rs",
        "#[derive(Clone, Debug)] pub struct Thing<T = u8> { pub size: u64, inner: T }
         #[non_exhaustive] pub enum Kind { One, Two(u8), Three { a: u64 } }
         pub fn make(
             a: u64,
             b: &str,
         ) -> Thing { todo!() }
         pub fn not_exported() {}",
    );
    fs::create_dir(dir.path().join("elsewhere")).unwrap();
    write("elsewhere/far.rs", "pub enum Near { #[cfg(unix)] Here }");
    let list = pagetrail_public_api::list("a-lib", &dir.path().join("lib.rs")).unwrap();
    let lines: Vec<&str> = list.lines().skip(1).collect();
    let expected = "\
#[non_exhaustive] pub enum a_lib::Kind
variant a_lib::Kind::One
variant a_lib::Kind::Three { a: u64 }
variant a_lib::Kind::Two(u8)
impl Clone for a_lib::Thing
impl Debug for a_lib::Thing
impl Display for a_lib::Thing
pub struct a_lib::Thing<T = u8> { private .. }
pub fn a_lib::Thing::far(&self)
pub field a_lib::Thing::size: u64
pub fn a_lib::make(a: u64, b: &str) -> Thing
pub mod a_lib::near
pub enum a_lib::near::Near
#[cfg(unix)] variant a_lib::near::Near::Here
pub mod a_lib::open
#[non_exhaustive] pub enum a_lib::open::Sort
variant a_lib::open::Sort::One
variant a_lib::open::Sort::Three { a: u64 }
variant a_lib::open::Sort::Two(u8)
pub use std::sync::Arc as a_lib::Arc";
    let mut expected: Vec<&str> = expected.lines().collect();
    let mut found = lines.clone();
    expected.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, expected, "{list}");
}
