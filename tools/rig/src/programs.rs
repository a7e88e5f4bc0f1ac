//! Programs that the suites run in guests, and that a guest could not build or would take minutes
//! over.
//!
//! A suite finds them by `PAGETRAIL_GUEST_PROGRAMS`, a directory. What cannot be built here is
//! named, and its test does without it, or says that it is not there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::libgc;
use pagetrail_steps::repo::{Repo, program};

/// Where Go is where it is not in `PATH`.
const GO: &str = "/usr/local/go/bin/go";

/// Builds them; the variable that names their directory.
pub fn build(repo: &Repo) -> Result<(String, String)> {
    let directory = repo.target.join("guest-programs");
    fs::create_dir_all(&directory)?;
    let out = |name: &str| directory.join(name);
    let compiled = |name: &str, compiler: &str, from: &str, flags: &[&str]| {
        let mut command = Command::new(compiler);
        command.args(["-O1", "-pthread", "-o"]).arg(out(name));
        command.args(flags).arg(source(repo, from));
        run(&mut command)
    };
    let c = "vm_threads.c";
    for (name, built) in [
        ("vm_threads", compiled("vm_threads", "gcc", c, &[])),
        (
            "vm_threads_static",
            compiled("vm_threads_static", "gcc", c, &["-static"]),
        ),
        (
            "vm_threads_cpp",
            compiled("vm_threads_cpp", "g++", "vm_threads.cpp", &[]),
        ),
        ("vm_threads_go", go(repo, &out("vm_threads_go"))),
        (
            "small_vmm_init",
            init(
                repo,
                "crates/pagetrail-vmm/examples/small_vmm/init.c",
                &out("small_vmm_init"),
            ),
        ),
        (
            "small_vmm_tables",
            init(
                repo,
                "crates/pagetrail-vmm/tests/linux_tables.c",
                &out("small_vmm_tables"),
            ),
        ),
        (
            "small_vmm_ooh",
            init(repo, "research/ooh/guest.c", &out("small_vmm_ooh")),
        ),
        ("gcbench", on_libgc(repo, "gcbench", &out("gcbench"))),
        ("gc-kmeans", on_libgc(repo, "kmeans", &out("gc-kmeans"))),
        (
            "gc-wordcount",
            on_libgc(repo, "wordcount", &out("gc-wordcount")),
        ),
        ("gc-matmul", on_libgc(repo, "matmul", &out("gc-matmul"))),
        ("gc-pca", on_libgc(repo, "pca", &out("gc-pca"))),
        (
            "gc-pointers",
            on_libgc(repo, "pointers", &out("gc-pointers")),
        ),
        (
            "libgc-checksums.so",
            checking_libgc(&out("libgc-checksums.so")),
        ),
    ] {
        if let Err(error) = built {
            println!("-- without {name}: {error:#}");
        }
    }
    let directory = directory.display().to_string();
    Ok(("PAGETRAIL_GUEST_PROGRAMS".to_owned(), directory))
}

fn source(repo: &Repo, name: &str) -> PathBuf {
    repo.root.join("crates/pagetrail-cli/tests").join(name)
}

fn go(repo: &Repo, out: &Path) -> Result<()> {
    let installed = || Some(PathBuf::from(GO)).filter(|path| path.exists());
    let go = program("go").or_else(installed).context("no Go here")?;
    let mut build = Command::new(go);
    build.arg("build").arg("-o").arg(out);
    build.arg(source(repo, "vm_threads.go"));
    run(build.env("CGO_ENABLED", "0").env("GOFLAGS", "-p=2"))
}

/// The one program of a guest of a guest (`crates/pagetrail-vmm/examples/small_vmm`).
fn init(repo: &Repo, source: &str, out: &Path) -> Result<()> {
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-static", "-o"]).arg(out);
    run(gcc.arg(repo.root.join(source)))
}

/// One of `tests/collector`.
fn on_libgc(repo: &Repo, name: &str, out: &Path) -> Result<()> {
    let libgc = libgc::fetch()?;
    let mut gcc = Command::new("gcc");
    gcc.arg("-O2").arg("-I").arg(&libgc.headers);
    gcc.arg(format!("-Wl,-rpath,{}", libgc.library.display()));
    gcc.arg("-o").arg(out);
    gcc.arg(repo.root.join(format!("tests/collector/{name}.c")));
    gcc.arg(libgc.library.join("libgc.so.1"));
    run(&mut gcc)
}

/// The collector built so that it holds a checksum of each clean page against the page, and says
/// where one is wrong. It stands in for the library where it is loaded first.
fn checking_libgc(out: &Path) -> Result<()> {
    let source = libgc::fetch()?.source;
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-w", "-shared", "-fPIC", "-pthread"]);
    gcc.args(["-DCHECKSUMS", "-DGC_THREADS", "-DTHREAD_LOCAL_ALLOC"]);
    gcc.args(["-DNO_EXECUTE_PERMISSION", "-DALL_INTERIOR_POINTERS"]);
    gcc.args(["-DGC_BUILTIN_ATOMIC", "-DUSE_MMAP", "-DUSE_MUNMAP"]);
    gcc.arg("-I").arg(source.join("include"));
    gcc.args(["-Wl,-soname,libgc.so.1", "-o"]).arg(out);
    gcc.arg(source.join("extra/gc.c")).arg("-ldl");
    run(&mut gcc)
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status();
    let status = status.with_context(|| format!("cannot run {:?}", command.get_program()))?;
    ensure!(status.success(), "{:?}: {status}", command.get_program());
    Ok(())
}
