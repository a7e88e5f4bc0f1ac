//! Becomes the named program, as the guest of a virtual machine:
//!
//! ```text
//! cargo run -p pagetrail-vm --example run -- /bin/echo hello
//! ```
#![allow(
    clippy::print_stderr,
    reason = "an example talks to the person who started it"
)]

use std::process::ExitCode;

fn main() -> ExitCode {
    let command: Vec<_> = std::env::args_os().skip(1).collect();
    match pagetrail_vm::become_guest(&command, &pagetrail_vm::Settings::default()) {
        Ok(never) => match never {},
        Err(error) => {
            eprintln!("run: {error}");
            ExitCode::from(pagetrail_vm::STATUS_UNSUPPORTED as u8)
        }
    }
}
