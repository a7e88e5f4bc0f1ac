//! Programs as guests of KVM, beside a native run.

#![allow(clippy::print_stderr, reason = "a test that cannot run says so")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use super::ending::{described, ended};
use super::{pagetrail, run};

/// Why there are no guests here; `None` where there are.
static NO_GUEST: LazyLock<Option<String>> = LazyLock::new(|| {
    let output = run(Path::new("/"), &["vm", "check"]);
    (output.status.code() != Some(0)).then(|| {
        let text = [&output.stdout[..], &output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        text.lines().last().unwrap_or_default().to_owned()
    })
});

/// Whether there are no guests here; says why.
pub(crate) fn no_guest() -> bool {
    if let Some(reason) = &*NO_GUEST {
        pagetrail_skips::not_here(reason);
    }
    NO_GUEST.is_some()
}

/// Compiles a program of this directory.
pub(crate) fn compiled(directory: &Path, source: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(source);
    let program = directory.join(source.file_stem().expect("a name"));
    let compiler = match source.extension() {
        Some(extension) if extension == "cpp" => "c++",
        _ => "cc",
    };
    let mut compile = Command::new(compiler);
    let compile = compile.arg("-O1").arg("-o").arg(&program).arg(source);
    let compiled = compile.args(flags).output().expect("a C compiler");
    assert!(compiled.status.success(), "{compiled:?}");
    program
}

/// Asserts that output, errors and end are the same.
#[track_caller]
pub(crate) fn same(directory: &Path, command: &[&str]) {
    let mut native = Command::new(command[0]);
    let native = native.args(&command[1..]).current_dir(directory);
    let native = ended(native.stdin(Stdio::null()));
    let mut guest = pagetrail(directory, &["vm", "run", "--"]);
    let guest = ended(guest.args(command));
    let (native_text, guest_text) = (
        described("natively", &native),
        described("as a guest", &guest),
    );
    assert!(native == guest, "{command:?}\n{native_text}{guest_text}");
}
