//! Time of processors: on a machine that does more than one thing at a time, what a step costs.

use std::fs;
use std::time::Duration;

/// What this process has used so far, with all those below it that have ended and were waited for.
/// Zero where that cannot be known.
pub(crate) fn used() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks = rustix::param::clock_ticks_per_second();
    let seconds = ticks_of(&stat).unwrap_or(0) as f64 / ticks as f64;
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// The sum of `utime`, `stime`, `cutime` and `cstime` of a line of `/proc/PID/stat`: proc(5).
fn ticks_of(stat: &str) -> Option<u64> {
    // The name before may hold anything; the state after it is the third field.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split(' ').skip(14 - 3);
    (0..4).map(|_| times.next()?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_four_times_are_summed() {
        let stat = "1 (a) b) S 2 3 4 5 6 7 8 9 10 11 100 20 3 4 15 16";
        assert_eq!(ticks_of(stat), Some(127));
        assert_eq!(ticks_of(""), None);
        assert_eq!(ticks_of("1 (a) S 2"), None);
    }

    #[test]
    fn children_that_have_ended_count() {
        let before = used();
        let busy = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        let status = Command::new("sh").args(["-c", busy]).status().unwrap();
        assert!(status.success());
        assert!(used() > before);
    }
}
