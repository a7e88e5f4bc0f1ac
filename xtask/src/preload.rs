//! `libpagetrail_softdirty.so` as something to install: the library, and its page of the manual, which is written by hand in
//! the crate and gets the version here.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::capi;
use crate::repo::Repo;

const LIBRARY: &str = "libpagetrail_softdirty.so";
const PAGE: &str = "libpagetrail_softdirty.7";

/// Puts the library and its page under a prefix.
pub(crate) fn install(repo: &Repo, prefix: &Path) -> Result<()> {
    let mut cargo = repo.cargo(&["build", "--quiet", "--release"]);
    let status = cargo.args(["--package", "pagetrail-preload"]).status()?;
    ensure!(status.success(), "{LIBRARY} does not build");
    let lib = prefix.join("lib");
    fs::create_dir_all(&lib).with_context(|| format!("cannot create {}", lib.display()))?;
    capi::copy(
        &repo.target.join("release").join(LIBRARY),
        &lib.join(LIBRARY),
    )?;
    let man = prefix.join("share/man/man7");
    fs::create_dir_all(&man).with_context(|| format!("cannot create {}", man.display()))?;
    write_man_page(&repo.root, &man)
}

/// Writes `libpagetrail_softdirty.7` to `dir`.
pub(crate) fn write_man_page(root: &Path, dir: &Path) -> Result<()> {
    let source = root.join("crates/pagetrail-preload/man").join(PAGE);
    let page = fs::read_to_string(&source)
        .with_context(|| format!("cannot read {}", source.display()))?
        .replace("@VERSION@", &capi::version(root)?);
    let path = dir.join(PAGE);
    fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A variable that the library reads is on the page.
    #[test]
    fn the_page_names_every_variable() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
        let page = read("crates/pagetrail-preload/man/libpagetrail_softdirty.7");
        let settings = read("crates/pagetrail-preload/src/settings.rs");
        let variables = settings.split("c\"").skip(1);
        let variables: Vec<&str> = variables
            .filter_map(|rest| rest.split('"').next())
            .filter(|name| name.starts_with("PAGETRAIL_"))
            .collect();
        assert!(variables.len() >= 2, "{variables:?}");
        for name in variables {
            assert!(page.contains(&format!(".B {name}\n")), "{name}");
        }
    }
}
