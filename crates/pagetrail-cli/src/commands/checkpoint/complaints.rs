//! What is said of checkpoints that fail one after the other, and when they are tried again.

use std::time::{Duration, Instant};

use anyhow::Result;
use pagetrail_recorder::Schedule;
use pagetrail_report::words;

use crate::exit;

/// How soon what has failed is tried again, at the soonest: each try holds the process, or waits
/// until it can be held.
const RETRY: Duration = Duration::from_millis(100);

/// Makes the next checkpoint due no sooner after one that failed than something may have changed.
pub(super) fn rest(schedule: &mut Schedule, now: Instant) {
    if schedule.deadline() < now + RETRY {
        schedule.set_next_within(now + RETRY, now, RETRY);
    }
}

/// What went wrong, said once, and again after a while: a full disk fails every checkpoint in the
/// same way.
#[derive(Debug, Default)]
pub(super) struct Complaints {
    /// What was said last, and when.
    last: Option<(String, Instant)>,
    /// How often the same has happened since, unsaid.
    unsaid: u64,
}

/// How long the same complaint is not said again.
const SAY_AGAIN: Duration = Duration::from_secs(60);

impl Complaints {
    /// What to say of a failure at a time, if anything.
    pub(super) fn line(&mut self, line: String, now: Instant) -> Option<String> {
        if let Some((last, when)) = &self.last
            && *last == line
            && now.saturating_duration_since(*when) < SAY_AGAIN
        {
            self.unsaid += 1;
            return None;
        }
        self.last = Some((line.clone(), now));
        Some(match std::mem::take(&mut self.unsaid) {
            0 => line,
            count => format!("{line} ({} more failed so since)", words::count(count)),
        })
    }

    /// It works again; what to say of that.
    pub(super) fn over(&mut self) -> Option<String> {
        self.last.take()?;
        match std::mem::take(&mut self.unsaid) {
            0 => None,
            count => Some(format!(
                "checkpoints are taken again; {} had failed besides the one that was said",
                words::count(count)
            )),
        }
    }
}

/// What is said of older checkpoints that could not be removed after a new one was taken. That is
/// there all the same, and the next may remove them.
#[derive(Debug, Default)]
pub(super) struct Pruning(Complaints);

impl Pruning {
    /// Says what has become of pruning; `what` was to be removed.
    pub(super) fn of<T>(&mut self, outcome: Result<T>, what: &str) {
        match outcome {
            Ok(_) => self.0 = Complaints::default(),
            Err(error) => {
                let line = format!("older {what} stay: {error:#}");
                if let Some(line) = self.0.line(line, Instant::now()) {
                    exit::message(&words::printable(&line));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_not_tried_again_at_once() {
        let began = Instant::now();
        for (interval, expected) in [(Duration::from_nanos(1), RETRY), (RETRY * 7, RETRY * 7)] {
            let mut schedule = Schedule::new(began, interval, None);
            rest(&mut schedule, began);
            assert_eq!(schedule.deadline(), began + expected);
        }
    }

    #[test]
    fn the_same_complaint_is_said_once_a_minute() {
        let mut complaints = Complaints::default();
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let said = |line: Option<String>| line.is_some();
        assert!(said(complaints.line("full".into(), at(0))));
        assert!(!said(complaints.line("full".into(), at(1))));
        assert!(!said(complaints.line("full".into(), at(59))));
        let again = complaints.line("full".into(), at(60)).expect("it is said");
        assert!(again.contains("2 more"), "{again}");
        assert!(said(complaints.line("other".into(), at(61))));
        assert!(!said(complaints.line("other".into(), at(62))));
        assert!(complaints.over().is_some_and(|line| line.contains('1')));
        assert!(!said(complaints.over()));
        assert!(said(complaints.line("other".into(), at(63))));
    }
}
