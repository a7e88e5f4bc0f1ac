//! Checkpoints of a process that cannot be held for a while: tried again, and not all the time.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::common::pagetrail;
use crate::common::running::Running;

#[test]
fn what_cannot_be_held_is_tried_again_after_a_rest() {
    let directory = tempfile::tempdir().expect("a directory");
    let here = directory.path();
    let has_gdb = Command::new("gdb").arg("--version").output().is_ok();
    if !has_gdb {
        pagetrail_skips::not_here("there is no gdb");
        return;
    }
    let sleeping = Running(Command::new("sleep").arg("600").spawn().expect("it starts"));
    let pid = sleeping.pid();
    for kind in [&["--tree"][..], &[]] {
        let store = format!("s{}", kind.len());
        let take = ["checkpoint", "-p", &pid, "--store", &store, "--keep", "2"];
        let arguments = [&take[..], &["--count", "1000000"], kind].concat();
        let mut command = pagetrail(here, &arguments);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut saving = Running(command.spawn().expect("it starts"));
        let mut taken = BufReader::new(saving.0.stdout.take().expect("it is piped"));
        let mut said = BufReader::new(saving.0.stderr.take().expect("it is piped")).lines();
        taken.read_line(&mut String::new()).expect("UTF-8");
        let reading = std::thread::spawn(move || taken.lines().count());
        let began = Instant::now();
        let mut debugger = Command::new("gdb");
        let debugger = debugger.args(["-q", "-nx", "-batch", "-p", &pid, "-ex", "shell sleep 1"]);
        // It cannot attach while the process is being saved.
        let mut attempts = 0;
        let debugged = loop {
            let output = debugger.output().expect("it runs");
            if !String::from_utf8_lossy(&output.stderr).contains("Could not attach") {
                break output;
            }
            attempts += 1;
            assert!(attempts < 30, "{output:?}");
        };
        let line = said.next().expect("a line").expect("UTF-8");
        assert!(
            line.contains("trying again"),
            "{kind:?}: {line} {debugged:?}"
        );
        // Said once; gdb may be attaching still when the first try fails.
        let mut others = 0;
        let line = loop {
            let line = said.next().expect("a line").expect("UTF-8");
            if line.contains("taken again") {
                break line;
            }
            others += 1;
            assert!(others <= 2, "{kind:?}: {line}");
        };
        let most = 1 + began.elapsed().as_millis() / 100;
        let count = line
            .split_once("; ")
            .and_then(|(_, rest)| rest.split(' ').next());
        let count = count.and_then(|count| count.parse::<u128>().ok());
        let count = count.unwrap_or_else(|| panic!("{kind:?}: {line}"));
        assert!((2..=most).contains(&count), "{kind:?}: {count}, not {most}");
        drop(saving);
        assert!(reading.join().expect("it ends") > 0);
    }
}
