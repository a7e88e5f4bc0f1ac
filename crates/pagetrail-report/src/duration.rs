//! [`parse`]: a time with its unit, as typed on the command line and in configurations.

use std::time::Duration;

/// The shortest: trails count milliseconds.
const MIN: Duration = Duration::from_millis(1);
/// The longest time that is taken, far from where sums of times overflow.
pub const MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// Takes a time from `1ms` to [`MAX`], with its unit.
///
/// # Errors
///
/// The text is no time, lacks a unit, or is out of these bounds; one line says so.
pub fn parse(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if (MIN..=MAX).contains(&duration) {
        Ok(duration)
    } else {
        Err("it must be between 1ms and 1year".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit_and_a_sensible_size() {
        assert_eq!(parse("100ms"), Ok(Duration::from_millis(100)));
        assert_eq!(parse("2m"), Ok(Duration::from_secs(120)));
        for wrong in [
            "100",
            "",
            "ms",
            "0s",
            "10us",
            "-1s",
            "2years",
            "99999999999999999999s",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
