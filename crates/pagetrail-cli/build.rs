//! Tells the command its commit and its features, for `pagetrail --version`.
//!
//! The commit is that which a packager names in `PAGETRAIL_COMMIT`, else that of the checkout, else
//! that which cargo noted in a published crate; it is "unknown" where there is none of these.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// The features that a user can notice, by cargo's names for them.
const FEATURES: [&str; 2] = ["model", "object-store"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=PAGETRAIL_COMMIT");
    let named = env::var("PAGETRAIL_COMMIT").ok();
    let commit = named
        .filter(|commit| !commit.is_empty() && !commit.contains('\n'))
        .or_else(of_checkout)
        .or_else(of_published_crate)
        .unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env=PAGETRAIL_COMMIT={commit}");

    let is_set = |feature: &&str| {
        let name = feature.to_uppercase().replace('-', "_");
        env::var_os(format!("CARGO_FEATURE_{name}")).is_some()
    };
    let features: Vec<&str> = FEATURES.into_iter().filter(is_set).collect();
    let features = match features.is_empty() {
        true => "none".to_owned(),
        false => features.join(", "),
    };
    println!("cargo:rustc-env=PAGETRAIL_FEATURES={features}");
}

/// The commit of the repository that tracks this file: not that of one around a copy of it.
fn of_checkout() -> Option<String> {
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    // A commit moves the branch; another branch changes HEAD.
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    for name in ["HEAD", "packed-refs"].into_iter().chain(branch.as_deref()) {
        if let Some(path) = git(&["rev-parse", "--git-path", name])
            && Path::new(&path).exists()
        {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    Some(commit)
}

/// What `cargo package` writes beside `Cargo.toml`.
fn of_published_crate() -> Option<String> {
    let text = fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, rest) = text.split_once("\"sha1\"")?;
    let commit = rest.split('"').nth(1)?;
    let is_hash = commit.len() >= 12 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash.then(|| commit[..12].to_owned())
}

/// What git prints, without its end of line; `None` where it fails or is not installed.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .args(arguments)
        .env("GIT_OPTIONAL_LOCKS", "0")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim_end().to_owned())
}
