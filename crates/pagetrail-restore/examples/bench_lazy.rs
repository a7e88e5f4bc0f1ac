//! What a lazy restore of the newest checkpoint of a store costs, in its parts; the process is
//! ended afterwards.
//!
//! bench_lazy STORE [ROUNDS]

#![allow(clippy::print_stdout, reason = "an example prints what it measured")]

use pagetrail_checkpoint::Store;
use pagetrail_restore::{Missing, RestoreOptions, restore_lazily};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let store = PathBuf::from(arguments.next().ok_or("a store is missing")?);
    let rounds = match arguments.next() {
        Some(rounds) => rounds.to_string_lossy().parse()?,
        None => 5,
    };
    for _ in 0..rounds {
        let began = Instant::now();
        let image = Store::open(&store)?.newest_image()?;
        let opened = began.elapsed();
        let options = RestoreOptions {
            on_missing: Missing::Null,
            allow_changed_files: true,
            ..RestoreOptions::default()
        };
        let (restored, pager) = restore_lazily(image, &options)?;
        let running = began.elapsed();
        let lacking = pager.lacking_pages();
        let given = pager.finish()?;
        println!(
            "{lacking} pages lacked: image opened after {opened:.1?}, running after {running:.1?}, all there \
             after {:.1?}, {} faults",
            began.elapsed(),
            given.faults
        );
        if let Some(pid) = Pid::from_raw(restored.pid as i32) {
            kill_process(pid, Signal::KILL)?;
            waitpid(Some(pid), WaitOptions::empty())?;
        }
    }
    Ok(())
}
