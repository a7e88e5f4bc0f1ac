//! Counts what Rust's test harnesses say in their output.

/// The sum of the `test result:` lines seen.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// The line that is not complete yet.
    line: Vec<u8>,
}

impl Tally {
    /// Takes the next bytes of an output.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if byte == b'\n' {
                let line = std::mem::take(&mut self.line);
                self.count(&String::from_utf8_lossy(&line));
            } else {
                self.line.push(byte);
            }
        }
    }

    /// Counts a line like `test result: ok. 3 passed; 0 failed; 0 ignored; ...`; no other line.
    fn count(&mut self, line: &str) {
        let Some(result) = line.strip_prefix("test result: ") else {
            return;
        };
        let words: Vec<&str> = result.split([' ', ';']).collect();
        for pair in words.windows(2) {
            let Ok(count) = pair[0].parse::<u64>() else {
                continue;
            };
            match pair[1] {
                "passed" => self.passed += count,
                "failed" => self.failed += count,
                _ => {}
            }
        }
    }

    /// Adds a run that has ended. One that failed without a word (killed, not even built) is one failure.
    pub(crate) fn add(&mut self, run: Self, fine: bool) {
        self.passed += run.passed;
        self.failed += if fine { run.failed } else { run.failed.max(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_the_result_lines_only() {
        let mut tally = Tally::default();
        let output = "\
running 3 tests
test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
7 passed; 7 failed
test result: FAILED. 10 passed; 2 failed; 0 ignored; 0 measured; 5 filtered out
";
        // In pieces, as a pipe delivers it.
        for piece in output.as_bytes().chunks(7) {
            tally.feed(piece);
        }
        assert_eq!((tally.passed, tally.failed), (13, 2));
    }

    #[test]
    fn a_run_that_dies_without_a_word_is_a_failure() {
        let mut sum = Tally::default();
        sum.add(Tally::default(), false);
        sum.add(Tally::default(), true);
        assert_eq!((sum.passed, sum.failed), (0, 1));
    }
}
