//! [`Leftovers`]: processes that outlive a run are ended before the next one, so that they take no
//! time from it, hold no port, and do not pile up.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};

use pagetrail_report::words;

/// How long a process may take to end when it is asked to.
const PATIENT: Duration = Duration::from_secs(2);
/// When one that does not end at all, as in a file system that hangs, is not waited for any more.
const LATEST: Duration = Duration::from_secs(10);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(2);

/// Processes that have outlived their runs.
#[derive(Debug, Default)]
pub struct Leftovers {
    ended: u64,
    staying: u64,
}

/// The processes that were there before a run, which are this program's own.
#[derive(Debug)]
pub struct Before(Vec<Pid>);

impl Leftovers {
    /// Has processes whose parents have ended become children of this one, wherever they went:
    /// `PR_SET_CHILD_SUBREAPER` of prctl(2).
    ///
    /// # Errors
    ///
    /// Those of prctl(2): none is known on a kernel that has `/proc`.
    pub fn begin() -> io::Result<Self> {
        rustix::process::set_child_subreaper(Some(getpid()))?;
        Ok(Self::default())
    }

    /// A run begins.
    #[must_use]
    pub fn before(&self) -> Before {
        Before(children())
    }

    /// A run has ended: ends the processes that outlive it. Only children are signalled, whose
    /// numbers nobody else can get; theirs become children when they end.
    pub fn end(&mut self, before: &Before) {
        let began = Instant::now();
        let mut asked: Vec<Pid> = Vec::new();
        let mut empty_looks = 0;
        while empty_looks < 2 {
            let orphans = children().into_iter();
            let orphans = orphans.filter(|child| !before.0.contains(child) && is_orphan(*child));
            let living: Vec<Pid> = orphans.filter(|orphan| !is_over(*orphan)).collect();
            let late = began.elapsed();
            if living.is_empty() {
                // A list that is read while one of them ends may lack others; proc_pid_task(5).
                empty_looks += 1;
                continue;
            }
            empty_looks = 0;
            if late >= LATEST {
                self.staying += living.len() as u64;
                break;
            }
            for orphan in living {
                if !asked.contains(&orphan) {
                    asked.push(orphan);
                    let _ = kill_process(orphan, Signal::TERM);
                } else if late >= PATIENT {
                    let _ = kill_process(orphan, Signal::KILL);
                }
            }
            std::thread::sleep(LOOK);
        }
        self.ended += asked.len() as u64;
    }

    /// What there is to say of them.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        let said = |count: u64, what: &str| {
            let processes = if count == 1 { "process" } else { "processes" };
            let count = words::count(count);
            (count != "0").then(|| format!("{count} {processes} that outlived their runs {what}"))
        };
        let ended = said(self.ended - self.staying, "were ended, each after its run");
        let staying = said(self.staying, "could not be ended");
        let notes: Vec<String> = ended.into_iter().chain(staying).collect();
        (!notes.is_empty()).then(|| notes.join("; "))
    }
}

/// The children of all threads, also those that have ended and that nobody has waited for yet.
fn children() -> Vec<Pid> {
    listed_children().unwrap_or_else(children_by_parent)
}

/// The children that the kernel lists; `None` where it has no such lists (CONFIG_PROC_CHILDREN).
fn listed_children() -> Option<Vec<Pid>> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten();
    let threads = threads.filter_map(|thread| Some(thread.ok()?.path()));
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.join("children")).ok());
    let mut children = None;
    for list in lists {
        let numbers = list.split_whitespace().filter_map(|word| word.parse().ok());
        let known = children.get_or_insert_with(Vec::new);
        known.extend(numbers.filter_map(Pid::from_raw));
    }
    children
}

/// All processes that say that this one is their parent: a file is read for each process here.
fn children_by_parent() -> Vec<Pid> {
    const PARENT: usize = 4;
    let processes = fs::read_dir("/proc").into_iter().flatten();
    let numbers = processes.filter_map(|process| process.ok()?.file_name().to_str()?.parse().ok());
    let own = getpid().as_raw_pid();
    let processes = numbers.filter_map(Pid::from_raw);
    let children = processes.filter(|process| stat_field(*process, PARENT) == Some(own));
    children.collect()
}

/// Whether a child is one that has lost its parent, and not a process of this program by which it
/// tracks others: the end of that one sends no signal, which proc_pid_stat(5) tells.
fn is_orphan(child: Pid) -> bool {
    const EXIT_SIGNAL: usize = 38;
    stat_field(child, EXIT_SIGNAL) == Some(Signal::CHILD.as_raw())
}

/// A field of proc_pid_stat(5) after the name, by its number there.
fn stat_field(process: Pid, number: usize) -> Option<i32> {
    let path = Path::new("/proc").join(process.as_raw_pid().to_string());
    let text = fs::read_to_string(path.join("stat")).ok()?;
    // The name, the second field, may have spaces in it, and ends with the last bracket.
    let mut rest = text.rsplit(')').next()?.split_whitespace();
    rest.nth(number - 3)?.parse().ok()
}

/// Whether a child has ended; then it is waited for.
fn is_over(child: Pid) -> bool {
    !matches!(waitpid(Some(child), WaitOptions::NOHANG), Ok(None))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn children_are_found_without_the_kernels_lists() {
        let sleeping = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn();
        let mut child = sleeping.expect("sleep(1)");
        let pid = Pid::from_raw(child.id() as i32).expect("a PID");
        let by_parent = children_by_parent();
        let listed = listed_children();
        child.kill().expect("a child that has not been waited for");
        child.wait().expect("a child");
        assert!(by_parent.contains(&pid), "{pid:?} is not in {by_parent:?}");
        if let Some(listed) = listed {
            assert!(listed.contains(&pid), "{pid:?} is not in {listed:?}");
        }
    }
}
