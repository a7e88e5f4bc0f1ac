//! [`Engine`]: the program `criu`: finding it, starting it, and what it said when it failed.

use std::env;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::io::{FdFlags, fcntl_setfd};

use crate::error::{Error, Result};

/// Where it is besides `PATH`, which lacks these for some users.
const ELSEWHERE: &[&str] = &["/usr/local/sbin", "/usr/sbin", "/sbin"];
/// The oldest whose protocol this was tried with.
const OLDEST: (u32, u32) = (4, 1);
/// What CRIU calls an error although it goes on.
const HARMLESS: &[&str] = &["RLIMIT_NOFILE"];

/// What CRIU says when something is missing that it does not name, and what that is.
const CURES: &[(&str, &str)] = &[
    (
        "Can't get 1:16 opt",
        "CRIU before 4.2 cannot save network sockets on Linux 6.16 and newer",
    ),
    (
        "Can't get rlimit",
        "that needs CAP_SYS_RESOURCE where the process is not root's",
    ),
    (
        "SysVIPC shmem map",
        "start it in an IPC namespace of its own: unshare --ipc",
    ),
];

/// CRIU, which is there and new enough.
#[derive(Clone, Debug)]
pub struct Engine {
    path: PathBuf,
}

impl Engine {
    /// Finds it, and what it needs. Fails with [`Error::Lacking`] where something is not there.
    pub fn find() -> Result<Self> {
        let lacking = |reason: String| Err(Error::Lacking(reason));
        let search = env::var_os("PATH").unwrap_or_default();
        let directories = env::split_paths(&search).chain(ELSEWHERE.iter().map(PathBuf::from));
        let mut programs = directories.map(|directory| directory.join("criu"));
        let Some(path) = programs.find(|path| path.is_file()) else {
            return lacking(
                "there is no criu on PATH, which saves and restores what the kernel keeps \
                for a process; install CRIU 4.1 or newer"
                    .into(),
            );
        };
        let said = Command::new(&path).arg("--version").output();
        let said = said.map_err(Error::io(format!("cannot run {}", path.display())))?;
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        match version(&said) {
            Some(found) if found >= OLDEST => {}
            Some((major, minor)) => {
                return lacking(format!(
                    "{} is CRIU {major}.{minor}; it must be 4.1 or newer",
                    path.display()
                ));
            }
            None => return lacking(format!("{} does not say its version", path.display())),
        }
        if !rustix::process::geteuid().is_root() {
            return lacking("CRIU needs root to save and restore processes".into());
        }
        Ok(Self { path })
    }

    /// One of its commands on images in a directory, where it keeps its log as well. A signal from
    /// the keyboard is not for it: half a dump must be undone, not killed.
    pub(crate) fn command(&self, verb: &str, directory: &Path) -> Command {
        let mut command = Command::new(&self.path);
        command.arg(verb).arg("-D").arg(directory);
        command.arg("-o").arg(log(verb));
        command.stdin(Stdio::null()).process_group(0);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// The command that finds out whether it can use something of this machine: its exit code
    /// says.
    pub(crate) fn check(&self, feature: &str) -> Command {
        let mut command = Command::new(&self.path);
        command.args(["check", "--feature", feature]);
        command.stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
}

fn log(verb: &str) -> String {
    format!("{verb}.log")
}

/// Starts a command to which the page server is a socket.
pub(crate) fn start_with(mut command: Command, socket: OwnedFd) -> Result<Child> {
    let kept = fcntl_setfd(&socket, FdFlags::empty());
    kept.map_err(|error| Error::io("cannot hand over a socket")(error.into()))?;
    command.args(["--page-server", "--ps-socket"]);
    command.arg(socket.as_raw_fd().to_string());
    command.spawn().map_err(Error::io("cannot run CRIU"))
}

/// Whether a file of the directory of images is a log.
pub(crate) fn is_log(name: &str) -> bool {
    name.ends_with(".log")
}

/// Why a command failed, by its log.
pub(crate) fn reason(verb: &str, directory: &Path) -> String {
    let text = fs::read(directory.join(log(verb))).unwrap_or_default();
    let said = first_error(&String::from_utf8_lossy(&text));
    said.map_or_else(|| "it does not say why".into(), with_cure)
}

/// What CRIU said, and what to do about it where that is known.
fn with_cure(said: String) -> String {
    let mut cures = CURES.iter();
    match cures.find(|(found, _)| said.contains(found)) {
        Some((_, cure)) => format!("{said} ({cure})"),
        None => said,
    }
}

/// The first error in a log that is one.
fn first_error(log: &str) -> Option<String> {
    let lines = log.lines().filter(|line| line.contains("Error ("));
    let mut lines = lines.filter(|line| !HARMLESS.iter().any(|word| line.contains(word)));
    let line = lines.next()?;
    let said = line.split_once("): ").map_or(line, |(_, said)| said);
    let said = match line.split_once("Error (") {
        Some((_, rest)) => rest.split_once("): ").map_or(said, |(_, said)| said),
        None => said,
    };
    Some(said.trim().to_owned())
}

/// The version in what `--version` says.
fn version(said: &str) -> Option<(u32, u32)> {
    let line = said
        .lines()
        .find_map(|line| line.strip_prefix("Version:"))?;
    let mut numbers = line.trim().split(['.', '-', '+']).map(str::parse);
    Some((
        numbers.next()?.ok()?,
        numbers.next().and_then(Result::ok).unwrap_or(0),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(version("Version: 4.1.1\nGitID: x\n"), Some((4, 1)));
        assert_eq!(version("Version: 4.2\n"), Some((4, 2)));
        assert_eq!(version("Version: 5\n"), Some((5, 0)));
        assert_eq!(version("Version: x\n"), None);
        assert_eq!(version(""), None);
    }

    #[test]
    fn what_helps_is_said_where_it_is_known() {
        let said = "Can't get rlimit 0: Operation not permitted";
        let with = with_cure(said.into());
        assert!(with.starts_with(said) && with.contains("CAP_SYS_RESOURCE"));
        assert_eq!(with_cure("x".into()), "x");
    }

    #[test]
    fn the_first_error_is_the_cause() {
        let log = "(00.000001) Version: 4.1.1\n\
            (00.000002) Error (criu/util.c:1533): rlimit: Can't setup RLIMIT_NOFILE for self: x\n\
            (00.000003) Error (criu/files-reg.c:2175): File tmp/x has bad size 5 (expect 3)\n\
            (00.000004) Error (criu/cr-restore.c:2320): Restoring FAILED.\n";
        let cause = "File tmp/x has bad size 5 (expect 3)";
        assert_eq!(first_error(log).as_deref(), Some(cause));
        assert_eq!(first_error("(00.1) fine\n"), None);
    }
}
