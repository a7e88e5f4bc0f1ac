//! Programs that the suites run in guests, and that only the host can build: in Go, and on Debian's libgc.
//!
//! A suite finds each by a variable of its environment. One that cannot be built here is named, and its test says that it is
//! not there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::libgc;
use crate::repo::{Repo, program};

/// Where Go is where it is not in `PATH`.
const GO: &str = "/usr/local/go/bin/go";

/// Builds them; variables and paths.
pub(crate) fn build(repo: &Repo) -> Result<Vec<(String, String)>> {
    let directory = repo.target.join("guest-programs");
    fs::create_dir_all(&directory)?;
    let mut built = Vec::new();
    for (variable, path) in [
        ("PAGETRAIL_GO_PROGRAM", go_program(repo, &directory)),
        ("PAGETRAIL_GCBENCH", gcbench(repo, &directory)),
    ] {
        match path {
            Ok(path) => built.push((variable.to_owned(), path.display().to_string())),
            Err(error) => println!("-- without {variable}: {error:#}"),
        }
    }
    Ok(built)
}

fn go_program(repo: &Repo, directory: &Path) -> Result<PathBuf> {
    let installed = || Some(PathBuf::from(GO)).filter(|path| path.exists());
    let go = program("go").or_else(installed).context("no Go here")?;
    let out = directory.join("vm_threads_go");
    let mut build = Command::new(go);
    build
        .arg("build")
        .arg("-o")
        .arg(&out)
        .arg(repo.root.join("crates/pagetrail-cli/tests/vm_threads.go"))
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", "-p=2");
    run(&mut build)?;
    Ok(out)
}

fn gcbench(repo: &Repo, directory: &Path) -> Result<PathBuf> {
    let libgc = libgc::fetch()?;
    let out = directory.join("gcbench");
    let mut gcc = Command::new("gcc");
    gcc.arg("-O2").arg("-I").arg(&libgc.headers);
    gcc.arg(format!("-Wl,-rpath,{}", libgc.library.display()));
    gcc.arg("-o").arg(&out);
    gcc.arg(repo.root.join("tests/collector/gcbench.c"));
    gcc.arg(libgc.library.join("libgc.so.1"));
    run(&mut gcc)?;
    Ok(out)
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status();
    let status = status.with_context(|| format!("cannot run {:?}", command.get_program()))?;
    ensure!(status.success(), "{:?}: {status}", command.get_program());
    Ok(())
}
