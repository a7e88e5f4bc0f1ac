//! Times as a person writes them.

use std::time::Duration;

use anyhow::{Context, Result, bail};

/// A time as `90s`, `30m` or `8h`.
pub fn duration(text: &str) -> Result<Duration> {
    let (number, seconds) = match text.split_at_checked(text.len().saturating_sub(1)) {
        Some((number, "s")) => (number, 1),
        Some((number, "m")) => (number, 60),
        Some((number, "h")) => (number, 3600),
        _ => bail!("'{text}' is no time; write 90s, 30m or 8h"),
    };
    let number: u32 = number
        .parse()
        .with_context(|| format!("'{text}' is no time; write 90s, 30m or 8h"))?;
    Ok(Duration::from_secs(seconds) * number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        assert_eq!(duration("90s").unwrap(), Duration::from_secs(90));
        assert_eq!(duration("8h").unwrap(), Duration::from_secs(8 * 3600));
        for wrong in ["", "h", "8", "-1h", "1d", "1 h"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
