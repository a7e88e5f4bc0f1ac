//! A Linux guest that is saved in increments while it works, and goes on from the store.
//!
//! `small_vmm KERNEL INIT [MEBIBYTES]`: boots a bzImage with one program as `init` (`init.c` here,
//! linked statically), and prints what it prints, and what each round and each snapshot has. It
//! needs a KVM that runs an operating system's kernel.
//!
//! With `--store DIR` the snapshots stay, and `small_vmm --go-on DIR` has the guest go on from
//! there, when and as often as wanted. With `--module FILE` the program gets a kernel module, as
//! `research/ooh/guest.c` wants one to ask for the guest's own dirty pages.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example shows what it does"
)]
#![deny(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod machine;
#[cfg(target_arch = "x86_64")]
mod show;

use std::process::ExitCode;

#[cfg(target_arch = "x86_64")]
const USAGE: &str = "\
usage: small_vmm KERNEL INIT [MEBIBYTES, 96 to 3072] [--module FILE] [--store DIR]
       small_vmm --go-on DIR";

#[cfg(target_arch = "x86_64")]
fn main() -> ExitCode {
    let arguments: Vec<std::ffi::OsString> = std::env::args_os().skip(1).collect();
    let Some(wish) = show::Wish::parse(&arguments) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match show::run(&wish) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("small_vmm: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn main() -> ExitCode {
    eprintln!("small_vmm: it boots x86-64 kernels alone");
    ExitCode::FAILURE
}
