//! What starts a file: the dynamic loader of an ELF file, the interpreter of a script. Pure.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;

/// What a file needs to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A dynamically linked program, and its loader.
    Program(PathBuf),
    /// A shared object, which names no loader.
    Shared,
    /// A script: its interpreter, and the first word of what that is given.
    Script(PathBuf, Option<Vec<u8>>),
    /// Data, or a program that is linked statically.
    Other,
}

impl Kind {
    /// Tells by the file's content. What is damaged is `Other`: the program says what is wrong.
    pub fn of(content: &[u8]) -> Self {
        if let Some(line) = content.strip_prefix(b"#!") {
            return script(line);
        }
        elf(content).unwrap_or(Self::Other)
    }
}

fn script(text: &[u8]) -> Kind {
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    match words.next() {
        Some(path) => Kind::Script(
            PathBuf::from(OsStr::from_bytes(path)),
            words.next().map(Into::into),
        ),
        None => Kind::Other,
    }
}

/// 64-bit little-endian files; elf(5).
fn elf(content: &[u8]) -> Option<Kind> {
    if !content.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let offset = usize::try_from(number(content, 32, 8)?).ok()?;
    let size = number(content, 54, 2)? as usize;
    let count = number(content, 56, 2)? as usize;
    let mut is_dynamic = false;
    for at in 0..count {
        let header = content.get(offset.checked_add(at * size)?..)?;
        match number(header, 0, 4)? as u32 {
            PT_DYNAMIC => is_dynamic = true,
            PT_INTERP => {
                let from = usize::try_from(number(header, 8, 8)?).ok()?;
                let length = usize::try_from(number(header, 32, 8)?).ok()?;
                let text = content.get(from..from.checked_add(length)?)?;
                let text = text.split(|byte| *byte == 0).next()?;
                return Some(Kind::Program(PathBuf::from(OsStr::from_bytes(text))));
            }
            _ => {}
        }
    }
    // A program that is linked statically may be dynamic, too (static-pie): its loader would say
    // that it needs nothing.
    is_dynamic.then_some(Kind::Shared)
}

fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(length)?)?;
    let bytes = bytes.iter().rev();
    Some(bytes.fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// The files that a dynamic loader names when it is asked for them (`--list`).
pub fn listed(output: &[u8]) -> Vec<PathBuf> {
    let lines = output.split(|byte| *byte == b'\n');
    let paths = lines.filter_map(|line| {
        let line = line.trim_ascii();
        let end = line.windows(2).rposition(|pair| pair == b" (")?;
        let line = &line[..end];
        let arrow = b" => ";
        let at = line.windows(arrow.len()).position(|part| part == arrow);
        let path = at.map_or(line, |at| &line[at + arrow.len()..]);
        path.starts_with(b"/")
            .then(|| PathBuf::from(OsStr::from_bytes(path)))
    });
    paths.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_name_their_interpreter() {
        let kind = |text: &str| Kind::of(text.as_bytes());
        let env = PathBuf::from("/usr/bin/env");
        assert_eq!(
            kind("#! /usr/bin/env python3 -u\nprint()\n"),
            Kind::Script(env, Some(b"python3".to_vec()))
        );
        assert_eq!(kind("#!/bin/sh"), Kind::Script("/bin/sh".into(), None));
        for text in ["#!\n", "", "text", "\x7fELF\x02\x01"] {
            assert_eq!(kind(text), Kind::Other, "{text:?}");
        }
    }

    #[test]
    fn this_program_has_a_loader_and_any_part_of_it_does_no_harm() {
        let content = std::fs::read("/proc/self/exe").expect("it can be read");
        let found = Kind::of(&content);
        match &found {
            Kind::Program(loader) => assert!(loader.is_file(), "{loader:?}"),
            _ if cfg!(target_feature = "crt-static") => {}
            other => panic!("a program without a loader: {other:?}"),
        }
        for length in 0..1024 {
            let part = Kind::of(&content[..length]);
            assert!(part == Kind::Other || part == found || part == Kind::Shared);
        }
    }

    #[test]
    fn the_loader_is_understood() {
        let output = b"\tlinux-vdso.so.1 (0x00007fff)\n\
            \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f00)\n\
            \tlibnone.so => not found\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f11)\n\
            \tstatically linked\n";
        assert_eq!(
            listed(output),
            [
                "/lib/x86_64-linux-gnu/libc.so.6",
                "/lib64/ld-linux-x86-64.so.2"
            ]
            .map(PathBuf::from)
        );
    }
}
