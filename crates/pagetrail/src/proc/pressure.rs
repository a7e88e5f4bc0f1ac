//! [`processors_us`]: for how long processes have waited for a processor.

use super::text;

/// Pressure stall information of the whole machine (the kernel's
/// `Documentation/accounting/psi.rst`).
const PRESSURE: &str = "/proc/pressure/cpu";
/// Since when the machine runs, and for how long its processors have been idle, all together.
const UPTIME: &str = "/proc/uptime";

/// The time since the machine was booted, in microseconds, in which some process had to wait for a
/// processor; only the difference of two calls says anything.
///
/// Where the kernel does not count it (it is built without `CONFIG_PSI`, or booted with `psi=0`),
/// the time in which no processor was idle, in steps of 10 ms: the difference is then below 0 where
/// several were. `None` if neither can be read.
pub(crate) fn processors_us() -> Option<i64> {
    of(PRESSURE, total_of_some).or_else(|| of(UPTIME, busy))
}

fn of(file: &str, parse: fn(&str) -> Option<i64>) -> Option<i64> {
    // The lines that are looked for come first and have 80 bytes or so.
    let mut room = [0; 256];
    let text = text::read(format_args!("{file}"), &mut room).ok()?;
    parse(std::str::from_utf8(text).ok()?)
}

fn total_of_some(text: &str) -> Option<i64> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let mut words = line.split_ascii_whitespace();
    words
        .find_map(|word| word.strip_prefix("total="))?
        .parse()
        .ok()
}

fn busy(text: &str) -> Option<i64> {
    let mut seconds = text
        .split_ascii_whitespace()
        .map(|word| word.parse::<f64>());
    let (up, idle) = (seconds.next()?.ok()?, seconds.next()?.ok()?);
    Some(((up - idle) * 1e6) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_of_some_is_read() {
        let text = "some avg10=2.32 avg60=2.59 avg300=25.93 total=21318961924\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(total_of_some(text), Some(21_318_961_924));
        for wrong in ["", "some", "full total=1", "some total=", "some total=x"] {
            assert_eq!(total_of_some(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn idle_processors_are_taken_from_the_time() {
        assert_eq!(busy("100.25 150.5\n"), Some(-50_250_000));
        for wrong in ["", "100.25", "100.25 x"] {
            assert_eq!(busy(wrong), None, "{wrong}");
        }
        let (before, after) = (of(UPTIME, busy), of(UPTIME, busy));
        assert!(before.is_some() && after.is_some());
    }

    #[test]
    fn what_was_waited_only_grows() {
        // Not there on every machine.
        let (before, after) = (of(PRESSURE, total_of_some), of(PRESSURE, total_of_some));
        assert_eq!(before.is_some(), after.is_some());
        assert!(before <= after);
    }
}
