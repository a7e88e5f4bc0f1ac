//! [`processes`]: the processes that a target means.

use std::fs;
use std::path::{Path, PathBuf};

use crate::config::{Target, Vm};
use crate::monitor;

/// Where control groups are.
const CGROUPS: &str = "/sys/fs/cgroup";
/// Where libvirt notes the monitors that it started, in a file `NAME.pid` each. Only root writes
/// there.
const LIBVIRT: &str = "/run/libvirt/qemu";

/// Their PIDs, ascending; none where there is none at the moment.
pub(crate) fn processes(target: &Target) -> Vec<u32> {
    let mut found = match target {
        Target { pid: Some(pid), .. } => vec![*pid],
        Target { vm: Some(vm), .. } => monitors(vm),
        Target {
            cgroup: Some(cgroup),
            ..
        } => in_control_group(cgroup),
        Target {
            command: Some(command),
            ..
        } => by_command(command),
        _ => Vec::new(),
    };
    let own = std::process::id();
    found.retain(|pid| *pid != own);
    found.sort_unstable();
    found
}

/// The monitors of virtual machines; that a PID is one is checked when it is kept.
pub(crate) fn monitors(vm: &Vm) -> Vec<u32> {
    match vm {
        Vm::Pid(pid) => vec![*pid],
        Vm::Name(name) => match noted(Path::new(LIBVIRT), name) {
            Some(pid) if monitor::is_monitor(pid) => vec![pid],
            _ => all_processes()
                .filter(|pid| monitor::guest_name(*pid).as_ref() == Some(name))
                .filter(|pid| monitor::is_monitor(*pid))
                .collect(),
        },
        Vm::Cgroup(cgroup) => {
            let mut found = in_control_group(cgroup);
            found.retain(|pid| monitor::is_monitor(*pid));
            found
        }
    }
}

/// The monitor that libvirt notes for a guest. What a process says of itself anybody can say.
fn noted(directory: &Path, name: &str) -> Option<u32> {
    let is_file_name = !name.contains('/') && !name.starts_with('.');
    let path = is_file_name.then(|| directory.join(format!("{name}.pid")))?;
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The PIDs of all processes.
pub(crate) fn all_processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The processes of a control group and of those below it, by its name or its path.
pub(crate) fn in_control_group(cgroup: &Path) -> Vec<u32> {
    in_cgroup(Path::new(CGROUPS), cgroup)
}

/// The processes of a cgroup and of those below it. Its name is as in `/proc/PID/cgroup`, or a
/// path.
fn in_cgroup(root: &Path, cgroup: &Path) -> Vec<u32> {
    let below = match cgroup.starts_with(root) {
        true => cgroup.to_owned(),
        false => root.join(cgroup.strip_prefix("/").unwrap_or(cgroup)),
    };
    let mut todo: Vec<PathBuf> = vec![below];
    let mut found = Vec::new();
    while let Some(directory) = todo.pop() {
        let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
        found.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                todo.push(entry.path());
            }
        }
    }
    found
}

/// The processes whose program, the first word of their command line, is called so or is this file.
fn by_command(command: &str) -> Vec<u32> {
    all_processes()
        .filter(|pid| {
            let line = pagetrail::command_line(*pid);
            line.first()
                .is_some_and(|program| is_command(program, command))
        })
        .collect()
}

fn is_command(program: &str, command: &str) -> bool {
    let (program, wanted) = (Path::new(program), Path::new(command));
    program == wanted || program.file_name() == Some(wanted.as_os_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_by_their_first_word() {
        assert!(is_command("/usr/bin/redis-server", "redis-server"));
        assert!(is_command("redis-server", "redis-server"));
        assert!(is_command("/usr/bin/a", "/usr/bin/a"));
        assert!(!is_command("/opt/a", "/usr/bin/a"));
        assert!(!is_command("", "a"));
    }

    #[test]
    fn what_libvirt_notes_is_believed() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("web1.pid"), "1234\n").unwrap();
        fs::write(directory.path().join("web2.pid"), "").unwrap();
        let found = |name: &str| noted(directory.path(), name);
        assert_eq!(found("web1"), Some(1234));
        for none in ["web2", "web3", "", "../web1", "/etc/passwd", "."] {
            assert_eq!(found(none), None, "{none}");
        }
    }

    #[test]
    fn a_cgroup_is_what_is_below_it_too() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("batch.slice/one.service");
        fs::create_dir_all(&inner).unwrap();
        fs::write(root.path().join("batch.slice/cgroup.procs"), "12\n").unwrap();
        fs::write(inner.join("cgroup.procs"), "13\n14\n").unwrap();
        let found = |cgroup: &Path| {
            let mut found = in_cgroup(root.path(), cgroup);
            found.sort_unstable();
            found
        };
        assert_eq!(found(Path::new("/batch.slice")), [12, 13, 14]);
        assert_eq!(found(&inner), [13, 14]);
        assert!(found(Path::new("/none")).is_empty());
    }
}
