//! Checkpoints that CRIU makes and restores: CRIU saves and rebuilds what the kernel keeps for a
//! process, and the pages go through its page server's protocol to the store and back.
//!
//! What the protocol says is in `protocol`, how a dump becomes a checkpoint in `dump` and
//! `contents`, how one comes in by `receive`, or out of image files in `local`, how pages get back
//! in `serve` and `images`; `server` puts these together for connections of any kind; `pagemap` and
//! `records` read what is needed of CRIU's files, by `protobuf`. Starting CRIU is for others.

mod contents;
mod dump;
mod images;
mod link;
mod local;
mod pagemap;
mod protobuf;
mod protocol;
mod receive;
mod records;
mod serve;
mod server;
mod space;

pub use contents::ImageFile;
pub use dump::Dump;
pub use images::{LazyPages, Written};
pub use local::is_of_pages;
pub use records::{RegularFile, SocketAddress, frozen, regular_files, socket_addresses};
pub use server::{Dumps, Handled, PageServer};
pub use space::SpaceId;

use crate::format::manifest::Manifest;

impl Manifest {
    /// Whether CRIU made it, so that it is restored by CRIU as well.
    pub fn is_by_criu(&self) -> bool {
        let first = self.mappings.first();
        first.is_some_and(|mapping| space::slot_of(mapping.range.start()) == space::CONTENTS_SLOT)
    }
}
