//! Whether a program gets privileges by being executed that its tracer lacks: set-user-ID,
//! set-group-ID, file capabilities. The kernel ignores them in a process that is traced by somebody
//! without `CAP_SYS_PTRACE` (`execve(2)`), so such a program must not be started under a tracer.

use rustix::fs::{StatVfsMountFlags, getxattr, statvfs};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// `CAP_SYS_PTRACE` of `linux/capability.h`.
const CAP_SYS_PTRACE: u64 = 19;

/// How many interpreters the kernel follows (`exec_binprm` in `fs/exec.c`).
const INTERPRETERS_MAX: usize = 5;

/// How much of a script the kernel reads (`BINPRM_BUF_SIZE`).
const FIRST_LINE_MAX: u64 = 256;

/// Whether this program would run with fewer privileges under a tracer of ours.
pub(crate) fn is_lost_by_tracing(command: &Command) -> bool {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let value = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::trim)
    };
    let capabilities = value("CapEff:").and_then(|digits| u64::from_str_radix(digits, 16).ok());
    if capabilities.unwrap_or(0) & 1 << CAP_SYS_PTRACE != 0 || value("NoNewPrivs:") == Some("1") {
        return false;
    }
    let mut file = find(command);
    for _ in 0..INTERPRETERS_MAX {
        let Some(interpreter) = file.as_deref().and_then(interpreter) else {
            break;
        };
        file = Some(interpreter);
    }
    file.is_some_and(|file| is_privileged(&file))
}

/// The file that `execvp(3)` finds.
fn find(command: &Command) -> Option<PathBuf> {
    let program = Path::new(command.get_program());
    let base = command.get_current_dir().unwrap_or(Path::new(""));
    if program.as_os_str().as_bytes().contains(&b'/') {
        return Some(base.join(program));
    }
    let mut given = command.get_envs();
    let path = match given.find(|(name, _)| *name == "PATH") {
        Some((_, path)) => path.map(OsStr::to_owned),
        None => std::env::var_os("PATH"),
    };
    let path = path.unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut files =
        std::env::split_paths(&path).map(|directory| base.join(directory).join(program));
    files.find(|file| fs::metadata(file).is_ok_and(|m| m.is_file() && m.mode() & 0o111 != 0))
}

/// What the first line of a script names.
fn interpreter(file: &Path) -> Option<PathBuf> {
    // Anything else could block, or have a side effect.
    if !fs::metadata(file).ok()?.is_file() {
        return None;
    }
    let mut start = Vec::new();
    File::open(file)
        .ok()?
        .take(FIRST_LINE_MAX)
        .read_to_end(&mut start)
        .ok()?;
    let line = start
        .strip_prefix(b"#!")?
        .split(|byte| *byte == b'\n')
        .next()?;
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t'));
    let word = words.find(|word| !word.is_empty())?;
    Some(OsStr::from_bytes(word).into())
}

fn is_privileged(file: &Path) -> bool {
    let Ok(metadata) = fs::metadata(file) else {
        return false;
    };
    if statvfs(file).is_ok_and(|of| of.f_flag.contains(StatVfsMountFlags::NOSUID)) {
        return false;
    }
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let set_user = metadata.mode() & 0o4000 != 0 && metadata.uid() != user.as_raw();
    // Without the execute bit it means something else (`bprm_fill_uid` in `fs/exec.c`).
    let set_group = metadata.mode() & 0o2010 == 0o2010 && metadata.gid() != group.as_raw();
    let mut value = [0; 64];
    set_user || set_group || getxattr(file, "security.capability", &mut value).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn files_are_found_as_execvp_finds_them() {
        let found = find(&Command::new("sh")).unwrap();
        assert!(found.ends_with("sh") && found.is_absolute(), "{found:?}");
        assert_eq!(find(&Command::new("no such program")), None);
        let mut elsewhere = Command::new("sh");
        elsewhere.env("PATH", "/nonexistent");
        assert_eq!(find(&elsewhere), None);
        assert_eq!(
            find(Command::new("./a").current_dir("/b")),
            Some("/b/./a".into())
        );
    }

    #[test]
    fn scripts_have_the_privileges_of_their_interpreters() {
        let script = std::env::temp_dir().join(format!("pagetrail-script-{}", std::process::id()));
        fs::write(&script, "#! /bin/sh -e\nexit\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let named = interpreter(&script);
        fs::remove_file(&script).unwrap();
        assert_eq!(named, Some("/bin/sh".into()));
        assert_eq!(interpreter(Path::new("/bin/sh")), None);
        assert!(!is_privileged(Path::new("/bin/sh")));
    }
}
