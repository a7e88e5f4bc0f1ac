//! The environment at a moment when libc may not know it yet: the first call for memory comes from
//! the dynamic linker.

use rustix::fs::{Mode, OFlags};
use std::ffi::{CStr, c_char};

unsafe extern "C" {
    /// `environ(7)`; null until libc is set up.
    static environ: *const *const c_char;
}

/// Calls `call` with a variable's value, if it is set and not overlong.
pub(crate) fn with_variable<R>(name: &str, call: impl FnOnce(&[u8]) -> R) -> Option<R> {
    // SAFETY: the first call for memory comes before the program can change its environment in
    // another thread.
    let mut at = unsafe { environ };
    if at.is_null() {
        return from_file(name, call);
    }
    // SAFETY: a list of C strings that ends with null.
    unsafe {
        while !(*at).is_null() {
            let entry = CStr::from_ptr(*at).to_bytes();
            if let Some(value) = value_in(entry, name) {
                return Some(call(value));
            }
            at = at.add(1);
        }
    }
    None
}

fn value_in<'entry>(entry: &'entry [u8], name: &str) -> Option<&'entry [u8]> {
    entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")
}

/// Calls `call` with a variable's value as the kernel has it from `execve(2)`.
fn from_file<R>(name: &str, call: impl FnOnce(&[u8]) -> R) -> Option<R> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(c"/proc/self/environ", flags, Mode::empty()).ok()?;
    let mut window = [0; 256];
    let mut entry = [0; 128];
    // Bytes of the present entry; those that do not fit are not of interest.
    let mut length = 0;
    loop {
        let read = rustix::io::read(&file, &mut window).ok()?;
        if read == 0 {
            return None;
        }
        for &byte in &window[..read] {
            if byte != 0 {
                if let Some(place) = entry.get_mut(length) {
                    *place = byte;
                }
                length += 1;
                continue;
            }
            if let Some(value) = entry.get(..length).and_then(|entry| value_in(entry, name)) {
                return Some(call(value));
            }
            length = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_find_the_same() {
        for name in ["PATH", "HOME", "PAGETRAIL_NOBODY_SETS_THIS"] {
            let value = std::env::var(name).ok();
            if value.as_ref().is_none_or(|value| value.len() < 100) {
                let value = value.as_deref().map(str::as_bytes);
                assert_eq!(with_variable(name, <[u8]>::to_vec).as_deref(), value);
                assert_eq!(from_file(name, <[u8]>::to_vec).as_deref(), value);
            }
        }
    }
}
