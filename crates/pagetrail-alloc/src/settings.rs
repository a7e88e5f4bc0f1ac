//! The settings in the environment.

use crate::fatal;
use crate::subpage_count::{BadSubpageCount, SubpageCount};
use crate::sys::environment::with_variable;

/// The variable for the number of sub-pages per page.
const VARIABLE: &str = "PAGETRAIL_SUBPAGES";

/// The number of sub-pages per page for the heap of the process. A bad value is reported once, and
/// the default is taken.
pub(crate) fn subpages() -> SubpageCount {
    let read = |value: &[u8]| -> Result<SubpageCount, BadSubpageCount> {
        std::str::from_utf8(value)
            .map_err(|_| BadSubpageCount)?
            .parse()
    };
    match with_variable(VARIABLE, read) {
        None => SubpageCount::DEFAULT,
        Some(Ok(subpages)) => subpages,
        Some(Err(BadSubpageCount)) => {
            fatal::say(
                "PAGETRAIL_SUBPAGES must be 1, 2, 4, 8, 16, 32 or 64; taking 8",
                None,
                "",
            );
            SubpageCount::DEFAULT
        }
    }
}
