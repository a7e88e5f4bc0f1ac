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

/// What this process measures; `None` where nobody has called [`begin`].
static WATCHED: Mutex<Option<Watched>> = Mutex::new(None);

/// Since when which recording is measured.
struct Watched {
    recording: Option<String>,
    from: Since,
    /// When a recording was kept last.
    kept: Since,
}

#[derive(Clone, Copy)]
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
    /// Of this process and of those that it has started, and so on.
    own: u64,
}

/// A process, as `/proc` has it.
struct Process {
    id: u32,
    parent: u32,
    ticks: u64,
}

/// From here on what runs beside this process is looked at.
pub fn begin() -> Result<()> {
    let since = Since::now()?;
    *lock() = Some(Watched {
        recording: None,
        from: since,
        kept: since,
    });
    Ok(())
}

/// What ran beside this process while `recording` was measured: since the beginning, or since
/// another one was kept. Null where nobody has called [`begin`].
pub(crate) fn beside(recording: &str) -> Result<Value> {
    let now = Since::now()?;
    Ok(match &mut *lock() {
        Some(watched) => watched.keeps(recording, now),
        None => Value::Null,
    })
}

fn lock() -> std::sync::MutexGuard<'static, Option<Watched>> {
    WATCHED
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Watched {
    /// What ran beside a recording, which may be kept again with each of its rows.
    fn keeps(&mut self, recording: &str, now: Since) -> Value {
        if self.recording.as_deref() != Some(recording) {
            self.recording = Some(recording.to_owned());
            self.from = self.kept;
        }
        self.kept = now;
        self.from.until(&now)
    }
}

impl Since {
    fn now() -> Result<Self> {
        let read = |path: &str| fs::read_to_string(path).with_context(|| path.to_owned());
        let load = read("/proc/loadavg")?;
        let load = load.split(' ').next().context("no load average")?;
        let started = started_by(std::process::id(), processes()?);
        Ok(Self {
            at: Instant::now(),
            load: load.parse()?,
            ticks: Ticks {
                machine: machine(&read("/proc/stat")?).context("/proc/stat")?,
                own: started + own(&read("/proc/self/stat")?).context("/proc/self/stat")?,
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
    // A process whose parent has ended before it counts as another.
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

/// All processes.
fn processes() -> Result<Vec<Process>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("/proc")? {
        let entry = entry.context("/proc")?;
        let name = entry.file_name();
        let Some(id) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // One that has ended meanwhile is among what its parent has waited for.
        let Ok(stat) = fs::read(entry.path().join("stat")) else {
            continue;
        };
        let stat = String::from_utf8_lossy(&stat);
        if let (Some(parent), Some(ticks)) = (parent(&stat), own(&stat)) {
            found.push(Process { id, parent, ticks });
        }
    }
    Ok(found)
}

/// The time of those that `process` has started, of those that they have, and so on: a guest's
/// emulator is waited for when all of its rows are there.
fn started_by(process: u32, all: Vec<Process>) -> u64 {
    let (mut parents, mut rest) = (vec![process], all);
    let mut ticks = 0;
    while let Some(parent) = parents.pop() {
        let (children, others): (Vec<_>, Vec<_>) = rest
            .into_iter()
            .partition(|process| process.parent == parent);
        ticks += children.iter().map(|child| child.ticks).sum::<u64>();
        parents.extend(children.iter().map(|child| child.id));
        rest = others;
    }
    ticks
}

/// Of `/proc/PID/stat`: who has started it.
fn parent(stat: &str) -> Option<u32> {
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(1)?.parse().ok()
}

/// Of `/proc/PID/stat`: user and system time, own and of children that were waited for.
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
        assert_eq!((own(stat), parent(stat)), (Some(127), Some(1)));
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
    fn time_of_what_it_has_started_is_its_own_too() {
        let process = |id, parent, ticks| Process { id, parent, ticks };
        let all = vec![
            process(1, 0, 1000),
            process(9, 8, 300),
            process(7, 1, 5),
            process(8, 7, 20),
            process(10, 1, 4000),
        ];
        assert_eq!(started_by(7, all), 320);
    }

    #[test]
    fn rows_of_one_recording_are_one_measurement() {
        let began = Since::now().unwrap();
        let after = |seconds: u64, ticks: u64| {
            let mut since = began;
            since.at += std::time::Duration::from_secs(seconds);
            since.ticks.machine += ticks;
            since
        };
        let mut watched = Watched {
            recording: None,
            from: began,
            kept: began,
        };
        let mut busy = |name, since| watched.keeps(name, since)["processors_of_others"].take();
        assert_eq!(busy("a", after(1, 100)), 1.0);
        // The second row was measured by itself, and the first is in the recording, too.
        assert_eq!(busy("a", after(2, 100)), 0.5);
        assert_eq!(busy("b", after(4, 120)), 0.1);
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
