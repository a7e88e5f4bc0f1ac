//! [`Parts`]: into how many parts a page is divided.

use std::fmt;
use std::str::FromStr;

/// Into how many parts a page is divided: a power of two, 1 to 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Parts {
    shift: u8,
}

impl Parts {
    /// Whole pages.
    pub const ONE: Self = Self { shift: 0 };

    /// What is taken where nobody says otherwise.
    pub const DEFAULT: Self = Self { shift: 3 };

    /// All that there are, ascending.
    pub const ALL: [Self; 7] = [
        Self { shift: 0 },
        Self { shift: 1 },
        Self { shift: 2 },
        Self { shift: 3 },
        Self { shift: 4 },
        Self { shift: 5 },
        Self { shift: 6 },
    ];

    /// This many parts, if it is a power of two from 1 to 64.
    pub const fn new(count: u32) -> Option<Self> {
        if count.is_power_of_two() && count <= 64 {
            Some(Self {
                shift: count.trailing_zeros() as u8,
            })
        } else {
            None
        }
    }

    /// How many.
    pub const fn count(self) -> u32 {
        1 << self.shift
    }

    pub(crate) const fn shift(self) -> u32 {
        self.shift as u32
    }
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.count().fmt(f)
    }
}

/// Not a number of parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the number of parts must be 1, 2, 4, 8, 16, 32 or 64")]
pub struct BadParts;

impl FromStr for Parts {
    type Err = BadParts;

    fn from_str(text: &str) -> Result<Self, BadParts> {
        // `u32::from_str` takes a sign.
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let count = text.parse().ok().filter(|_| digits);
        count.and_then(Self::new).ok_or(BadParts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_powers_of_two_up_to_64() {
        let good: Vec<u32> = (0..=u32::from(u16::MAX))
            .filter_map(|count| Parts::new(count).map(Parts::count))
            .collect();
        assert_eq!(good, [1, 2, 4, 8, 16, 32, 64]);
        assert_eq!(good, Parts::ALL.map(Parts::count));
        assert_eq!("16".parse(), Ok(Parts::new(16).unwrap()));
        for bad in ["", "0", "3", "128", "+8", "-1", "8 ", "eight", "4294967304"] {
            assert_eq!(bad.parse::<Parts>(), Err(BadParts), "{bad:?}");
        }
    }
}
