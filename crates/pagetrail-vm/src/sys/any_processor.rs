//! The kernel's interfaces of which the recorder's end of the link needs one, on any processor.
#![allow(
    dead_code,
    reason = "the guest, of which there is none, needs the rest"
)]

pub(crate) mod descriptors;
