//! [`Restored`]: what came of a restore.

use std::time::Duration;

/// A process that was started anew. It is a child of this process.
#[derive(Debug)]
pub struct Restored {
    /// Its PID.
    pub pid: u32,
    /// How many threads it has.
    pub threads: usize,
    /// How many pages were written.
    pub pages: u64,
    /// What it lacks of what it had, a line each.
    pub lost: Vec<String>,
    /// How long it took until it ran.
    pub elapsed: Duration,
}
