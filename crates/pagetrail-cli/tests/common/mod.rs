//! Running the command as its users do.

#![allow(dead_code, reason = "not every test needs all of it")]

pub(crate) mod beside;
pub(crate) mod cgroup;
pub(crate) mod ending;
pub(crate) mod guest;
pub(crate) mod inner;
pub(crate) mod recording;
pub(crate) mod running;
pub(crate) mod subpage;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The command, to be run in `directory` with nothing to read.
pub(crate) fn pagetrail(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagetrail"));
    command.current_dir(directory).args(arguments);
    command.stdin(Stdio::null());
    for variable in ["PAGETRAIL_DISABLE", "PAGETRAIL_LOG"] {
        command.env_remove(variable);
    }
    command
}

/// Runs it to its end.
pub(crate) fn run(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = pagetrail(directory, arguments);
    command.output().expect("the command starts")
}

/// The one line that a run left on standard error, with exit code `code` and nothing on standard
/// output.
pub(crate) fn error_line(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        message.starts_with("pagetrail: ") && message.lines().count() == 1,
        "{message}"
    );
    message
}

/// The last line that a run left on standard error, with exit code `code`: after that which says
/// what is recorded.
pub(crate) fn last_line(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    let messages = String::from_utf8_lossy(&output.stderr).into_owned();
    let mut lines = messages.lines();
    let first = lines.next().unwrap_or_default();
    assert!(
        first.starts_with("pagetrail: recording process "),
        "{messages}"
    );
    lines.next_back().unwrap_or_default().to_owned()
}

/// The report on a recording.
pub(crate) fn report(directory: &Path, file: &str) -> Value {
    let output = run(directory, &["report", "--json", file]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// A number of a report.
pub(crate) fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

/// An address of a report.
pub(crate) fn address(value: &Value) -> u64 {
    let text = value.as_str().and_then(|text| text.strip_prefix("0x"));
    let number = text.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    number.unwrap_or_else(|| panic!("{value} is no address"))
}
