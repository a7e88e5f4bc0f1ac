//! [`SubpageCount`]: how many sub-pages a page is divided into.

use std::fmt;
use std::str::FromStr;

/// The number of sub-pages per page: a power of two, 1 to 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubpageCount {
    shift: u8,
}

impl SubpageCount {
    /// Whole pages: one sub-page per page.
    pub const ONE: Self = Self { shift: 0 };

    /// The default of the heap of the process: 8.
    pub const DEFAULT: Self = Self { shift: 3 };

    /// All valid numbers, ascending.
    pub const ALL: [Self; 7] = [
        Self { shift: 0 },
        Self { shift: 1 },
        Self { shift: 2 },
        Self { shift: 3 },
        Self { shift: 4 },
        Self { shift: 5 },
        Self { shift: 6 },
    ];

    /// This many sub-pages per page, if the number is a power of two from 1 to 64.
    pub const fn new(count: u32) -> Option<Self> {
        if count.is_power_of_two() && count <= 64 {
            Some(Self {
                shift: count.trailing_zeros() as u8,
            })
        } else {
            None
        }
    }

    /// The number itself.
    pub const fn count(self) -> u32 {
        1 << self.shift
    }

    pub(crate) const fn shift(self) -> u32 {
        self.shift as u32
    }
}

impl fmt::Display for SubpageCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.count().fmt(f)
    }
}

/// The error of parsing a [`SubpageCount`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the number of sub-pages must be 1, 2, 4, 8, 16, 32 or 64")]
pub struct BadSubpageCount;

impl FromStr for SubpageCount {
    type Err = BadSubpageCount;

    fn from_str(text: &str) -> Result<Self, BadSubpageCount> {
        // `u32::from_str` takes a sign.
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let count = text.parse().ok().filter(|_| digits);
        count.and_then(Self::new).ok_or(BadSubpageCount)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_powers_of_two_up_to_64() {
        let good: Vec<u32> = (0..=u32::from(u16::MAX))
            .filter_map(|count| SubpageCount::new(count).map(SubpageCount::count))
            .collect();
        assert_eq!(good, [1, 2, 4, 8, 16, 32, 64]);
        assert_eq!(good, SubpageCount::ALL.map(SubpageCount::count));
        assert_eq!("16".parse(), Ok(SubpageCount::new(16).unwrap()));
        for bad in ["", "0", "3", "128", "+8", "-1", "8 ", "eight", "4294967304"] {
            assert_eq!(bad.parse::<SubpageCount>(), Err(BadSubpageCount), "{bad:?}");
        }
    }
}
