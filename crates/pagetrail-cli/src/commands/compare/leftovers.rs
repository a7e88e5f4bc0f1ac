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
pub(super) struct Leftovers {
    ended: u64,
    staying: u64,
}

/// The processes that were there before a run, which are this program's own.
pub(super) struct Before(Vec<Pid>);

impl Leftovers {
    /// Has processes whose parents have ended become children of this one, wherever they went:
    /// `PR_SET_CHILD_SUBREAPER` of prctl(2).
    pub(super) fn begin() -> io::Result<Self> {
        rustix::process::set_child_subreaper(Some(getpid()))?;
        Ok(Self::default())
    }

    /// A run begins.
    pub(super) fn before(&self) -> Before {
        Before(children())
    }

    /// A run has ended: ends the processes that outlive it. Only children are signalled, whose
    /// numbers nobody else can get; theirs become children when they end.
    pub(super) fn end(&mut self, before: &Before) {
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
    pub(super) fn note(&self) -> Option<String> {
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

/// The children of all threads, those among them that nobody has waited for yet; none where the
/// kernel does not list them (CONFIG_PROC_CHILDREN).
fn children() -> Vec<Pid> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten();
    let threads = threads.filter_map(|thread| Some(thread.ok()?.path()));
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.join("children")).ok());
    let mut children = Vec::new();
    for list in lists {
        let numbers = list.split_whitespace().filter_map(|word| word.parse().ok());
        children.extend(numbers.filter_map(Pid::from_raw));
    }
    children
}

/// Whether a child is one that has lost its parent, and not a process of this program by which it
/// tracks others: the end of that one sends no signal, which proc_pid_stat(5) tells.
fn is_orphan(child: Pid) -> bool {
    const EXIT_SIGNAL: usize = 38;
    let path = Path::new("/proc").join(child.as_raw_pid().to_string());
    let Ok(text) = fs::read_to_string(path.join("stat")) else {
        return false;
    };
    // The name, the second word, may have spaces in it, and ends with the last bracket.
    let mut rest = text.rsplit(')').next().unwrap_or("").split_whitespace();
    let signal = rest.nth(EXIT_SIGNAL - 3).and_then(|word| word.parse().ok());
    signal == Some(Signal::CHILD.as_raw())
}

/// Whether a child has ended; then it is waited for.
fn is_over(child: Pid) -> bool {
    !matches!(waitpid(Some(child), WaitOptions::NOHANG), Ok(None))
}
