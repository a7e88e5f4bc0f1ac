//! [`Label`]: a name that somebody gave to a checkpoint.

use crate::error::{Error, Result};
use std::fmt;

/// A label has at most so many bytes.
const BYTES_MAX: usize = 100;
/// What a label may have besides letters and digits.
const MARKS: &str = "._-+:@/";

/// The name of a checkpoint: letters, digits and `._-+:@/`, at most 100 bytes, not digits alone,
/// which would be a number, and not beginning with `-`, which would be a flag.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(String);

impl Label {
    /// The label of this text.
    ///
    /// # Errors
    ///
    /// It cannot be a label.
    pub fn new(text: &str) -> Result<Self> {
        match Self::parse(text) {
            Some(label) => Ok(label),
            None => Err(Error::Refused(format!(
                "{:?} is no label: letters, digits and {MARKS}, at most {BYTES_MAX} bytes, not digits \
                 alone, and no - at the beginning",
                text.chars().take(BYTES_MAX).collect::<String>()
            ))),
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let may_be_part = |c: char| c.is_alphanumeric() || MARKS.contains(c);
        let is_label = (1..=BYTES_MAX).contains(&text.len())
            && !text.starts_with('-')
            && text.chars().all(may_be_part)
            && !text.chars().all(|c| c.is_ascii_digit());
        is_label.then(|| Self(text.into()))
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_neither_numbers_nor_flags_nor_control_characters() {
        for right in [
            "a",
            "before-upgrade",
            "v1.2",
            "2026-11-24",
            "größe",
            "a/b:c@d+e",
        ] {
            assert_eq!(Label::new(right).unwrap().as_str(), right);
        }
        let long = "x".repeat(BYTES_MAX + 1);
        for wrong in [
            "",
            "12",
            "-a",
            "a b",
            "a\nb",
            "a\u{202e}b",
            "\u{1b}[31m",
            &long,
        ] {
            assert!(Label::new(wrong).is_err(), "{wrong:?}");
        }
    }
}
