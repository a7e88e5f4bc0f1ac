//! How much of a store is taken into memory at once: stores come from elsewhere, and may say that
//! they are as large as they like.

/// What is read in any case, in bytes.
const ALWAYS: u64 = 256 << 20;

/// How much memory may be taken for a while, in bytes: a quarter of what the machine has to spare;
/// nothing where that is not known.
pub(crate) fn bytes_to_spare() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024) / 4
}

/// The most bytes of a manifest, or of the indexes of packs, that are taken into memory: an eighth
/// of the machine's. An index is a hundredth of the pages that it is of.
pub(crate) fn bytes_at_once() -> u64 {
    let machine = rustix::system::sysinfo();
    let memory = machine.totalram.saturating_mul(machine.mem_unit.into());
    ALWAYS.max(memory / 8)
}
