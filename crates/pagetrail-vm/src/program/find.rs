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
        name_interpreter(&mut arguments, &path, argument, script);
        access(&path, Access::EXEC_OK)?;
    }
    Err(Errno::LOOP.into())
}

/// Puts what runs a script in the place of the first argument: the interpreter, the argument that
/// the script's first line has for it, and the script.
pub(crate) fn name_interpreter(
    arguments: &mut Vec<OsString>,
    interpreter: &Path,
    argument: Option<OsString>,
    script: PathBuf,
) {
    let first = [
        Some(interpreter.as_os_str().to_owned()),
        argument,
        Some(script.into_os_string()),
    ];
    arguments.splice(..1, first.into_iter().flatten());
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

/// The interpreter and its argument in a script's first line, as Linux finds them
/// (fs/binfmt_script.c): only spaces and tabs are skipped, a zero byte ends a text, and the file's
/// end is followed by zeros.
pub(crate) fn interpreter(line: &[u8]) -> Option<(PathBuf, Option<OsString>)> {
    let line = line.strip_prefix(b"#!")?;
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let ends = |byte: &u8| is_blank(byte) || *byte == 0;
    let mut padded = line.to_vec();
    padded.resize(LINE_BYTES - 2, 0);
    let newline = padded.iter().position(|byte| *byte == b'\n');
    // Without a newline the last byte does not count.
    padded.truncate(newline.unwrap_or(padded.len() - 1));
    let length = padded.iter().rposition(|byte| !is_blank(byte))? + 1;
    let is_cut = newline.is_none() && length == padded.len();
    padded.truncate(length);
    let start = padded.iter().position(|byte| !is_blank(byte))?;
    let text = &padded[start..];
    let end = text.iter().position(ends);
    if end.is_none() && is_cut {
        // There may be more of the path.
        return None;
    }
    let (path, rest) = text.split_at(end.unwrap_or(text.len()));
    let argument = match rest.first() {
        Some(byte) if is_blank(byte) => rest.iter().position(|byte| !is_blank(byte)),
        _ => None,
    };
    let argument = argument.map(|start| {
        let text = rest[start..].split(|byte| *byte == 0).next();
        OsString::from_vec(text.unwrap_or_default().to_vec())
    });
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
        assert_eq!(
            interpreter(b"#!\t/bin/sh\t\r\n"),
            Some((sh(), Some("\r".into())))
        );
        assert_eq!(
            interpreter(b"#!/bin/sh\r\n"),
            Some(("/bin/sh\r".into(), None))
        );
        assert_eq!(
            interpreter(b"#!/bin/sh a\0b\n"),
            Some((sh(), Some("a".into())))
        );
        assert_eq!(interpreter(b"#!/bin/sh\0 a\n"), Some((sh(), None)));
        assert_eq!(interpreter(b"#!/bin/sh"), Some((sh(), None)));
        assert_eq!(interpreter(b"#! \n"), None);
        assert_eq!(interpreter(b"#!\n"), None);
        assert_eq!(interpreter(b"\x7fELF"), None);
    }

    #[test]
    fn a_long_first_line_is_cut_as_by_linux() {
        let line = |start: &str, end: &str, bytes: usize| {
            let letters = "x".repeat(bytes - start.len() - end.len());
            format!("{start}{letters}{end}").into_bytes()
        };
        let argument = |line: &[u8]| interpreter(line).map(|(_, argument)| argument);
        let letters = |count: usize| Some(Some("x".repeat(count).into()));
        // With and without the newline among the bytes that are read.
        assert_eq!(
            argument(&line("#!/bin/sh ", "\n", LINE_BYTES)),
            letters(245)
        );
        assert_eq!(argument(&line("#!/bin/sh ", "", LINE_BYTES)), letters(245));
        assert_eq!(interpreter(&line("#!/", "", LINE_BYTES)), None);
        assert!(interpreter(&line("#!/", "\n", LINE_BYTES)).is_some());
        assert!(interpreter(&line("#!/", "", LINE_BYTES - 2)).is_some());
    }
}
