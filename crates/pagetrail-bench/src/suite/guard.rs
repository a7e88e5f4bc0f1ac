//! [`Guard`]: programs that go on until they are killed end with the benchmark, however that ends.
//!
//! A shell waits for the end of a pipe of which this process alone has the other end: the kernel
//! closes it also where the benchmark is interrupted or killed, and nothing of it runs any more.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, Result};

/// Reads process groups, a line each. At the end of them: the script that ends a server, if there
/// is one, and the end of the groups.
const SCRIPT: &str = r#"
groups=
while read -r group; do groups="$groups -$group"; done
if [ -n "$groups" ]; then
    sh -ec "$1"
    kill -s KILL -- $groups
fi
"#;

/// Ends process groups when it is dropped, and when this process has ended.
pub(super) struct Guard {
    shell: Child,
    /// `None` only while it is being dropped.
    groups: Option<ChildStdin>,
}

impl Guard {
    /// Of a program that the script `end` ends, or that may be killed.
    pub(super) fn start(end: Option<&str>) -> Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", SCRIPT, "sh", end.unwrap_or("true")]);
        shell.stdin(Stdio::piped());
        shell.stdout(Stdio::null()).stderr(Stdio::null());
        // What a terminal sends to the benchmark is not for it.
        shell.process_group(0);
        let mut shell = shell.spawn().context("cannot start a shell")?;
        let groups = shell.stdin.take();
        Ok(Self { shell, groups })
    }

    /// Has it end a group of processes, too, which is named by the PID of its first.
    pub(super) fn add(&mut self, leader: u32) -> Result<()> {
        let groups = self.groups.as_mut().context("no pipe")?;
        writeln!(groups, "{leader}").context("cannot tell a shell what it is to end")
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.groups.take());
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_end_with_it_after_the_script() {
        let dir = tempfile::tempdir().unwrap();
        let ended = dir.path().join("ended");
        let script = format!(
            "kill -0 \"$(cat {0}/pid)\"; touch {0}/ended",
            dir.path().display()
        );
        let mut guard = Guard::start(Some(&script)).unwrap();
        let mut program = Command::new("sh");
        program.args(["-c", "sleep 1000 & wait"]).process_group(0);
        let mut program = program.spawn().unwrap();
        std::fs::write(dir.path().join("pid"), program.id().to_string()).unwrap();
        guard.add(program.id()).unwrap();
        assert!(program.try_wait().unwrap().is_none() && !ended.exists());
        drop(guard);
        assert!(ended.exists(), "it had ended before its script");
        assert!(!program.wait().unwrap().success());
    }
}
