//! Tests the C library as a user of C has it: installed under a prefix, found by pkg-config,
//! compiled by a compiler that warns about everything, and run plain, with the sanitizers, and
//! under valgrind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{header, install, symbols};
use pagetrail_rig as rig;
use pagetrail_steps::products::{Product, Profile};
use pagetrail_steps::repo::{Repo, program};
use pagetrail_steps::steps::{NotHere, Outcome};

const STRICT: &[&str] = &["-Wall", "-Wextra", "-pedantic", "-Werror"];

/// The header alone must compile as each of these.
const LANGUAGES: &[(&str, &str)] = &[
    ("gcc", "-std=c99"),
    ("gcc", "-std=c11"),
    ("g++", "-std=c++11"),
    ("g++", "-std=c++20"),
];

/// How a program is compiled and run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Shared,
    Static,
    Sanitized,
    Valgrind,
}

impl Mode {
    const ALL: [Self; 4] = [Self::Shared, Self::Static, Self::Sanitized, Self::Valgrind];

    fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Static => "static",
            Self::Sanitized => "sanitized",
            Self::Valgrind => "valgrind",
        }
    }
}

/// A C program under test.
struct Program {
    /// Without `.c`, under the crate's directory.
    path: &'static str,
    arguments: &'static [&'static str],
    /// In which modes it makes no sense, and why.
    not: &'static [(Mode, &'static str)],
}

/// Needs Linux 7.3.
const ACCESS: &str = "tests/access";

const PROGRAMS: &[Program] = &[
    Program {
        path: "tests/api",
        arguments: &[],
        not: &[],
    },
    Program {
        path: "tests/at_safepoint",
        arguments: &[],
        not: &[
            (
                Mode::Sanitized,
                "it puts its own malloc in the place of the sanitizer's",
            ),
            (
                Mode::Valgrind,
                "it puts its own malloc in the place of valgrind's",
            ),
        ],
    },
    Program {
        path: "tests/process",
        arguments: &[],
        not: &[(
            Mode::Valgrind,
            "valgrind's processes are not what they seem to whom attaches to them",
        )],
    },
    Program {
        path: "tests/checkpoints",
        arguments: &[],
        not: &[],
    },
    Program {
        path: "tests/guests",
        arguments: &[],
        not: &[(
            Mode::Valgrind,
            "valgrind does not know that a system call fills the memory of userfaultfd(2)",
        )],
    },
    Program {
        path: "tests/restores",
        arguments: &[],
        not: &[
            (
                Mode::Sanitized,
                "the sanitizer's shadow of memory is larger than a checkpoint is meant to be",
            ),
            (
                Mode::Valgrind,
                "valgrind's processes are not what they seem to whom attaches to them",
            ),
        ],
    },
    Program {
        path: "tests/command",
        arguments: &[],
        not: &[(
            Mode::Valgrind,
            "valgrind traces what it runs by ptrace(2) no further than its own process",
        )],
    },
    Program {
        path: "tests/subpages",
        arguments: &[],
        not: &[
            (
                Mode::Sanitized,
                "its child has the malloc of libpagetrail_alloc.so in the place of the sanitizer's",
            ),
            (
                Mode::Valgrind,
                "valgrind traces what it runs by ptrace(2) no further than its own process",
            ),
        ],
    },
    Program {
        path: ACCESS,
        arguments: &[],
        not: &[],
    },
    Program {
        path: "examples/collector",
        arguments: &["--rounds", "20"],
        not: &[],
    },
];

