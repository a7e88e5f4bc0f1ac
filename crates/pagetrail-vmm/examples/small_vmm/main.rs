//! A Linux guest that is saved in increments while it works, and goes on from the store.
//!
//! `small_vmm KERNEL INIT [MEBIBYTES]`: boots a bzImage with one program as `init` (`init.c` here,
//! linked statically), and prints what it prints, and what each round and each snapshot has. It
//! needs a KVM that runs an operating system's kernel.

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
fn main() -> ExitCode {
    let arguments: Vec<std::ffi::OsString> = std::env::args_os().skip(1).collect();
    let mebibytes = match &arguments[..] {
        [_, _] => Some(show::MEBIBYTES),
        [_, _, size] => size.to_str().and_then(|size| size.parse().ok()),
        _ => None,
    };
    let Some(mebibytes) = mebibytes.filter(|size| (96..=3072).contains(size)) else {
        eprintln!("usage: small_vmm KERNEL INIT [MEBIBYTES, 96 to 3072]");
        return ExitCode::from(2);
    };
    match show::run(arguments[0].as_ref(), arguments[1].as_ref(), mebibytes) {
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
