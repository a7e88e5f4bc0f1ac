//! The C library: what `cargo xtask install` puts where, and `cargo xtask capi`, which tests it as
//! a user of C has it.

mod check;
pub(crate) mod header;
mod install;
mod man;
mod symbols;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::preload;
pub(crate) use check::{check, check_in_guest};
pub(crate) use install::copy;
pub(crate) use man::write as write_man_page;
use pagetrail_steps::products::{Product, Profile};
use pagetrail_steps::repo::Repo;
use pagetrail_steps::steps::Steps;

/// `cargo xtask install --prefix DIR`.
pub(crate) fn install(repo: &Repo, args: &[String]) -> Result<()> {
    let prefix = match args {
        [help] if help == "--help" || help == "-h" => {
            print!("{INSTALL_HELP}");
            return Ok(());
        }
        [flag, dir] if flag == "--prefix" => PathBuf::from(dir),
        [joined] if joined.starts_with("--prefix=") => PathBuf::from(&joined["--prefix=".len()..]),
        _ => bail!("usage: cargo xtask install --prefix DIR (--help says what goes there)"),
    };
    install_to(repo, &prefix)?;
    println!(
        "installed pagetrail, the C library, {} and {} in {}",
        Product::SoftDirtyLibrary.file(),
        Product::AllocatorLibrary.file(),
        prefix.display()
    );
    let prefix = fs::canonicalize(&prefix).unwrap_or(prefix);
    if !SEARCHED.iter().any(|known| prefix == Path::new(known)) {
        print!("{}", hint(&prefix));
    }
    Ok(())
}

/// Installs the command and all libraries under `prefix`.
pub(crate) fn install_to(repo: &Repo, prefix: &Path) -> Result<()> {
    install::install(repo, prefix, Profile::Release)?;
    preload::install(repo, prefix)?;
    install_command(repo, prefix)
}

/// Prefixes where compilers and shells look by themselves.
const SEARCHED: [&str; 2] = ["/usr", "/usr/local"];

/// What `cargo xtask install --help` prints.
const INSTALL_HELP: &str = "\
usage: cargo xtask install --prefix DIR

Builds in release mode, writes to DIR and changes nothing else:
  bin/pagetrail                the command
  include/pagetrail.h          the C library's header
  include/pagetrail_guest.h    what a program asks of its virtual machine
  lib/libpagetrail.so, .a      the library, shared and static
  lib/pkgconfig/pagetrail.pc   how to compile and link with it
  lib/libpagetrail_softdirty.so, lib/libpagetrail_alloc.so
                               for LD_PRELOAD
  share/man                    their pages of the manual
  share/bash-completion, share/zsh, share/fish
                               completions of the command
";

/// How programs find what lies under a prefix of one's own.
fn hint(prefix: &Path) -> String {
    let prefix = prefix.display();
    format!(
        "\nPrograms find it there with\n  \
         export PATH=\"{prefix}/bin:$PATH\" PKG_CONFIG_PATH={prefix}/lib/pkgconfig MANPATH={prefix}/share/man:\n  \
         cc program.c $(pkg-config --cflags --libs pagetrail) -Wl,-rpath,{prefix}/lib\n\
         or, in the place of -Wl,-rpath, with LD_LIBRARY_PATH={prefix}/lib when they run;\n\
         cc -static program.c $(pkg-config --static --cflags --libs pagetrail) needs neither.\n"
    )
}

/// Puts the command, its pages of the manual and its completions under a prefix.
fn install_command(repo: &Repo, prefix: &Path) -> Result<()> {
    let built = Product::Command.build(repo, Profile::Release)?;
    let bin = prefix.join("bin");
    fs::create_dir_all(&bin).with_context(|| format!("cannot create {}", bin.display()))?;
    let command = bin.join("pagetrail");
    copy(&built, &command)?;
    let made = repo.target.join("share-installed");
    if made.exists() {
        // It may hold pages of commands that are gone.
        fs::remove_dir_all(&made)?;
    }
    let status = Command::new(&command)
        .arg("generate")
        .arg(&made)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .context("cannot run pagetrail")?;
    ensure!(status.success(), "pagetrail generate failed: {status}");
    let into = |from: &Path, dir: &str, name: &OsStr| -> Result<()> {
        let dir = prefix.join("share").join(dir);
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        copy(from, &dir.join(name))
    };
    for page in fs::read_dir(made.join("man"))? {
        let page = page?;
        into(&page.path(), "man/man1", &page.file_name())?;
    }
    for (made_as, dir, name) in [
        ("pagetrail.bash", "bash-completion/completions", "pagetrail"),
        ("_pagetrail", "zsh/site-functions", "_pagetrail"),
        (
            "pagetrail.fish",
            "fish/vendor_completions.d",
            "pagetrail.fish",
        ),
    ] {
        into(
            &made.join("completions").join(made_as),
            dir,
            OsStr::new(name),
        )?;
    }
    Ok(())
}

/// `cargo xtask capi`; true if all is well.
pub(crate) fn run(repo: &Repo) -> Result<bool> {
    let mut steps = Steps::default();
    steps.run("C library", || check(repo));
    steps.run("C library in a guest", || check_in_guest(repo));
    Ok(steps.finish())
}

/// The version of the workspace, `MAJOR.MINOR.PATCH`.
pub(crate) fn version(root: &Path) -> Result<String> {
    let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
    let package = manifest.split_once("[workspace.package]");
    let (_, package) = package.context("Cargo.toml has no [workspace.package]")?;
    let line = package
        .lines()
        .find_map(|line| line.strip_prefix("version = \""));
    let version = line.and_then(|line| line.strip_suffix('"'));
    Ok(version.context("the workspace has no version")?.to_owned())
}
