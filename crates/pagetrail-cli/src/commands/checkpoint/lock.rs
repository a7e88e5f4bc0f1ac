//! Waiting for a store's lock: one process writes to a store at a time, and most are done in
//! moments.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use pagetrail::Target;
use pagetrail_checkpoint::{self as checkpoint, Error};
use pagetrail_report::words;

use super::plain;
use crate::session::waiting::Waiting;

/// How long it is waited before the lock is first asked for again. In an object store each try is a
/// few requests.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Does what needs the lock of a store, and tries again for `timeout` while another process has
/// it.
pub(crate) fn waited<T>(
    timeout: Duration,
    locked: impl FnMut() -> checkpoint::Result<T>,
) -> Result<T> {
    match retried(timeout, locked) {
        Err(error @ Error::Busy { .. }) => Err(anyhow!(
            "{error}, and was for {}; --lock-wait waits longer, and checkpoint --keep N prunes as it goes",
            words::time(timeout.as_nanos() as f64)
        )),
        outcome => outcome.map_err(plain),
    }
}

/// [`waited`], with the library's error.
pub(crate) fn retried<T>(
    timeout: Duration,
    mut locked: impl FnMut() -> checkpoint::Result<T>,
) -> checkpoint::Result<T> {
    let since = Instant::now();
    let mut pause = FIRST_PAUSE;
    let mut waiting = None;
    loop {
        let outcome = locked();
        let left = timeout.saturating_sub(since.elapsed());
        if left.is_zero() || !matches!(outcome, Err(Error::Busy { .. })) {
            return outcome;
        }
        waiting.get_or_insert_with(|| Waiting::during("waiting for another writer of the store"));
        thread::sleep(pause.min(left));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Fails where what was asked for has ended while the lock was waited for: what has its PID since
/// then, and was attached to, is another process.
pub(crate) fn check_is_same(asked: &Target) -> Result<()> {
    ensure!(
        !asked.processes(&[]).is_empty(),
        "the process has ended before a checkpoint of it was taken"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn what_has_ended_is_not_what_has_its_pid() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let alone = Target::process(child.id()).unwrap();
        let tree = Target::tree([child.id()]).unwrap();
        let found = [check_is_same(&alone), check_is_same(&tree)];
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.iter().all(Result::is_ok), "{found:?}");
        assert!(check_is_same(&alone).is_err() && check_is_same(&tree).is_err());
    }
}
