//! What keeps CRIU from saving a process, found out before CRIU is started: its own messages name
//! neither the process nor a cure.

use std::fs;

use crate::error::{Error, Result};

/// The argument of CRIU with which it saves processes of a session that is not theirs.
pub const SHELL_JOB: &str = "--shell-job";

/// Refuses a process that CRIU would refuse, with `passed_on` as its arguments.
pub fn check(pid: u32, passed_on: &[String]) -> Result<()> {
    let leader = session_of(pid);
    if leader != Some(pid) && !passed_on.iter().any(|arg| arg == SHELL_JOB) {
        let leader = leader.filter(|leader| *leader != 0);
        return Err(Error::OtherSession { pid, leader });
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let tracer = status
        .lines()
        .find_map(|line| line.strip_prefix("TracerPid:"));
    match tracer.map(str::trim) {
        None | Some("0") => Ok(()),
        Some(tracer) => Err(Error::Traced {
            pid,
            tracer: tracer.to_owned(),
        }),
    }
}

/// The leader of a process' session: 0 where it lives outside this PID namespace, as that of a
/// shell that has entered a container.
///
/// Read from `/proc/PID/stat` ([proc_pid_stat(5)]): rustix' `getsid` takes 0 for impossible.
///
/// [proc_pid_stat(5)]: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
fn session_of(pid: u32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // State, parent, process group, session: after the name, which may hold anything.
    text.rsplit(')')
        .next()?
        .split_whitespace()
        .nth(3)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    struct Running(Child);

    impl Drop for Running {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_process_of_another_session_is_refused_unless_criu_is_asked_to() {
        let child = Running(Command::new("sleep").arg("1000").spawn().unwrap());
        let pid = child.0.id();
        let refused = check(pid, &[]).unwrap_err().to_string();
        let start = format!("process {pid} belongs to the session of ");
        assert!(refused.starts_with(&start), "{refused}");
        assert!(refused.ends_with("start it by setsid(1)"), "{refused}");
        check(pid, &[SHELL_JOB.to_owned()]).unwrap();
    }
}
