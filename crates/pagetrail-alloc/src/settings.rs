//! What the environment says.

use crate::parts::{BadParts, Parts};
use crate::sys::environment::with_variable;
use crate::sys::fatal;

/// Into how many parts pages are divided.
const PARTS: &str = "PAGETRAIL_PARTS";

/// The parts that the heap of the process is to have. Of a bad value it says so, once, and takes the default.
pub(crate) fn parts() -> Parts {
    let read = |value: &[u8]| -> Result<Parts, BadParts> {
        std::str::from_utf8(value).map_err(|_| BadParts)?.parse()
    };
    match with_variable(PARTS, read) {
        None => Parts::DEFAULT,
        Some(Ok(parts)) => parts,
        Some(Err(BadParts)) => {
            fatal::say(
                "PAGETRAIL_PARTS must be 1, 2, 4, 8, 16, 32 or 64; taking 8",
                None,
                "",
            );
            Parts::DEFAULT
        }
    }
}