/// Everything about the C library on this machine; the outcome, with the details printed.
pub(crate) fn check(repo: &Repo) -> Result<Outcome> {
    let prefix = installed(
        repo,
        "capi",
        &["gcc", "g++", "pkg-config", "nm", "valgrind"],
    )?;
    Product::AllocatorLibrary.build(repo, Profile::Dev)?;
    Product::Command.build(repo, Profile::Dev)?;
    let mut failures = 0;
    let mut tell = |what: &str, outcome: Result<()>| match outcome {
        Ok(()) => println!("{what}: fine"),
        Err(error) => {
            println!("{what}: {error:#}");
            failures += 1;
        }
    };
    tell("header", fresh(repo));
    tell("symbols", exported(repo, &prefix));
    for (compiler, standard) in LANGUAGES {
        let outcome = compiles_alone(&prefix, compiler, standard);
        tell(&format!("header, {compiler} {standard}"), outcome);
    }
    tell("link, static in all", links_statically(&prefix));
    for program in PROGRAMS {
        for mode in Mode::ALL {
            let name = format!("{}, {}", program.path, mode.name());
            match program.not.iter().find(|(not, _)| *not == mode) {
                Some((_, why)) => println!("{name}: not run: {why}"),
                None => tell(&name, compile_and_run(repo, &prefix, program, mode)),
            }
        }
    }
    Ok(Outcome::of(failures == 0))
}

/// Installs the library in a directory of its own below the target directory, where these tools
/// are there.
fn installed(repo: &Repo, name: &str, tools: &[&str]) -> Result<PathBuf> {
    if let Some(tool) = tools.iter().find(|tool| program(tool).is_none()) {
        return Err(NotHere::error(&format!("no {tool}")));
    }
    let prefix = repo.target.join(name);
    if prefix.exists() {
        fs::remove_dir_all(&prefix)?;
    }
    install::install(repo, &prefix, Profile::Dev)?;
    Ok(prefix)
}

/// A program without any shared library, as `pkg-config --static` says to link it.
fn links_statically(prefix: &Path) -> Result<()> {
    let source = prefix.join("static.c");
    let text = "#include <pagetrail.h>\n#include <stdio.h>\n\
                int main(void) { return puts(pagetrail_version()) < 0; }\n";
    fs::write(&source, text)?;
    let binary = prefix.join("static");
    let linked = Command::new("gcc")
        .arg("-static")
        .arg(&source)
        .arg("-o")
        .arg(&binary)
        .args(flags(prefix, Mode::Static)?)
        .output()
        .context("cannot run gcc")?;
    // The linker warns of functions of glibc that need its shared form.
    let said = String::from_utf8_lossy(&linked.stderr);
    ensure!(linked.status.success(), "does not link: {}", said.trim());
    let output = Command::new(&binary).output()?;
    ensure!(
        output.status.success(),
        "it does not run: {}",
        output.status
    );
    Ok(())
}

/// The program on accesses, in a guest whose kernel has them.
pub(crate) fn check_in_guest(repo: &Repo) -> Result<Outcome> {
    let prefix = installed(repo, "capi-guest", &["gcc", "pkg-config"])?;
    let accesses = PROGRAMS.iter().find(|program| program.path == ACCESS);
    let accesses = accesses.context("no program on accesses")?;
    let program = compile(repo, &prefix, accesses, Mode::Shared)?;
    let needs = rig::Needs {
        timeout: Duration::from_secs(120),
        memory_mib: 1024,
        ..rig::Needs::default()
    };
    let said = rig::output(repo, "7.x", &needs, vec![program.display().to_string()])?;
    let said = String::from_utf8_lossy(&said);
    ensure!(said.contains("accesses are reported"), "{}", said.trim());
    println!("{ACCESS}, shared, in a guest with Linux 7.x: fine");
    Ok(Outcome::Passed)
}

/// Where a compiled program lies.
fn binary(prefix: &Path, path: &str, mode: Mode) -> PathBuf {
    let name = path.rsplit('/').next().unwrap_or(path);
    prefix.join("bin").join(format!("{name}-{}", mode.name()))
}

fn fresh(repo: &Repo) -> Result<()> {
    ensure!(
        header::is_fresh(&repo.root)?,
        "pagetrail.h is not what the sources make; run cargo xtask generate"
    );
    Ok(())
}

fn exported(repo: &Repo, prefix: &Path) -> Result<()> {
    let findings = symbols::findings(&repo.root, &prefix.join("lib/libpagetrail.so"))?;
    ensure!(findings.is_empty(), "{}", findings.join("; "));
    Ok(())
}

