//! [`Interval`] and [`Share`]: how often rounds are taken, and what they may cost the program, as
//! the command line says it.

use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;

use crate::args::{DURATION_MAX, duration};

/// How far an interval may be stretched where only its shortest length is given: to the longer of
/// these. Programs that write hundreds of MB per second take rounds of seconds to be within a few
/// percent.
const STRETCH: u32 = 10;
const STRETCHED: Duration = Duration::from_secs(10);

/// The time from round to round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interval {
    pub(crate) shortest: Duration,
    longest: Option<Duration>,
}

/// Parses `100ms`, or `20ms..1s`.
pub(crate) fn interval(text: &str) -> Result<Interval, String> {
    let Some((shortest, longest)) = text.split_once("..") else {
        return duration(text).map(|shortest| Interval {
            shortest,
            longest: None,
        });
    };
    let (shortest, longest) = (duration(shortest)?, duration(longest)?);
    match shortest <= longest {
        true => Ok(Interval {
            shortest,
            longest: Some(longest),
        }),
        false => Err("the shortest interval comes first, as in 20ms..1s".into()),
    }
}

/// The least share in percent: reports show one digit, and less could not be kept or measured.
const PERCENT_MIN: f64 = 0.1;

/// A share of a program's time, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Share(pub(crate) f64);

/// Parses `3%`.
pub(crate) fn share(text: &str) -> Result<Share, String> {
    let number = text.strip_suffix('%').map(str::trim_end);
    let percent = number.and_then(|number| number.parse::<f64>().ok());
    match percent {
        Some(percent) if (PERCENT_MIN..=100.0).contains(&percent) => Ok(Share(percent / 100.0)),
        Some(_) => Err(format!(
            "it must be at least {PERCENT_MIN}% and at most 100%"
        )),
        None => Err("a share of the program's time in percent, such as 3%".into()),
    }
}

/// The flag that sets what tracking may cost.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct BudgetArgs {
    /// Let tracking slow the program down by no more than this share, such as 3%: where it would,
    /// pages are predicted dirty instead of protected, and the interval is stretched, up to 10 s
    /// or ten times, or to the end of --interval 20ms..1s. The report says what it cost and at
    /// which interval
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub(crate) max_overhead: Option<Share>,
}

/// What tracking may cost, and the bounds of the interval.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Budget {
    pub(crate) share: f64,
    pub(crate) intervals: RangeInclusive<Duration>,
}

impl BudgetArgs {
    /// The budget; `None` if none is asked for, and rounds are taken at the interval. `flag` names
    /// the flag of the interval.
    pub(crate) fn budget(self, interval: Interval, flag: &str) -> Result<Option<Budget>> {
        let Interval { shortest, longest } = interval;
        let Some(Share(share)) = self.max_overhead else {
            if let Some(longest) = longest {
                let [shortest, longest] = [shortest, longest].map(humantime::format_duration);
                bail!(
                    "{flag} {shortest}..{longest} is a range, within which --max-overhead chooses: \
                     give that too, or one time"
                );
            }
            return Ok(None);
        };
        let stretched = shortest.saturating_mul(STRETCH).max(STRETCHED);
        let stretched = stretched.min(DURATION_MAX);
        Ok(Some(Budget {
            share,
            intervals: shortest..=longest.unwrap_or(stretched),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn an_interval_is_a_time_or_a_range() {
        let of = |text| interval(text).map(|interval| (interval.shortest, interval.longest));
        assert_eq!(of("100ms"), Ok((MS(100), None)));
        assert_eq!(of("20ms..1s"), Ok((MS(20), Some(MS(1000)))));
        assert_eq!(of("20ms..20ms"), Ok((MS(20), Some(MS(20)))));
        for wrong in [
            "1s..20ms",
            "20ms..",
            "..1s",
            "20..1s",
            "20ms...1s",
            "20ms-1s",
            "0s..1s",
        ] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_share_is_in_percent() {
        assert_eq!(share("3%"), Ok(Share(0.03)));
        assert_eq!(share("0.5 %"), Ok(Share(0.005)));
        assert_eq!(share("0.1%"), Ok(Share(0.001)));
        for small in ["1e-9%", "0.09%", "0%"] {
            let error = share(small).unwrap_err();
            assert_eq!(
                error, "it must be at least 0.1% and at most 100%",
                "{small}"
            );
        }
        for wrong in ["3", "0.03", "%", "x%", "0%", "-1%", "101%", "NaN%", "inf%"] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_interval_is_stretched_within_its_range_or_for_seconds() {
        let args = |max_overhead| BudgetArgs { max_overhead };
        let bounds = |text| {
            let interval = interval(text).unwrap();
            let budget = args(Some(Share(0.03))).budget(interval, "--interval");
            budget.unwrap().unwrap().intervals
        };
        assert_eq!(bounds("100ms"), MS(100)..=MS(10_000));
        assert_eq!(bounds("5s"), MS(5000)..=MS(50_000));
        assert_eq!(bounds("20ms..5s"), MS(20)..=MS(5000));
        assert_eq!(*bounds("1y").end(), DURATION_MAX);
        let none = args(None);
        assert_eq!(
            none.budget(interval("1s").unwrap(), "--interval").unwrap(),
            None
        );
        let error = none
            .budget(interval("20ms..1s").unwrap(), "--interval")
            .unwrap_err();
        let error = error.to_string();
        assert!(
            error.starts_with("--interval 20ms..1s is a range"),
            "{error}"
        );
    }
}
