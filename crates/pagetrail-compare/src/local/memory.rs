//! How much memory there is for programs and their output.

use rustix::system::sysinfo;

/// The memory that programs can have here without taking any from others, in bytes.
#[must_use]
pub fn available_bytes() -> u64 {
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = memory.lines().find_map(|line| {
        let kib = line
            .strip_prefix("MemAvailable:")?
            .trim()
            .strip_suffix(" kB")?;
        kib.parse::<u64>().ok()
    });
    available.map_or_else(|| sysinfo().freeram as u64, |kib| kib << 10)
}
