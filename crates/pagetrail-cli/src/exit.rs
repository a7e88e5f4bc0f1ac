//! What the command tells its caller: exit codes, and the one line on standard error that goes with
//! them.

use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;

use pagetrail::{Ended, Error};
use pagetrail_report::words::printable;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A negative finding.
pub(crate) const NEGATIVE: u8 = 1;
/// A usage or operation error.
pub(crate) const OPERATION: u8 = 2;
/// Not possible on this machine.
pub(crate) const MACHINE: u8 = 3;
/// A program to be started cannot be executed; what shells say.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// There is no such program; what shells say.
pub(crate) const NOT_FOUND: u8 = 127;
/// Added to the number of the signal that killed a program; what shells say.
const SIGNAL_BASE: i32 = 128;

/// The exit codes, for people.
pub(crate) const MEANINGS: &[(u8, &str)] = &[
    (0, "All went well."),
    (
        NEGATIVE,
        "A negative finding: check found no technique that works, bench or model a write that was missed, model that a \
         statement of a paper does not hold, verify damage, changed no change, report or compare a condition of --fail-if \
         that holds, compare a program that behaves differently in an environment.",
    ),
    (
        OPERATION,
        "Wrong usage, or something went wrong; standard error has one line about it.",
    ),
    (
        MACHINE,
        "Not possible on this machine: no technique works, or not the one that was asked for, CRIU is missing, or compare has \
         only one environment.",
    ),
    (NOT_EXECUTABLE, "The program to start cannot be executed."),
    (NOT_FOUND, "The program to start was not found."),
];

/// Writes one line to standard error, and makes it one: names in it may hold anything.
pub(crate) fn message(line: &str) {
    // Nothing is left to be done where standard error cannot be written.
    let _ = writeln!(
        io::stderr(),
        "pagetrail: {}",
        printable(&in_plain_words(line))
    );
}

/// The line without the words of the language that this is written in.
fn in_plain_words(line: &str) -> String {
    let mut plain = line.to_owned();
    for (theirs, ours) in [
        ("invalid digit found in string", "it is no whole number"),
        ("number too large to fit in target type", "it is too large"),
        ("number too small to fit in target type", "it is too small"),
        ("cannot parse integer from empty string", "it is empty"),
        ("invalid float literal", "it is no number"),
        (
            "invalid socket address syntax",
            "it must be ADDRESS:PORT, as in 127.0.0.1:9465",
        ),
    ] {
        plain = plain.replace(theirs, ours);
    }
    // The number of an error says nothing that its text does not.
    while let Some((before, rest)) = plain.split_once(" (os error ") {
        let after = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        let after = after.strip_prefix(')').unwrap_or(after);
        plain = format!("{before}{after}");
    }
    plain
}

/// Says what went wrong, and which exit code that is.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    // The reader of a pipe that went away, `head` say, has what it wanted.
    if is_broken_pipe(error) && has_no_reader(io::stdout()) {
        return ExitCode::SUCCESS;
    }
    message(&words(error));
    ExitCode::from(code(error))
}

/// A program's own exit status, as a shell gives it.
pub(crate) fn of_program(ended: Option<Ended>) -> ExitCode {
    match ended {
        Some(Ended::Exited(code)) => ExitCode::from(code as u8),
        Some(Ended::Killed(signal)) => ExitCode::from((SIGNAL_BASE + signal) as u8),
        _ => ExitCode::SUCCESS,
    }
}

fn words(error: &anyhow::Error) -> String {
    if let Some(Error::OwnProcess { pid }) = error.downcast_ref() {
        return format!("process {pid} is pagetrail itself");
    }
    let mut words = String::new();
    for cause in error.chain().map(ToString::to_string) {
        // Messages of libraries carry their sources already.
        if words.ends_with(&cause) {
            continue;
        }
        if !words.is_empty() {
            words += ": ";
        }
        words += &cause;
    }
    words
}

fn code(error: &anyhow::Error) -> u8 {
    match error.downcast_ref() {
        Some(Error::Spawn { source, .. }) => of_spawn(source),
        Some(error) if error.is_machine_limit() => MACHINE,
        _ if of_tier(error) || of_criu(error) => MACHINE,
        _ => of_vm(error),
    }
}

fn of_vm(error: &anyhow::Error) -> u8 {
    match error.downcast_ref() {
        Some(pagetrail_vm::Error::Program { source, .. }) => of_spawn(source),
        Some(error) if error.is_machine_limit() => MACHINE,
        _ => OPERATION,
    }
}

/// Of a program that cannot be started.
fn of_spawn(error: &io::Error) -> u8 {
    match error.kind() {
        ErrorKind::NotFound => NOT_FOUND,
        ErrorKind::PermissionDenied => NOT_EXECUTABLE,
        _ if error.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error()) => {
            NOT_EXECUTABLE
        }
        _ => OPERATION,
    }
}

fn of_tier(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<pagetrail_tier::Error>();
    error.is_some_and(pagetrail_tier::Error::is_machine_limit)
}

fn of_criu(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<pagetrail_criu::Error>();
    error.is_some_and(pagetrail_criu::Error::is_machine_limit)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let mut causes = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// Whether nobody reads what is written there: other pipes and connections break, too.
fn has_no_reader(output: impl AsFd) -> bool {
    let now = Timespec::default();
    let mut output = [PollFd::new(&output, PollFlags::OUT)];
    let gone = PollFlags::ERR | PollFlags::HUP;
    poll(&mut output, Some(&now)).is_ok() && output[0].revents().intersects(gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_without_a_reader_is_known() {
        let (reader, writer) = io::pipe().expect("a pipe");
        assert!(!has_no_reader(&writer));
        drop(reader);
        assert!(has_no_reader(&writer));
        let file = tempfile::tempfile().expect("a file");
        assert!(!has_no_reader(&file));
    }

    #[test]
    fn messages_are_in_plain_words() {
        let line = "cannot write a (os error 2): No such file or directory (os error 2)";
        assert_eq!(
            in_plain_words(line),
            "cannot write a: No such file or directory"
        );
        let line = "invalid value 'x' for '--rounds <N>': invalid digit found in string";
        assert!(in_plain_words(line).ends_with(": it is no whole number"));
        assert_eq!(in_plain_words("a (os error"), "a (os error");
        assert_eq!(in_plain_words("a (os error x"), "ax");
    }
}
