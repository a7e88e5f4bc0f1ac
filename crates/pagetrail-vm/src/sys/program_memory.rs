//! The program's memory as bytes. The kernel copies it, and reports an address that is not mapped
//! instead of ending the process.
#![allow(
    unsafe_code,
    reason = "process_vm_readv(2) and process_vm_writev(2) take addresses"
)]

use rustix::io::Errno;

const PAGE: usize = crate::memory::PAGE as usize;

/// Reads all of `bytes` at `address`, or fails.
pub(crate) fn read(address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
    copy(
        libc::SYS_process_vm_readv,
        address,
        bytes.as_mut_ptr(),
        bytes.len(),
    )
}

/// Writes all of `bytes` at `address`, which must be the program's, or fails.
pub(crate) fn write(address: u64, bytes: &[u8]) -> Result<(), Errno> {
    let from = bytes.as_ptr().cast_mut();
    copy(libc::SYS_process_vm_writev, address, from, bytes.len())
}

/// Reads a 64-bit word.
pub(crate) fn read_word(address: u64) -> Result<u64, Errno> {
    let mut bytes = [0; 8];
    read(address, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Reads a text of at most a page that ends with a zero byte.
pub(crate) fn read_text(address: u64) -> Result<Vec<u8>, Errno> {
    read_string(address, PAGE - 1)
}

/// Reads a text of at most so many bytes, and the zero byte that ends it.
pub(crate) fn read_string(address: u64, bytes_max: usize) -> Result<Vec<u8>, Errno> {
    let mut text = Vec::new();
    while text.len() <= bytes_max {
        let at = address.wrapping_add(text.len() as u64);
        // The next page may not be mapped.
        let mut piece = vec![0; PAGE - at as usize % PAGE];
        read(at, &mut piece)?;
        if let Some(end) = piece.iter().position(|byte| *byte == 0) {
            text.extend(&piece[..end]);
            return match text.len() <= bytes_max {
                true => Ok(text),
                false => Err(Errno::NAMETOOLONG),
            };
        }
        text.extend(piece);
    }
    Err(Errno::NAMETOOLONG)
}

fn copy(number: libc::c_long, address: u64, ours: *mut u8, len: usize) -> Result<(), Errno> {
    if len == 0 {
        return Ok(());
    }
    let here = libc::iovec {
        iov_base: ours.cast(),
        iov_len: len,
    };
    let there = libc::iovec {
        iov_base: address as *mut _,
        iov_len: len,
    };
    // The target is this thread, not the process: the first thread may have ended while others run.
    // SAFETY: `ours` is a valid buffer of `len` bytes, and the kernel writes to it only when
    // reading. It follows the other address itself and reports one that is not mapped; no Rust
    // reference to the program's memory exists.
    let copied = unsafe {
        libc::syscall(
            number,
            libc::gettid(),
            &raw const here,
            1usize,
            &raw const there,
            1usize,
            0usize,
        )
    };
    match copied {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::FAULT)),
        n if n as usize == len => Ok(()),
        _ => Err(Errno::FAULT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_both_ways_and_reports_what_is_not_there() {
        let target = [1u8, 2, 3, 0];
        let address = target.as_ptr() as u64;
        let mut bytes = [0; 4];
        read(address, &mut bytes).unwrap();
        assert_eq!(bytes, target);
        assert_eq!(read_text(address).unwrap(), [1, 2, 3]);
        assert_eq!(read(16, &mut bytes), Err(Errno::FAULT));
        assert_eq!(write(16, &bytes), Err(Errno::FAULT));
        assert_eq!(read_text(16), Err(Errno::FAULT));
    }
}
