//! [`Threshold`]: the right half of a condition of `--fail-if`: an operator and a number.
//!
//! ```text
//! condition = left operator number [ "x" ]
//! operator  = ">" | ">=" | "<" | "<="
//! ```

/// Longest condition, in bytes.
const BYTES_MAX: usize = 4096;

/// What a figure is held against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    operator: Operator,
    /// The number.
    pub number: f64,
    /// Whether it is a multiple, with an `x`.
    pub is_ratio: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    More,
    MoreOrEqual,
    Less,
    LessOrEqual,
}

impl Threshold {
    /// Splits a condition into what stands left of its last operator, and the threshold.
    ///
    /// # Errors
    ///
    /// A sentence about what is wrong.
    pub fn split(text: &str) -> Result<(&str, Self), &'static str> {
        if text.len() > BYTES_MAX {
            return Err("it is too long");
        }
        let at = text.rfind(['>', '<']).ok_or("it has no > or <")?;
        let (left, right) = text.split_at(at);
        let is_more = right.starts_with('>');
        let right = &right[1..];
        let (operator, right) = match (is_more, right.strip_prefix('=')) {
            (true, None) => (Operator::More, right),
            (true, Some(right)) => (Operator::MoreOrEqual, right),
            (false, None) => (Operator::Less, right),
            (false, Some(right)) => (Operator::LessOrEqual, right),
        };
        let right = right.trim();
        let (digits, is_ratio) = match right.strip_suffix('x') {
            Some(digits) => (digits, true),
            None => (right, false),
        };
        let is_plain = digits.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        let number = digits.parse::<f64>().ok();
        let number = number.filter(|n| is_plain && n.is_finite());
        let threshold = Self {
            operator,
            number: number.ok_or("it ends with no number")?,
            is_ratio,
        };
        Ok((left.trim(), threshold))
    }

    /// Whether a figure is beyond it.
    pub fn holds(&self, value: f64) -> bool {
        match self.operator {
            Operator::More => value > self.number,
            Operator::MoreOrEqual => value >= self.number,
            Operator::Less => value < self.number,
            Operator::LessOrEqual => value <= self.number,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_operator_counts() {
        let (left, threshold) = Threshold::split("a<b> >= 1.5x").expect("it is one");
        assert_eq!(
            (left, threshold.number, threshold.is_ratio),
            ("a<b>", 1.5, true)
        );
        assert!(threshold.holds(1.5) && !threshold.holds(1.4));
        let (left, threshold) = Threshold::split("a<20").expect("it is one");
        assert_eq!(
            (left, threshold.number, threshold.is_ratio),
            ("a", 20.0, false)
        );
        assert!(threshold.holds(19.0) && !threshold.holds(20.0));
        assert!(Threshold::split("a>1").is_ok_and(|(_, over)| !over.holds(1.0)));
        assert!(Threshold::split("a<=1").is_ok_and(|(_, most)| most.holds(1.0)));
        assert_eq!(Threshold::split("a=1x"), Err("it has no > or <"));
        assert_eq!(Threshold::split("a>1e3"), Err("it ends with no number"));
    }
}
