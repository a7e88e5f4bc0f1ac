//! What `pagetrail --version` says: version, commit, features.

/// The version, the commit that the build script found, and the features, a line each.
pub(crate) const LONG: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit: ",
    env!("PAGETRAIL_COMMIT"),
    "\nfeatures: ",
    env!("PAGETRAIL_FEATURES"),
);
