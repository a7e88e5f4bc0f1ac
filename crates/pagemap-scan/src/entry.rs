//! [`Entry`]: what a classic entry of `/proc/PID/pagemap` says about a page.

/// An entry of `/proc/PID/pagemap`, which every kernel has (`proc_pid_pagemap(5)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Entry(u64);

impl Entry {
    /// The entry with the kernel's bits.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The kernel's bits.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether the page was written since the soft-dirty bits were last cleared (bit 55).
    pub const fn is_soft_dirty(self) -> bool {
        self.0 & 1 << 55 != 0
    }

    /// Whether the page is write-protected by a userfaultfd (bit 57).
    pub const fn is_write_protected(self) -> bool {
        self.0 & 1 << 57 != 0
    }

    /// Whether the page belongs to a file, or is shared (bit 61).
    pub const fn is_file(self) -> bool {
        self.0 & 1 << 61 != 0
    }

    /// Whether the page is swapped out (bit 62).
    pub const fn is_swapped(self) -> bool {
        self.0 & 1 << 62 != 0
    }

    /// Whether the page does not exist, and its entry is a mark of write-protection alone: it reads
    /// as swapped out, of the last swap type (bits 0 to 4; `SWP_PTE_MARKER` in
    /// `include/linux/swap.h`).
    ///
    /// Readers without CAP_SYS_ADMIN get no swap type, and `false`.
    pub const fn is_marker(self) -> bool {
        let kinds = 1 << 63 | 1 << 62 | 1 << 57;
        self.0 & kinds == 1 << 62 | 1 << 57 && self.0 & 0x1f == 0x1f
    }

    /// The number of the page frame (bits 0 to 54) of a page in memory; `None` without
    /// CAP_SYS_ADMIN, whose readers alone get it.
    pub const fn frame(self) -> Option<u64> {
        let frame = self.0 & ((1 << 55) - 1);
        match self.is_present() && frame != 0 {
            true => Some(frame),
            false => None,
        }
    }

    /// Whether the page is in memory (bit 63).
    pub const fn is_present(self) -> bool {
        self.0 & 1 << 63 != 0
    }

    /// Whether the page is in memory or swapped out.
    pub const fn is_populated(self) -> bool {
        self.is_present() || self.is_swapped()
    }
}
