//! [`Executable`]: a file that `execve(2)` names, if it can be loaded as a guest.
//!
//! Where that is not sure there is none, and the kernel executes the file, or says why it does not:
//! a file that is not there or not permitted, one that must not be read, one that gives its user
//! other rights, one for another processor.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{
    Access, AtFlags, CWD, FileType, Mode, OFlags, accessat, fgetxattr, fstat, openat, statat,
};
use rustix::io::Errno;

use crate::program::{self, DEPTH_MAX, LINE_BYTES};
use crate::sys::descriptors;

const SET_USER: u32 = libc::S_ISUID;
/// Without the right to execute, the bit means something else.
const SET_GROUP: u32 = libc::S_ISGID | libc::S_IXGRP;

/// A file that can be loaded as a guest.
#[derive(Debug)]
pub(super) struct Executable {
    /// The program's file, which is that of an interpreter where a script was named.
    pub(super) file: File,
    /// The path of what was executed, which may be a script.
    pub(super) path: PathBuf,
    pub(super) arguments: Vec<OsString>,
}

/// What `execve(2)` or `execveat(2)` names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named<'a> {
    /// The directory, or the file itself where the path is empty.
    pub(super) directory: Option<BorrowedFd<'a>>,
    pub(super) path: &'a Path,
    pub(super) flags: AtFlags,
}

impl Executable {
    /// Finds the file to load, and the arguments that scripts add to these.
    pub(super) fn find(named: Named<'_>, mut arguments: Vec<OsString>) -> Option<Self> {
        // The kernel inserts an empty argument for a program without any.
        arguments.first()?;
        let mut file = open(named)?;
        let executed = match named.directory.is_some() && !named.path.is_absolute() {
            // The kernel gives it a path of the descriptor, which may be closed by then.
            true => super::path_of(&file).ok()?,
            false => named.path.to_owned(),
        };
        let mut path = executed.clone();
        for _ in 0..DEPTH_MAX {
            let mut line = Vec::new();
            let read = file.by_ref().take(LINE_BYTES as u64).read_to_end(&mut line);
            read.ok()?;
            let Some((interpreter, argument)) = program::interpreter(&line) else {
                // A line that the kernel refuses is left to it.
                return (!line.starts_with(b"#!") && program::is_loadable(&file)).then_some(Self {
                    file,
                    path: executed,
                    arguments,
                });
            };
            // The path that the script is given would depend on a descriptor.
            if named.directory.is_some() && !named.path.is_absolute() {
                return None;
            }
            let script = std::mem::replace(&mut path, interpreter);
            program::name_interpreter(&mut arguments, &path, argument, script);
            file = open(Named {
                directory: None,
                path: &path,
                flags: AtFlags::empty(),
            })?;
        }
        None
    }
}

/// Opens a file that may be executed and read, and is executed with the caller's own rights.
fn open(named: Named<'_>) -> Option<File> {
    let by_descriptor = match named.directory {
        Some(file)
            if named.path.as_os_str().is_empty() && named.flags.contains(AtFlags::EMPTY_PATH) =>
        {
            Some(format!("/proc/self/fd/{}", file.as_raw_fd()))
        }
        _ => None,
    };
    let (directory, path, flags) = match &by_descriptor {
        Some(path) => (CWD, Path::new(path), AtFlags::empty()),
        None => (
            named.directory.unwrap_or(CWD),
            named.path,
            named.flags & AtFlags::SYMLINK_NOFOLLOW,
        ),
    };
    // Nothing but a file is opened: of a device or a pipe that would be noticed.
    let is_file = |mode| FileType::from_raw_mode(mode) == FileType::RegularFile;
    let status = statat(directory, path, flags).ok()?;
    if !is_file(status.st_mode) {
        return None;
    }
    accessat(directory, path, Access::EXEC_OK, flags | AtFlags::EACCESS).ok()?;
    let how = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(openat(directory, path, how, Mode::empty()).ok()?);
    let status = fstat(&file).ok()?;
    let gives_rights = status.st_mode & SET_USER != 0
        || status.st_mode & SET_GROUP == SET_GROUP
        || has_capabilities(&file);
    let is_fit = is_file(status.st_mode)
        && !gives_rights
        && !descriptors::is_never_executed(file.as_raw_fd());
    is_fit.then_some(file)
}

/// Whether a file gives its user capabilities, or does not say.
fn has_capabilities(file: &File) -> bool {
    let found = fgetxattr(file, c"security.capability", &mut [0u8; 0]);
    !matches!(found, Err(Errno::NODATA | Errno::NOTSUP))
}

