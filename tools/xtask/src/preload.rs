//! The libraries for `LD_PRELOAD` as something to install: each with its page of the manual, which
//! is written by hand in the crate and gets the version here.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::capi;
use pagetrail_steps::products::{Product, Profile};
use pagetrail_steps::repo::Repo;

/// A library for `LD_PRELOAD`.
pub(crate) struct Preload {
    product: Product,
    /// The folder of its package.
    package: &'static str,
    page: &'static str,
}

/// Soft-dirty bits.
pub(crate) const SOFT_DIRTY: Preload = Preload {
    product: Product::SoftDirtyLibrary,
    package: "pagetrail-preload",
    page: "libpagetrail_softdirty.7",
};

/// The sub-page allocator.
pub(crate) const ALLOC: Preload = Preload {
    product: Product::AllocatorLibrary,
    package: "pagetrail-alloc-preload",
    page: "libpagetrail_alloc.7",
};

pub(crate) const ALL: [Preload; 2] = [SOFT_DIRTY, ALLOC];

/// Puts the libraries and their pages under a prefix.
pub(crate) fn install(repo: &Repo, prefix: &Path) -> Result<()> {
    let lib = prefix.join("lib");
    fs::create_dir_all(&lib).with_context(|| format!("cannot create {}", lib.display()))?;
    for Preload { product, .. } in &ALL {
        let built = product.build(repo, Profile::Release)?;
        capi::copy(&built, &lib.join(product.file()))?;
    }
    let man = prefix.join("share/man/man7");
    fs::create_dir_all(&man).with_context(|| format!("cannot create {}", man.display()))?;
    write_man_pages(&repo.root, &man)
}

/// Writes the libraries' pages of the manual to `dir`.
pub(crate) fn write_man_pages(root: &Path, dir: &Path) -> Result<()> {
    for Preload { package, page, .. } in &ALL {
        let source = root.join("crates").join(package).join("man").join(page);
        let text = fs::read_to_string(&source)
            .with_context(|| format!("cannot read {}", source.display()))?
            .replace("@VERSION@", &capi::version(root)?);
        let path = dir.join(page);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A variable that a library reads is on its page.
    #[test]
    fn the_pages_name_every_variable() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
        for (page, settings, least) in [
            (
                "pagetrail-preload/man/libpagetrail_softdirty.7",
                "pagetrail-preload/src/settings.rs",
                2,
            ),
            (
                "pagetrail-alloc-preload/man/libpagetrail_alloc.7",
                "pagetrail-alloc/src/settings.rs",
                1,
            ),
        ] {
            let page = read(&format!("crates/{page}"));
            let settings = read(&format!("crates/{settings}"));
            let strings = settings.split('"').skip(1).step_by(2);
            let is_name = |text: &&str| {
                text.starts_with("PAGETRAIL_") && !text.contains(|c: char| c.is_ascii_whitespace())
            };
            let variables: Vec<&str> = strings.filter(is_name).collect();
            assert!(variables.len() >= least, "{variables:?}");
            for name in variables {
                assert!(page.contains(&format!(".B {name}\n")), "{name}");
            }
        }
    }
}
