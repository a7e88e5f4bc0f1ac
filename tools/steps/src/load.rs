//! What else ran on the machine while something was measured: a time is worth something only where
//! that is little.

use std::fs;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// Clock ticks of a second in `/proc` (`USER_HZ`, proc(5)), whatever the kernel's own clock is.
const TICKS: f64 = 100.0;
/// From so many processors in use by others on, the machine counts as busy. Writing files back is
/// the kernel's work, not the program's, and takes less.
const BUSY: f64 = 0.3;

/// Since when this process measures.
static SINCE: Mutex<Option<Since>> = Mutex::new(None);

struct Since {
    at: Instant,
    load: f64,
    ticks: Ticks,
}

/// Processor time so far.
#[derive(Clone, Copy)]
struct Ticks {
    /// Of the whole machine.
    machine: u64,
    /// Of this process, and of those that it has waited for.
    own: u64,
}

/// From here on what runs beside this process is looked at.
pub fn begin() -> Result<()> {
    let since = Since::now()?;
    *lock() = Some(since);
    Ok(())
}

/// What ran beside this process since the beginning or the last call, for a recording; null where
/// nobody has called [`begin`].
pub(crate) fn beside() -> Result<Value> {
    let now = Since::now()?;
    let said = match &*lock() {
        Some(since) => since.until(&now),
        None => Value::Null,
    };
    begin()?;
    Ok(said)
}

fn lock() -> std::sync::MutexGuard<'static, Option<Since>> {
    SINCE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Since {
    fn now() -> Result<Self> {
        let read = |path: &str| fs::read_to_string(path).with_context(|| path.to_owned());
        let load = read("/proc/loadavg")?;
        let load = load.split(' ').next().context("no load average")?;
        Ok(Self {
            at: Instant::now(),
            load: load.parse()?,
            ticks: Ticks {
                machine: machine(&read("/proc/stat")?).context("/proc/stat")?,
                own: own(&read("/proc/self/stat")?).context("/proc/self/stat")?,
            },
        })
    }

    fn until(&self, now: &Self) -> Value {
        let seconds = now.at.duration_since(self.at).as_secs_f64();
        let others = others(self.ticks, now.ticks, seconds);
        json!({
            // Of the last minute; afterwards it is what was measured, too.
            "average_before": self.load,
            "average_after": now.load,
            "processors_of_others": (others * 100.0).round() / 100.0,
            "busy": others > BUSY,
        })
    }
}

/// How many processors others used, in the mean of so many seconds.
fn others(before: Ticks, after: Ticks, seconds: f64) -> f64 {
    let machine = after.machine.saturating_sub(before.machine);
    let own = after.own.saturating_sub(before.own);
    // A process that nobody has waited for yet counts as another.
    machine.saturating_sub(own) as f64 / TICKS / seconds.max(1.0 / TICKS)
}

/// Of the first line of `/proc/stat`: user, nice, system, interrupts and soft interrupts; guests
/// are part of user.
fn machine(stat: &str) -> Option<u64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let numbers: Vec<u64> = line
        .split_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    [0, 1, 2, 5, 6]
        .into_iter()
        .map(|field| numbers.get(field).copied())
        .sum()
}

/// Of `/proc/self/stat`: user and system time, own and of children that were waited for.
fn own(stat: &str) -> Option<u64> {
    // The name, in parentheses, may have spaces.
    let (_, rest) = stat.rsplit_once(") ")?;
    let words: Vec<&str> = rest.split(' ').collect();
    let times = words.get(11..15)?;
    times.iter().map(|word| word.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read() {
        let stat = "cpu  10 20 30 400 50 6 7 8 9 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n";
        assert_eq!(machine(stat), Some(73));
        assert_eq!(machine("intr 1"), None);
        let stat = "12 (a) name) S 1 2 3 4 5 6 7 8 9 10 100 20 3 4 5 6";
        assert_eq!(own(stat), Some(127));
        assert_eq!(own("12 (short) S 1"), None);
    }

    #[test]
    fn own_time_is_nobody_elses() {
        let ticks = |machine, own| Ticks { machine, own };
        let near = |value: f64, expected: f64| (value - expected).abs() < 1e-9;
        assert!(near(others(ticks(100, 50), ticks(500, 450), 2.0), 0.0));
        assert!(near(others(ticks(100, 50), ticks(500, 250), 2.0), 1.0));
        // Ticks are counted at different instants.
        assert!(near(others(ticks(100, 50), ticks(200, 151), 1.0), 0.0));
    }

    #[test]
    fn this_machine_says_it() {
        let before = Since::now().unwrap();
        let began = Instant::now();
        while began.elapsed().as_millis() < 60 {}
        let now = Since::now().unwrap();
        assert!(now.ticks.own > before.ticks.own && now.ticks.machine > before.ticks.machine);
        let said = before.until(&now);
        assert!(said["busy"].is_boolean() && said["average_before"].is_number());
    }
}
