//! [`processors`]: for how long processes have waited for a processor, by pressure stall
//! information (the kernel's `Documentation/accounting/psi.rst`).

use super::text;
use std::time::Duration;

/// Where the kernel says it, of the whole machine.
const FILE: &str = "/proc/pressure/cpu";

/// The time in which some process of the machine had to wait for a processor, since it was booted;
/// `None` where the kernel does not count it (it is built without `CONFIG_PSI`, or booted with
/// `psi=0`).
pub(crate) fn processors() -> Option<Duration> {
    // A line for `some`, which comes first, is 80 bytes or so.
    let mut room = [0; 256];
    let text = text::read(format_args!("{FILE}"), &mut room).ok()?;
    total_of_some(std::str::from_utf8(text).ok()?)
}

fn total_of_some(text: &str) -> Option<Duration> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let mut words = line.split_ascii_whitespace();
    let total = words.find_map(|word| word.strip_prefix("total="))?;
    total.parse().ok().map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_of_some_is_read() {
        let text = "some avg10=2.32 avg60=2.59 avg300=25.93 total=21318961924\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(
            total_of_some(text),
            Some(Duration::from_micros(21_318_961_924))
        );
        for wrong in ["", "some", "full total=1", "some total=", "some total=-1"] {
            assert_eq!(total_of_some(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn it_only_grows() {
        // Not there on every machine.
        let (before, after) = (processors(), processors());
        assert_eq!(before.is_some(), after.is_some());
        assert!(before <= after);
    }
}
