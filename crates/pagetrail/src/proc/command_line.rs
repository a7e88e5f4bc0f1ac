//! [`command_line`]: how a process was started.

use crate::proc::status::memory_id;
use std::fs::File;
use std::io::Read;

/// The most bytes of a command line that are read: a process may have megabytes of arguments, and
/// may declare any of its memory to be them (`PR_SET_MM` of `prctl(2)`).
const BYTES_MAX: u64 = 1 << 16;

/// The program and the arguments of a process (`proc_pid_cmdline(5)`), of which at most 64 KiB are
/// read; empty for kernel threads and processes that have ended. Of a process whose main thread has
/// ended before others, another thread is asked.
///
/// A program that sets a title leaves blanks or empty words where its arguments were. They are
/// dropped, and so are empty arguments at the end. Bytes that are not UTF-8 are replaced.
pub fn command_line(pid: u32) -> Vec<String> {
    let mut bytes = Vec::new();
    // The text is in the memory of the process.
    if let Ok(file) = File::open(format!("/proc/{}/cmdline", memory_id(pid))) {
        // What comes before an error is better than nothing.
        let _ = file.take(BYTES_MAX).read_to_end(&mut bytes);
    }
    words(&bytes)
}

fn words(bytes: &[u8]) -> Vec<String> {
    let padding = |byte: &u8| *byte == 0 || byte.is_ascii_whitespace();
    let end = bytes.iter().rposition(|byte| !padding(byte));
    let Some(end) = end else {
        return Vec::new();
    };
    bytes[..=end]
        .split(|byte| *byte == 0)
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_lose_their_padding_and_nothing_else() {
        assert_eq!(
            words(b"redis-server *:7001  \0\0 \0\0"),
            ["redis-server *:7001"]
        );
        assert_eq!(words(b"printf\0\0%s\0"), ["printf", "", "%s"]);
        assert!(words(b"\0\0").is_empty());
        assert_eq!(words(b"a\xff\0b"), ["a\u{fffd}", "b"]);
    }

    #[test]
    fn the_own_command_line_has_the_program() {
        let program = command_line(std::process::id()).remove(0);
        assert_eq!(program, std::env::args().next().unwrap());
        assert!(command_line(0).is_empty());
    }
}
