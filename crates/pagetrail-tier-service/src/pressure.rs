//! [`memory_percent`]: how long tasks waited for memory lately, by pressure stall information.

use std::fs;

use pagetrail_tier::{Error, Result};

/// Where the kernel says it, of the whole machine.
const FILE: &str = "/proc/pressure/memory";

/// The share of the last ten seconds in which some task waited for memory, in percent, of the
/// whole machine.
///
/// # Errors
///
/// The kernel does not say.
pub(crate) fn memory_percent() -> Result<f64> {
    percent_in(FILE)
}

fn percent_in(file: &str) -> Result<f64> {
    let why = match fs::read_to_string(file) {
        Ok(text) => match some_avg10(&text) {
            Some(percent) => return Ok(percent),
            None => "it does not have avg10 of some".to_owned(),
        },
        Err(error) => error.to_string(),
    };
    Err(Error::NotHere(format!(
        "{file} cannot be read ({why}), which pressure_max_percent needs: boot with psi=1 a kernel built with CONFIG_PSI, \
         or leave pressure_max_percent out"
    )))
}

fn some_avg10(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let mut words = line.split_whitespace();
    let value = words.find_map(|word| word.strip_prefix("avg10="))?;
    value
        .parse()
        .ok()
        .filter(|percent: &f64| percent.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ten_seconds_of_some_are_read() {
        let text = "some avg10=12.50 avg60=1.00 avg300=0.00 total=1\nfull avg10=3.00 avg60=0 avg300=0 total=0\n";
        assert_eq!(some_avg10(text), Some(12.5));
        for wrong in [
            "",
            "some",
            "full avg10=1.00",
            "some avg10=x",
            "some avg10=inf",
        ] {
            assert_eq!(some_avg10(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_kernel_that_does_not_say_is_named() {
        for file in ["/none", "/dev/null", "/"] {
            let error = percent_in(file).unwrap_err();
            assert!(error.is_machine_limit());
            let line = error.to_string();
            assert!(line.starts_with(file) && line.contains("psi=1"), "{line}");
        }
    }
}