fn compiles_alone(prefix: &Path, compiler: &str, standard: &str) -> Result<()> {
    let language = if compiler == "g++" { "c++" } else { "c" };
    // As a source of its own: warnings about a header that is included are another matter.
    let status = Command::new(compiler)
        .args(STRICT)
        .args([standard, "-fsyntax-only", "-include"])
        .arg(prefix.join("include/pagetrail.h"))
        .args(["-x", language, "/dev/null"])
        .stdin(Stdio::null())
        .status()?;
    ensure!(status.success(), "does not compile");
    Ok(())
}

fn compile_and_run(repo: &Repo, prefix: &Path, program: &Program, mode: Mode) -> Result<()> {
    let binary = compile(repo, prefix, program, mode)?;
    let mut command = match mode {
        Mode::Valgrind => {
            let mut valgrind = Command::new("timeout");
            valgrind.args(["300", "valgrind", "--quiet", "--error-exitcode=99"]);
            valgrind.args(["--leak-check=full", "--show-leak-kinds=definite,indirect"]);
            valgrind.args(["--errors-for-leak-kinds=definite,indirect"]);
            // It knows no userfaultfd(2), so `mprotect` is what works there, whose signal handler
            // returns to the store. By default valgrind's registers are not up to date then (its
            // manual, on this option).
            valgrind.arg("--vex-iropt-register-updates=allregs-at-mem-access");
            valgrind.arg(&binary);
            valgrind
        }
        _ => {
            let mut plain = Command::new("timeout");
            plain.arg("120").arg(&binary);
            plain
        }
    };
    let output = command
        .args(program.arguments)
        .env(
            "ALLOC_LIBRARY",
            repo.target
                .join("debug")
                .join(Product::AllocatorLibrary.file()),
        )
        .env(
            "PAGETRAIL",
            repo.target.join("debug").join(Product::Command.file()),
        )
        .stdin(Stdio::null())
        .output()?;
    if !output.status.success() {
        print!("{}", String::from_utf8_lossy(&output.stdout));
        print!("{}", String::from_utf8_lossy(&output.stderr));
    }
    ensure!(output.status.success(), "{}", output.status);
    Ok(())
}

fn compile(repo: &Repo, prefix: &Path, program: &Program, mode: Mode) -> Result<PathBuf> {
    let source = header::crate_dir(&repo.root).join(format!("{}.c", program.path));
    fs::create_dir_all(prefix.join("bin"))?;
    let binary = binary(prefix, program.path, mode);
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-pthread"])
        .args(STRICT)
        .arg("-o")
        .arg(&binary)
        .arg(&source);
    if mode == Mode::Sanitized {
        gcc.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
    }
    if mode == Mode::Valgrind {
        gcc.arg(header::crate_dir(&repo.root).join("tests/touch_stack.c"));
    }
    gcc.args(flags(prefix, mode)?)
        .arg(format!("-Wl,-rpath,{}", prefix.join("lib").display()));
    let status = gcc
        .stdin(Stdio::null())
        .status()
        .context("cannot run gcc")?;
    ensure!(status.success(), "does not compile");
    Ok(binary)
}

/// What pkg-config says to compile and link with.
fn flags(prefix: &Path, mode: Mode) -> Result<Vec<String>> {
    let mut pkg_config = Command::new("pkg-config");
    pkg_config
        .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))
        .args(["--cflags", "--libs", "pagetrail"]);
    if mode == Mode::Static {
        pkg_config.arg("--static");
    }
    let output = pkg_config.output().context("cannot run pkg-config")?;
    ensure!(
        output.status.success(),
        "pkg-config does not find the library"
    );
    let text = String::from_utf8(output.stdout)?;
    let flags = text.split_whitespace().map(|flag| match (mode, flag) {
        // The linker would take the shared one beside it.
        (Mode::Static, "-lpagetrail") => "-l:libpagetrail.a".to_owned(),
        (_, flag) => flag.to_owned(),
    });
    Ok(flags.collect())
}
