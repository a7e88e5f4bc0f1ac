//! Round numbers for axes: where ticks go and what they are called.

const NS: u64 = 1_000_000_000;

/// A round number of nanoseconds that divides a time into at most nine parts.
pub(super) fn time_step(span_ns: u64) -> u64 {
    let least = (span_ns / 9).max(1);
    if least > NS {
        let clock = [
            2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800,
        ];
        let seconds = clock.into_iter().find(|s| s * NS >= least);
        return NS * seconds.unwrap_or_else(|| least.div_ceil(86_400 * NS) * 86_400);
    }
    let mut power = 1;
    while power * 10 < least {
        power *= 10;
    }
    [1, 2, 5, 10]
        .map(|m| m * power)
        .into_iter()
        .find(|&step| step >= least)
        .unwrap_or(least)
}

/// A moment with as many digits as the step between ticks needs: `2.5 s`, `3:20`, `1:05:00`.
pub(super) fn time_label(ns: u64, step_ns: u64) -> String {
    if ns < 120 * NS {
        let digits = (0..9).find(|&digits| step_ns.is_multiple_of(NS / 10u64.pow(digits)));
        let digits = digits.unwrap_or(9) as usize;
        return format!("{:.digits$} s", ns as f64 / 1e9);
    }
    let seconds = ns / NS;
    let (minutes, rest) = (seconds / 60, seconds % 60);
    if minutes < 60 {
        format!("{minutes}:{rest:02}")
    } else {
        format!("{}:{:02}:{rest:02}", minutes / 60, minutes % 60)
    }
}

/// A round number of bytes per second in the unit of `highest` that divides it into two or three
/// parts.
pub(super) fn rate_step(highest: f64) -> f64 {
    let highest = highest.max(1.0);
    let unit = 1024f64.powi((highest.log2() / 10.0) as i32);
    let least = highest / unit / 3.0;
    let power = 10f64.powi(least.log10().floor() as i32);
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|m| m * power);
    unit * step
        .into_iter()
        .find(|&step| step >= least * 0.999)
        .unwrap_or(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        for (span, step) in [
            (900 * NS, 120 * NS),
            (20 * NS, 5 * NS),
            (NS, NS / 5),
            (1000, 200),
            (1, 1),
            (30 * 86_400 * NS, 4 * 86_400 * NS),
        ] {
            assert_eq!(time_step(span), step, "for {span} ns");
        }
        assert_eq!(time_label(2_500_000_000, NS / 2), "2.5 s");
        assert_eq!(time_label(5 * NS, 5 * NS), "5 s");
        assert_eq!(time_label(200 * NS, 20 * NS), "3:20");
        assert_eq!(time_label(3900 * NS, 300 * NS), "1:05:00");
        assert_eq!(rate_step(3.6 * 1024.0 * 1024.0), 2.0 * 1024.0 * 1024.0);
        assert_eq!(rate_step(0.0), 0.5);
    }
}
