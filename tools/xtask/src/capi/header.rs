//! `pagetrail.h`, generated from the C interface's source; checked in, so that it can be read and
//! used without cargo, and checked to be fresh.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};

/// The sources that declare something for C, in the order of the header.
const SOURCES: &[&str] = &[
    "failure",
    "types",
    "handle",
    "kept",
    "guest",
    "sys/general",
    "sys/watch",
    "sys/round",
    "sys/overhead",
    "sys/subpages",
    "sys/set",
    "sys/checkpointer",
    "sys/snapshot",
    "sys/restore",
    "sys/arena",
    "sys/guest",
];

/// The crate of the C interface.
pub(crate) fn crate_dir(root: &Path) -> PathBuf {
    root.join("crates/pagetrail-capi")
}

/// Where the header is.
pub(crate) fn path(root: &Path) -> PathBuf {
    crate_dir(root).join("include/pagetrail.h")
}

/// The header as the sources have it now.
pub(crate) fn generate(root: &Path) -> Result<String> {
    let dir = crate_dir(root);
    let config = cbindgen::Config::from_file(dir.join("cbindgen.toml"))
        .map_err(|error| anyhow!("cbindgen.toml: {error}"))?;
    let version = super::version(root)?;
    let mut builder = cbindgen::Builder::new()
        .with_config(config)
        .with_after_include(format!(
            "\n/** The version of this header; pagetrail_version() is that of the library in use. */\n\
             #define PAGETRAIL_VERSION \"{version}\""
        ));
    for source in SOURCES {
        builder = builder.with_src(dir.join(format!("src/{source}.rs")));
    }
    let mut text = Vec::new();
    builder
        .generate()
        .context("cbindgen cannot read the C interface")?
        .write(&mut text);
    Ok(String::from_utf8(text)?)
}

/// Writes the header.
pub(crate) fn write(root: &Path) -> Result<()> {
    let path = path(root);
    fs::write(&path, generate(root)?).with_context(|| format!("cannot write {}", path.display()))
}

/// Whether the header that is checked in is the one that the sources make.
pub(crate) fn is_fresh(root: &Path) -> Result<bool> {
    let kept = fs::read_to_string(path(root)).unwrap_or_default();
    Ok(kept == generate(root)?)
}

/// The functions that a header declares, sorted.
pub(crate) fn functions(header: &str) -> Vec<String> {
    let code = without_comments(header);
    let mut found = Vec::new();
    let mut rest = code.as_str();
    while let Some(at) = rest.find('(') {
        let before = &rest[..at];
        let start = before
            .rfind(|c: char| !c.is_alphanumeric() && c != '_')
            .map_or(0, |at| at + 1);
        if before[start..].starts_with("pagetrail_") {
            found.push(before[start..].to_owned());
        }
        rest = &rest[at + 1..];
    }
    found.sort();
    found
}

fn without_comments(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("/*") {
        code.push_str(before);
        rest = after.split_once("*/").map_or("", |(_, after)| after);
    }
    code + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_behind_types_and_not_in_comments() {
        let header = "/* see pagetrail_b() */\nconst char *pagetrail_z(void);\n\
                      enum pagetrail_status pagetrail_a(int (*f)(void),\n  int b);\n";
        assert_eq!(functions(header), ["pagetrail_a", "pagetrail_z"]);
    }
}
