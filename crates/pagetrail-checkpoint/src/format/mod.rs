//! The bytes of a store, as `docs/image-format.md` has them: [`pack`]s of page contents,
//! [`manifest`]s that say which page lies where, and the primitives of both. Nothing here touches a
//! file or a process.

pub(crate) mod codec;
pub(crate) mod index;
pub(crate) mod listener;
pub(crate) mod manifest;
pub(crate) mod mapped_file;
pub(crate) mod objects;
pub(crate) mod open_file;
pub(crate) mod pack;
pub(crate) mod pack_writer;
pub(crate) mod patch;
pub(crate) mod state;
pub(crate) mod touches;
pub(crate) mod wire;

/// What [`Name::Marker`](crate::storage::Name::Marker) holds.
pub(crate) const MARKER: &[u8] = b"pagetrail checkpoint store, format 1\n";

/// How the marker begins where everything in the store is encrypted; a salt and the marker itself,
/// encrypted, follow.
pub(crate) const ENCRYPTED_MARKER: &[u8] = b"pagetrail checkpoint store, format 1, encrypted\n";

/// Page sizes that the format knows: what Linux has as base pages.
pub(crate) fn is_page_size(bytes: u32) -> bool {
    bytes.is_power_of_two() && (4096..=65536).contains(&bytes)
}
