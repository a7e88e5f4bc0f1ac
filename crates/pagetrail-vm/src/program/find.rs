//! [`find`]: finds the file to load for a command, by `PATH` and by the interpreters of `#!`
//! scripts.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::io::Errno;

/// How many scripts may name each other as interpreters, as under Linux.
pub(crate) const DEPTH_MAX: usize = 5;
/// The part of the first line that Linux reads, in bytes.
pub(crate) const LINE_BYTES: usize = 256;

/// The file to load, and its arguments.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    pub(crate) arguments: Vec<OsString>,
}

/// Finds the program of a command, as `execvp(3)` does.
pub(crate) fn find(command: &[OsString], search: Option<&OsStr>) -> io::Result<Found> {
    let name = command.first().ok_or(io::ErrorKind::NotFound)?;
    let mut path = in_path(name, search)?;
    let mut arguments = command.to_vec();
    for _ in 0..DEPTH_MAX {
        let mut file = File::open(&path)?;
        let mut line = Vec::new();
        file.by_ref()
            .take(LINE_BYTES as u64)
            .read_to_end(&mut line)?;
        let Some((interpreter, argument)) = interpreter(&line) else {
            return Ok(Found {
                path,
                file,
                arguments,
            });
        };
        let script = std::mem::replace(&mut path, interpreter);
        let first = [
            Some(path.clone().into_os_string()),
            argument,
            Some(script.into_os_string()),
        ];
        arguments.splice(..1, first.into_iter().flatten());
        access(&path, Access::EXEC_OK)?;
    }
    Err(Errno::LOOP.into())
}

fn in_path(name: &OsStr, search: Option<&OsStr>) -> io::Result<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        access(name, Access::EXEC_OK)?;
        return Ok(name.into());
    }
    let search = search.unwrap_or(OsStr::new("/bin:/usr/bin"));
    let mut error = Errno::NOENT;
    for directory in std::env::split_paths(search) {
        let path = directory.join(name);
        match access(&path, Access::EXEC_OK) {
            Ok(()) if path.is_file() => return Ok(path),
            Err(Errno::ACCESS) => error = Errno::ACCESS,
            _ => {}
        }
    }
    Err(error.into())
}

/// The interpreter and its argument in a script's first line.
pub(crate) fn interpreter(line: &[u8]) -> Option<(PathBuf, Option<OsString>)> {
    let line = line.strip_prefix(b"#!")?;
    let line = line.split(|byte| *byte == b'\n').next()?.trim_ascii();
    let end = line.iter().position(|byte| matches!(byte, b' ' | b'\t'));
    let (path, argument) = line.split_at(end.unwrap_or(line.len()));
    let argument = argument.trim_ascii();
    let argument = (!argument.is_empty()).then(|| OsString::from_vec(argument.to_vec()));
    (!path.is_empty()).then(|| (Path::new(OsStr::from_bytes(path)).into(), argument))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn programs_are_looked_for_as_shells_do() {
        let found = find(
            &words(&["sh", "-c", "x"]),
            Some(OsStr::new("/nowhere:/bin")),
        )
        .unwrap();
        assert_eq!(found.path, Path::new("/bin/sh"));
        assert_eq!(found.arguments, words(&["sh", "-c", "x"]));
        let missing = find(&words(&["no-such-program"]), None).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        let refused = find(&words(&["/etc/passwd"]), None).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_first_line_names_an_interpreter_and_one_argument() {
        let sh = || PathBuf::from("/bin/sh");
        assert_eq!(interpreter(b"#!/bin/sh\nrest"), Some((sh(), None)));
        assert_eq!(
            interpreter(b"#! /bin/sh  -e x \n"),
            Some((sh(), Some("-e x".into())))
        );
        assert_eq!(interpreter(b"#!\n"), None);
        assert_eq!(interpreter(b"\x7fELF"), None);
    }
}
