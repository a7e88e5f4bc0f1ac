//! [`Size`]: how much memory the writer has, as typed on the command line.

use std::fmt;
use std::str::FromStr;

use pagetrail::page_size;

/// A size in bytes: whole pages, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(u64);

/// Units with their power of two, the largest first.
const UNITS: [(char, u32); 3] = [('G', 30), ('M', 20), ('K', 10)];

impl Size {
    /// The size in bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Any number of bytes, as it would be typed.
    pub fn shown(bytes: u64) -> String {
        Self(bytes).to_string()
    }

    /// The size in pages of this machine.
    pub fn pages(self) -> u64 {
        self.0 / page_size()
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |&(_, shift): &(char, u32)| self.0.is_multiple_of(1 << shift);
        match UNITS.into_iter().find(fits) {
            Some((unit, shift)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

impl FromStr for Size {
    type Err = String;

    /// Takes `10M` and `10MiB`; all units are binary, and one is needed.
    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = &text[digits.len()..];
        let unit = unit.strip_suffix("iB").unwrap_or(unit);
        let known = UNITS.into_iter().find(|(letter, _)| {
            unit.len() == 1 && unit.starts_with(|c: char| c.eq_ignore_ascii_case(letter))
        });
        let Some((_, shift)) = known else {
            return Err("a size needs a unit, K, M or G (binary): 10M".into());
        };
        let number: u64 = digits
            .parse()
            .map_err(|_| "a size is a whole number and a unit: 10M".to_owned())?;
        let bytes = number
            .checked_mul(1 << shift)
            .ok_or("more than there are addresses")?;
        if bytes == 0 || !bytes.is_multiple_of(page_size()) {
            return Err(format!("must be whole pages of {} bytes", page_size()));
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_and_need_a_unit() {
        let bytes = |text: &str| text.parse::<Size>().map(Size::bytes);
        assert_eq!(bytes("1M"), Ok(1 << 20));
        assert_eq!(bytes("1MiB"), Ok(1 << 20));
        assert_eq!(bytes("2g"), Ok(2 << 30));
        assert_eq!(bytes("64K"), Ok(64 << 10));
        for bad in [
            "",
            "M",
            "100",
            "1.5M",
            "-1M",
            "+",
            "1T",
            "1MB",
            "1iB",
            "0M",
            "1K",
            "1 M",
            "99999999999G",
            "1µ",
        ] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
        assert!(bytes("100").unwrap_err().contains("needs a unit"));
    }

    #[test]
    fn is_shown_as_typed() {
        for text in ["1G", "250M", "64K", "1025M"] {
            assert_eq!(text.parse::<Size>().unwrap().to_string(), text);
        }
    }
}
