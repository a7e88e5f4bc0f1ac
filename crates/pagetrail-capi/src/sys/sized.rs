//! Conversion of what C passes as a pointer and a number: structs that grow from version to
//! version, and arrays.
//!
//! A struct comes with the size that the caller knows, as in `clone3(2)`: a caller older than the
//! library gets and gives fewer fields, a newer one may not use those that this library does not
//! know.

use crate::failure::{Failure, invalid, null};
use crate::types::Range;
use std::ffi::{CStr, c_char};
use std::mem::{MaybeUninit, size_of};

/// A struct of which all bytes at zero are a valid value, and any bytes are.
///
/// # Safety
///
/// Every field is a number, an array of numbers, or a raw pointer.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: every field of `Options` is a number or a raw pointer.
unsafe impl Plain for crate::types::Options {}
// SAFETY: every field of `CheckpointerOptions` is a number or a raw pointer.
unsafe impl Plain for crate::types::CheckpointerOptions {}
// SAFETY: every field of `GuestOptions` is a number or a raw pointer.
unsafe impl Plain for crate::guest::GuestOptions {}

/// Reads a struct of `size` bytes; fields that the caller does not know are zero.
pub(crate) fn read<T: Plain>(from: *const T, size: usize) -> Result<T, Failure> {
    if from.is_null() {
        return Err(null("the struct is a null pointer"));
    }
    if size == 0 {
        return Err(invalid("the size of the struct is 0"));
    }
    let known = size.min(size_of::<T>());
    let bytes = from.cast::<u8>();
    let newer = (known..size).any(|at| {
        // SAFETY: the caller says that `size` bytes are there.
        unsafe { bytes.add(at).read() != 0 }
    });
    if newer {
        return Err(invalid(
            "the struct has fields set that this version of the library does not know",
        ));
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: `known` bytes are there on both sides, and the two are apart; any bytes are a `T`.
    unsafe {
        value
            .as_mut_ptr()
            .cast::<u8>()
            .copy_from_nonoverlapping(bytes, known);
        Ok(value.assume_init())
    }
}

/// Writes a struct of `size` bytes; what the caller knows beyond `value` becomes zero.
pub(crate) fn write<T: Copy>(to: *mut T, size: usize, value: &T) -> Result<(), Failure> {
    if to.is_null() {
        return Err(null("the struct is a null pointer"));
    }
    if size == 0 {
        return Err(invalid("the size of the struct is 0"));
    }
    let known = size.min(size_of::<T>());
    let bytes = to.cast::<u8>();
    // SAFETY: the caller says that `size` bytes are there, which `value` is no part of.
    unsafe {
        bytes.copy_from_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), known);
        bytes.add(known).write_bytes(0, size - known);
    }
    Ok(())
}

/// `count` ranges of the caller's.
pub(crate) fn ranges<'a>(from: *const Range, count: usize) -> Result<&'a [Range], Failure> {
    array(from, count, "the ranges are a null pointer")
}

/// `count` values of the caller's, or what is said where they are missing.
pub(crate) fn array<'a, T: Copy>(
    from: *const T,
    count: usize,
    missing: &'static str,
) -> Result<&'a [T], Failure> {
    match (from.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null(missing)),
        // SAFETY: the caller says that they are there, and does not change them during the call.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(from, count) }),
    }
}

/// The caller's string, or what is said where it is missing.
pub(crate) fn text<'a>(from: *const c_char, missing: &'static str) -> Result<&'a CStr, Failure> {
    match from.is_null() {
        true => Err(null(missing)),
        // SAFETY: the caller says that it is a string, and does not change it during the call.
        false => Ok(unsafe { CStr::from_ptr(from) }),
    }
}

/// The caller's strings, up to a null pointer.
pub(crate) fn strings<'a>(from: *const *const c_char) -> Result<Vec<&'a CStr>, Failure> {
    if from.is_null() {
        return Err(null("argv is a null pointer"));
    }
    let mut strings = Vec::new();
    loop {
        // SAFETY: the caller says that an array is there which ends with a null pointer, and the
        // loop ends there.
        let string = unsafe { from.add(strings.len()).read() };
        if string.is_null() {
            return Ok(strings);
        }
        // SAFETY: the caller says that it is a string, and does not change it during the call.
        strings.push(unsafe { CStr::from_ptr(string) });
    }
}

/// Copies as many of `ranges` as fit to the caller's buffer.
pub(crate) fn copy(ranges: &[Range], to: *mut Range, capacity: usize) -> Result<(), Failure> {
    let count = ranges.len().min(capacity);
    if count == 0 {
        return Ok(());
    }
    if to.is_null() {
        return Err(null("the buffer is a null pointer"));
    }
    // SAFETY: the caller says that `capacity` ranges have room, and the library's own lie
    // elsewhere.
    unsafe { to.copy_from_nonoverlapping(ranges.as_ptr(), count) };
    Ok(())
}

/// A set's ranges as C sees them.
pub(crate) fn view(ranges: &[pagetrail::PageRange]) -> &[Range] {
    // SAFETY: both are two `u64`, start and end, by `repr(C)`; `types` asserts size, alignment and
    // the second offset.
    unsafe { std::slice::from_raw_parts(ranges.as_ptr().cast(), ranges.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Status;

    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Now(u32, u32);
    // SAFETY: both fields are `u32`.
    unsafe impl Plain for Now {}

    fn status<T>(result: &Result<T, Failure>) -> Option<Status> {
        match result {
            Err(Failure::Misuse(status, _)) => Some(*status),
            _ => None,
        }
    }

    #[test]
    fn an_older_caller_knows_less() {
        let theirs = [7u32, 0xdead];
        assert_eq!(read::<Now>(theirs.as_ptr().cast(), 4).unwrap(), Now(7, 0));
        let mut theirs = [1u32, 2];
        write(theirs.as_mut_ptr().cast(), 4, &Now(5, 6)).unwrap();
        assert_eq!(theirs, [5, 2]);
    }

    #[test]
    fn a_newer_caller_may_not_use_what_is_new() {
        let theirs = [7u32, 8, 0];
        assert_eq!(read::<Now>(theirs.as_ptr().cast(), 12).unwrap(), Now(7, 8));
        let theirs = [7u32, 8, 9];
        let outcome = read::<Now>(theirs.as_ptr().cast(), 12);
        assert_eq!(status(&outcome), Some(Status::InvalidArgument));
        let mut theirs = [1u32, 2, 3];
        write(theirs.as_mut_ptr().cast(), 12, &Now(5, 6)).unwrap();
        assert_eq!(theirs, [5, 6, 0]);
    }

    #[test]
    fn null_and_nothing_are_refused() {
        let outcome = read::<Now>(std::ptr::null(), 8);
        assert_eq!(status(&outcome), Some(Status::NullPointer));
        let theirs = [0u32; 2];
        let outcome = read::<Now>(theirs.as_ptr().cast(), 0);
        assert_eq!(status(&outcome), Some(Status::InvalidArgument));
        assert!(ranges(std::ptr::null(), 0).unwrap().is_empty());
        assert_eq!(
            status(&ranges(std::ptr::null(), 1)),
            Some(Status::NullPointer)
        );
        assert_eq!(
            status(&strings(std::ptr::null())),
            Some(Status::NullPointer)
        );
    }

    #[test]
    fn strings_end_with_a_null_pointer() {
        let argv = [c"ls".as_ptr(), c"-l".as_ptr(), std::ptr::null()];
        assert_eq!(strings(argv.as_ptr()).unwrap(), [c"ls", c"-l"]);
        assert!(strings(argv[2..].as_ptr()).unwrap().is_empty());
    }
}