/// Reads a list of texts that ends with a null pointer, of at most `bytes_max`. The error is the
/// kernel's.
pub(super) fn texts(list: u64, bytes_max: &mut u64) -> Option<Vec<OsString>> {
    use crate::sys::program_memory::{read_string, read_word};
    let mut texts = Vec::new();
    if list == 0 {
        return Some(texts);
    }
    for at in (list..).step_by(8) {
        let text = match read_word(at).ok()? {
            0 => break,
            address => read_string(address, TEXT_BYTES_MAX).ok()?,
        };
        *bytes_max = bytes_max.checked_sub(text.len() as u64 + 1 + 8)?;
        texts.push(OsString::from_vec(text));
    }
    Some(texts)
}

/// The longest text that `execve(2)` takes, without its end (`MAX_ARG_STRLEN`).
const TEXT_BYTES_MAX: usize = 32 * 4096 - 1;

/// A path as the kernel takes it.
pub(super) fn c_string(text: &OsStr) -> Option<CString> {
    CString::new(text.as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn find(path: &Path) -> Option<Executable> {
        let arguments = vec!["name".into(), "x".into()];
        let named = Named {
            directory: None,
            path,
            flags: AtFlags::empty(),
        };
        Executable::find(named, arguments)
    }

    fn put(path: &Path, text: &[u8], mode: u32) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn what_can_be_loaded_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let [program, script, twice] =
            ["program", "script", "twice"].map(|n| directory.path().join(n));
        put(&program, &fs::read("/proc/self/exe").unwrap(), 0o755);
        put(
            &script,
            format!("#! {} -e x \n", program.display()).as_bytes(),
            0o755,
        );
        put(
            &twice,
            format!("#!{}\n", script.display()).as_bytes(),
            0o755,
        );
        let found = find(&program).unwrap();
        assert_eq!(
            (found.path, found.arguments),
            (program.clone(), vec!["name".into(), "x".into()])
        );
        let found = find(&twice).unwrap();
        let words: Vec<OsString> = vec![
            program.clone().into(),
            "-e x".into(),
            script.into(),
            twice.clone().into(),
            "x".into(),
        ];
        assert_eq!((found.path, found.arguments), (twice.clone(), words));
        assert_eq!(super::super::path_of(&found.file).unwrap(), program);
        // By descriptors: the program itself, and one in a directory.
        let (opened, inside) = (
            File::open(&program).unwrap(),
            File::open(directory.path()).unwrap(),
        );
        for (descriptor, path, flags, is_found) in [
            (&opened, "", AtFlags::EMPTY_PATH, true),
            (&opened, "", AtFlags::empty(), false),
            (&inside, "program", AtFlags::empty(), true),
            (&inside, "twice", AtFlags::empty(), false),
        ] {
            let named = Named {
                directory: Some(descriptor.as_fd()),
                path: Path::new(path),
                flags,
            };
            let found = Executable::find(named, vec!["name".into()]);
            assert_eq!(
                found.map(|found| found.path),
                is_found.then(|| program.clone()),
                "{path}"
            );
        }
    }

    #[test]
    fn what_the_kernel_is_to_decide_is_left_to_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let program = fs::read("/proc/self/exe").unwrap();
        let mut other = program.clone();
        // Another processor's.
        other[18] = 183;
        let itself = format!("#!{}\n", path.display());
        let wrong: [(&[u8], u32); 8] = [
            (&program, 0o644),
            (&program, 0o4755),
            (&program, 0o2755),
            (&other, 0o755),
            (b"no program\n", 0o755),
            (b"#!\n", 0o755),
            (b"#!/nowhere/at/all\n", 0o755),
            (itself.as_bytes(), 0o755),
        ];
        for (text, mode) in wrong {
            put(&path, text, mode);
            assert!(
                find(&path).is_none(),
                "{mode:o} {:?}",
                &text[..8.min(text.len())]
            );
        }
        put(&path, &program, 0o2745);
        assert!(find(&path).is_some(), "only executable files set a group");
        assert!(find(directory.path()).is_none());
        assert!(find(&directory.path().join("missing")).is_none());
        let pipe = directory.path().join("pipe");
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o777), 0).unwrap();
        assert!(find(&pipe).is_none());
        assert!(
            Executable::find(
                Named {
                    directory: None,
                    path: Path::new("/proc/self/exe"),
                    flags: AtFlags::empty()
                },
                Vec::new()
            )
            .is_none()
        );
    }

    #[test]
    fn lists_of_texts_are_read_up_to_their_limit() {
        let words = [c"one", c"", c"three"];
        let list: Vec<u64> = words
            .iter()
            .map(|word| word.as_ptr() as u64)
            .chain([0])
            .collect();
        let at = list.as_ptr() as u64;
        let mut left = 100;
        let expected: Vec<OsString> = vec!["one".into(), "".into(), "three".into()];
        assert_eq!(texts(at, &mut left), Some(expected));
        assert_eq!(left, 100 - (3 + 5) - 3 * 9);
        assert_eq!(texts(at, &mut 20), None);
        assert_eq!(texts(0, &mut 0), Some(Vec::new()));
        assert_eq!(texts(16, &mut 100), None);
        assert_eq!(texts([16u64, 0].as_ptr() as u64, &mut 100), None);
    }
}
