//! `cargo xtask ship`: whether what ships can be published: licences, packages, public items.

use anyhow::Result;

use crate::deny;
use pagetrail_steps::repo::Repo;
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
