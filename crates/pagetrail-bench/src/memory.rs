//! Whether the machine has the memory that a size takes; said before anything is measured.

use anyhow::{Context, Result, bail};
use pagetrail::Technique;

use pagetrail_report::size::Size;
use pagetrail_report::words;

/// What the rest of the program needs: the fault log of `userfaultfd`, write sets.
const BESIDES: u64 = 128 << 20;

/// Refuses sizes for which there is not enough memory available.
pub fn check(sizes: &[Size], techniques: &[Technique]) -> Result<()> {
    let text = std::fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let available = available(&text).context("/proc/meminfo has no MemAvailable")?;
    for size in sizes {
        let need = need(*size, techniques);
        if need > available {
            bail!(
                "memory of {size} takes {}{}, and {} are available",
                words::bytes(need as f64),
                match techniques.contains(&Technique::Compare) {
                    true => " with the copy that compare keeps",
                    false => "",
                },
                words::bytes(available as f64),
            );
        }
    }
    Ok(())
}

fn need(size: Size, techniques: &[Technique]) -> u64 {
    let mut need = size.bytes();
    if techniques.contains(&Technique::Compare) {
        // The copies, and their places in a table.
        need = need.saturating_add(size.bytes() / 16 * 17);
    }
    need.saturating_add(BESIDES)
}

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|l| l.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_the_copy_where_there_is_one() {
        let size: Size = "1G".parse().unwrap();
        let least = size.bytes() + BESIDES;
        assert_eq!(need(size, &[Technique::PagemapScan]), least);
        assert!(need(size, &[Technique::Compare]) >= least + size.bytes());
        let huge: Size = "16000000000G".parse().unwrap();
        assert!(check(&[size, huge], &[Technique::None]).is_err());
        assert_eq!(
            available("MemFree: 1 kB\nMemAvailable:   2048 kB\n"),
            Some(2 << 20)
        );
    }
}
