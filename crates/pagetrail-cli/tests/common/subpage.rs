//! A program on the sub-page allocator, and what a recording of it has.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Where the library is named.
pub(crate) const PLACE: &str = "PAGETRAIL_ALLOC_LIBRARY";

/// The library. Cargo builds for a test what it can link, and this it cannot.
pub(crate) fn library() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_pagetrail"));
    let profile = program.parent().expect("a directory of its profile");
    let library = profile.join("libpagetrail_alloc.so");
    // In a guest of `cargo xtask`, which has built it, and where cargo would take long.
    if std::env::var_os("PAGETRAIL_OUT").is_some() {
        return library;
    }
    let name = match profile.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let target = profile.parent().expect("the target directory");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", "pagetrail-alloc-preload"]);
    cargo.args(["--profile", name, "--target-dir"]).arg(target);
    assert!(
        cargo.status().expect("cargo").success(),
        "it does not build"
    );
    library
}

/// `tests/victims/nodes.c`: 20,000 objects, of which it changes 2,000 a millisecond, 8 bytes of
/// each.
pub(crate) fn compile_nodes(directory: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/victims/nodes.c");
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-pthread", "-o"])
        .arg(directory.join("nodes"));
    let status = cc.arg(source).status();
    assert!(status.is_ok_and(|status| status.success()), "cc failed");
}

/// Bytes of pages and of units that a recording has, by parts.
pub(crate) fn bytes(report: &Value, parts: u32) -> (u64, u64) {
    let units = &report["subpages"];
    assert_eq!(units["subpages_per_page"], parts);
    let of = |key: &str| units[key].as_u64().expect("a number");
    assert!(of("subpage_writes") >= of("page_writes") && of("page_writes") > 0);
    (of("page_bytes"), of("subpage_bytes"))
}
