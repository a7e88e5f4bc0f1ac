//! Small files that a user names, such as suites and results: read whole, and refused where they
//! are larger than any such file, so that `/dev/zero` or a recording named by mistake ends in one
//! line.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Reads the text of `what` from a file of at most `bytes_max` bytes.
pub fn text(path: &Path, what: &str, bytes_max: u64) -> Result<String> {
    let cannot = || format!("cannot read the {what} {}", path.display());
    let file = File::open(path).with_context(cannot)?;
    let mut bytes = Vec::new();
    file.take(bytes_max + 1)
        .read_to_end(&mut bytes)
        .with_context(cannot)?;
    if bytes.len() as u64 > bytes_max {
        bail!("{} is too large for a {what}", path.display());
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(_) => bail!("{} is not UTF-8, and so no {what}", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_or_no_text_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "text").unwrap();
        assert_eq!(text(&path, "suite", 4).unwrap(), "text");
        let large = text(&path, "suite", 3).unwrap_err().to_string();
        assert!(large.ends_with("is too large for a suite"), "{large}");
        let endless = text(Path::new("/dev/zero"), "suite", 1 << 16);
        assert!(endless.unwrap_err().to_string().contains("too large"));
        std::fs::write(&path, b"\xff").unwrap();
        let binary = text(&path, "suite", 4).unwrap_err().to_string();
        assert!(binary.contains("not UTF-8"), "{binary}");
        let none = text(&directory.path().join("none"), "suite", 4);
        assert!(none.unwrap_err().to_string().starts_with("cannot read"));
    }
}
