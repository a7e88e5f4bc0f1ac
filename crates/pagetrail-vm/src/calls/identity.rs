//! What the program learns about itself where the kernel would tell about the machine.

use std::os::unix::ffi::OsStrExt;

use crate::guest::Guest;
use crate::sys::call::Call;
use crate::sys::program_memory::{read_text, write};

const EFAULT: i64 = -(libc::EFAULT as i64);

/// `readlink(2)` and its like: `/proc/self/exe` is the program.
pub(super) fn read_link(guest: &Guest, call: &Call) -> i64 {
    let [path, buffer, bytes] = match call.number as i64 {
        libc::SYS_readlink => [call.arguments[0], call.arguments[1], call.arguments[2]],
        _ => [call.arguments[1], call.arguments[2], call.arguments[3]],
    };
    let own = format!("/proc/{}/exe", std::process::id());
    let Ok(text) = read_text(path) else {
        return call.pass_on();
    };
    if text != b"/proc/self/exe" && text != own.as_bytes() {
        return call.pass_on();
    }
    if bytes as i32 <= 0 {
        return -i64::from(libc::EINVAL);
    }
    let target = guest.path().as_os_str().as_bytes();
    let target = &target[..target.len().min(bytes as usize)];
    match write_or_fault(buffer, target) {
        0 => target.len() as i64,
        error => error,
    }
}

/// Writes to the program's memory; the result as the kernel has it.
pub(super) fn write_or_fault(address: u64, bytes: &[u8]) -> i64 {
    write(address, bytes).map_or(EFAULT, |()| 0)
}
