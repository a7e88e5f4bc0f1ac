//! The three kinds of address, as types that do not mix.
//!
//! Guest code in this crate never holds an [`Hpa`]: the isolation that the OoH paper argues for in
//! its section V is a type error to break.

use std::fmt;

/// Size of a page, in bytes.
pub const PAGE_BYTES: u64 = 4096;
/// Size of a large page, in bytes.
pub const HUGE_BYTES: u64 = 2 << 20;
/// Pages in a large page, which is also the number of entries of a page table.
pub const HUGE_PAGES: u64 = HUGE_BYTES / PAGE_BYTES;

macro_rules! address {
    ($(#[doc = $doc:literal])+ $name:ident) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(u64);

        impl $name {
            /// The address `bytes`.
            pub const fn new(bytes: u64) -> Self {
                Self(bytes)
            }

            /// The address as a number.
            pub const fn get(self) -> u64 {
                self.0
            }

            /// Start of the page that holds this address.
            pub const fn page(self) -> Self {
                Self(self.0 & !(PAGE_BYTES - 1))
            }

            /// Number of the page that holds this address.
            pub const fn page_number(self) -> u64 {
                self.0 / PAGE_BYTES
            }

            /// Start of the large page that holds this address.
            pub const fn huge_page(self) -> Self {
                Self(self.0 & !(HUGE_BYTES - 1))
            }

            /// The address `bytes` further on.
            pub const fn add(self, bytes: u64) -> Self {
                Self(self.0 + bytes)
            }

            /// The address `pages` pages further on.
            pub const fn add_pages(self, pages: u64) -> Self {
                Self(self.0 + pages * PAGE_BYTES)
            }

            /// Index into the table of `level` (4 at the root, 1 at the leaves).
            pub const fn table_index(self, level: u32) -> u64 {
                (self.0 >> (12 + 9 * (level - 1))) & 0x1ff
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
    };
}

address! {
    /// Guest-virtual address: what a program uses.
    Gva
}
address! {
    /// Guest-physical address: what a guest kernel takes for memory.
    Gpa
}
address! {
    /// Host-physical address: memory. Only the hypervisor and the processor see it.
    Hpa
}
