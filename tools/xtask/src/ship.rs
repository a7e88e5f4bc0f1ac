//! `cargo xtask ship`: whether what ships can be published: licences, public items, features, the
//! other processor, packages.

use anyhow::Result;

use crate::deny;
use pagetrail_steps::repo::{Repo, program};
use pagetrail_steps::steps::{Outcome, Steps};

/// The packages of `tools/`, which are not published.
const TOOLS: &[&str] = &[
    "xtask",
    "pagetrail-public-api",
    "pagetrail-rig",
    "pagetrail-skips",
    "pagetrail-steps",
    "pagetrail-suites",
];

/// What users may leave out or add, beside the defaults, which all other steps have.
const FEATURES: &[(&str, &str)] = &[
    ("pagetrail", ""),
    ("pagetrail", "attach"),
    ("pagetrail", "hashing"),
    ("pagetrail-checkpoint", ""),
    ("pagetrail-cli", ""),
];

/// The other processor for which the workspace builds.
const AARCH64: &str = "aarch64-unknown-linux-gnu";

/// Runs the steps alone; true if nothing failed.
pub(crate) fn run(repo: &Repo) -> bool {
    let mut steps = Steps::default();
    add(repo, &mut steps);
    steps.finish()
}

/// Runs the steps, as a part of `cargo xtask test`.
pub(crate) fn add(repo: &Repo, steps: &mut Steps) {
    steps.run("licences and advisories", || deny::check(repo));
    steps.run("public items", || public_items(repo));
    steps.run("features", || features(repo));
    steps.run("aarch64", || aarch64(repo));
    steps.run("packages for a registry", || packages_of(repo));
}

/// Whether every crate that ships can be packaged: metadata, versions of dependencies, files.
fn packages_of(repo: &Repo) -> Result<Outcome> {
    let mut package = repo.cargo(&["package", "--quiet", "--workspace"]);
    for tool in TOOLS {
        package.args(["--exclude", tool]);
    }
    // All was built a moment ago; the tests before this have fetched what it depends on.
    let package = package.args(["--no-verify", "--allow-dirty", "--offline"]);
    Ok(Outcome::of(package.status()?.success()))
}

/// Whether the public items are those that were decided on.
fn public_items(repo: &Repo) -> Result<Outcome> {
    let differences = pagetrail_public_api::differences(&repo.root)?;
    print!("{differences}");
    if !differences.is_empty() {
        println!("if that is meant: cargo xtask api, and a line in CHANGELOG.md");
    }
    Ok(Outcome::of(differences.is_empty()))
}

/// Whether each library builds, without warnings, with each choice of features that matters.
fn features(repo: &Repo) -> Result<Outcome> {
    let mut fine = true;
    for (package, features) in FEATURES {
        let mut clippy = repo.cargo(&["clippy", "--quiet", "--package", package]);
        clippy.args(["--no-default-features", "--features", features]);
        if !clippy
            .args(["--", "--deny", "warnings"])
            .status()?
            .success()
        {
            println!("{package} with --no-default-features --features '{features}' does not build");
            fine = false;
        }
    }
    Ok(Outcome::of(fine))
}

/// Whether everything builds for aarch64, tests included; examples are left out, since some measure
/// guests, which are of x86-64. (zstd and blake3 compile C.)
fn aarch64(repo: &Repo) -> Result<Outcome> {
    if program("aarch64-linux-gnu-gcc").is_none() {
        let cure = "apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross";
        return Ok(Outcome::NotHere(cure.to_owned()));
    }
    if !repo.has_target(AARCH64)? {
        return Ok(Outcome::NotHere(format!("rustup target add {AARCH64}")));
    }
    let mut clippy = repo.cargo(&["clippy", "--quiet", "--workspace", "--lib", "--bins"]);
    clippy.args(["--tests", "--target", AARCH64, "--", "--deny", "warnings"]);
    Ok(Outcome::of(clippy.status()?.success()))
}
