//! [`Stats`]: the memory that a heap takes.

/// The memory that a heap takes of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// How many superblocks it has.
    pub superblocks: usize,
    /// Bytes of small objects that they have room for; memory is taken as it is used.
    pub superblock_bytes: usize,
    /// Bytes of objects of a page and a bit, which share pages, that there is room for.
    pub plain_bytes: usize,
    /// Bytes of objects in runs of whole pages.
    pub run_bytes: usize,
    /// Bytes of objects that are mappings of their own.
    pub huge_bytes: usize,
    /// Mappings with objects, of which a process may have `vm.max_map_count`.
    pub mappings: usize,
}
