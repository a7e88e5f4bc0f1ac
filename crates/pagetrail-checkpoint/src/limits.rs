//! How much of a store is taken into memory at once: stores come from elsewhere, and may say that
//! they are as large as they like.

/// What is read in any case, in bytes.
const ALWAYS: u64 = 256 << 20;

/// The most bytes of a manifest, or of the indexes of packs, that are taken into memory: an eighth
/// of the machine's. An index is a hundredth of the pages that it is of.
pub(crate) fn bytes_at_once() -> u64 {
    let machine = rustix::system::sysinfo();
    let memory = machine.totalram.saturating_mul(machine.mem_unit.into());
    ALWAYS.max(memory / 8)
}
