//! The library under test, and programs to run under it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The library. Cargo builds for a test what it can link, and this it cannot.
pub(crate) fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        // target/PROFILE/deps/test
        let profile = test.ancestors().nth(2).unwrap();
        let name = match profile.file_name().unwrap().to_str().unwrap() {
            "debug" => "dev",
            name => name,
        };
        let status = Command::new(env!("CARGO"))
            .args([
                "build",
                "--quiet",
                "--package",
                "pagetrail-alloc-preload",
                "--profile",
                name,
            ])
            .arg("--target-dir")
            .arg(profile.parent().unwrap())
            .status()
            .unwrap();
        assert!(status.success(), "the library does not build");
        profile.join("libpagetrail_alloc.so")
    })
}

/// The one program of `tests/victims` that a test file runs, compiled; `None` without a compiler.
pub(crate) fn victim(name: &str) -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let compile = || {
        let victims = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/victims");
        let source = victims.join(name).with_extension("c");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let fresh = program.with_extension(std::process::id().to_string());
        let status = Command::new("cc")
            .args(["-O2", "-Wall", "-Werror", "-pthread", "-o"])
            .args([&fresh, &source])
            .status();
        let Ok(status) = status else {
            pagetrail_skips::not_here("no C compiler (cc)");
            return None;
        };
        assert!(status.success());
        std::fs::rename(&fresh, &program).unwrap();
        Some(program)
    };
    PROGRAM.get_or_init(compile).as_deref()
}

/// A command that runs a program under the library.
pub(crate) fn under(program: impl AsRef<std::ffi::OsStr>, parts: &str) -> Command {
    let mut command = Command::new(program);
    command
        .env("LD_PRELOAD", library())
        .env("PAGETRAIL_SUBPAGES", parts)
        .stdin(Stdio::null());
    command
}
