//! [`restore`] on processors for which there is no stub.

use crate::error::{Error, Result};
use crate::options::RestoreOptions;
use crate::restored::Restored;
use pagetrail_checkpoint::Image;

/// Refuses every image.
///
/// # Errors
///
/// Always.
pub fn restore(_image: &mut Image, _options: &RestoreOptions) -> Result<Restored> {
    Err(Error::Refused(
        "processes are restored without CRIU on x86-64 only".into(),
    ))
}
