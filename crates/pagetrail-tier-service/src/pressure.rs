//! [`memory_percent`]: how long tasks waited for memory lately, by pressure stall information.

use std::fs;

/// The share of the last ten seconds in which some task waited for memory, in percent, of the
/// whole machine (`/proc/pressure/memory`); `None` where the kernel does not say.
pub(crate) fn memory_percent() -> Option<f64> {
    some_avg10(&fs::read_to_string("/proc/pressure/memory").ok()?)
}

fn some_avg10(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let mut words = line.split_whitespace();
    let value = words.find_map(|word| word.strip_prefix("avg10="))?;
    value
        .parse()
        .ok()
        .filter(|percent: &f64| percent.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ten_seconds_of_some_are_read() {
        let text = "some avg10=12.50 avg60=1.00 avg300=0.00 total=1\nfull avg10=3.00 avg60=0 avg300=0 total=0\n";
        assert_eq!(some_avg10(text), Some(12.5));
        for wrong in [
            "",
            "some",
            "full avg10=1.00",
            "some avg10=x",
            "some avg10=inf",
        ] {
            assert_eq!(some_avg10(wrong), None, "{wrong}");
        }
    }
}
