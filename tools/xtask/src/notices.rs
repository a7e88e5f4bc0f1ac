//! The licences of what is linked into what ships, as one text for packages: `NOTICES.txt`.
//!
//! It is a build product, made from the crates as cargo has them, so it cannot be stale. A crate
//! without a text of its licence is an error, and part of `cargo xtask test`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use pagetrail_steps::repo::Repo;

/// What is linked into a program or a library that is handed out without its sources.
const SHIPPED: [&str; 4] = [
    "pagetrail-cli",
    "pagetrail-capi",
    "pagetrail-preload",
    "pagetrail-alloc-preload",
];
/// How the names of files with licences begin, in small letters.
const FILES: [&str; 6] = [
    "licence",
    "license",
    "copying",
    "copyright",
    "notice",
    "unlicense",
];
/// Glyphs that a crate carries under a licence other than its own.
const FONT: (&str, &str, &str) = (
    "noto-sans-mono-bitmap",
    "Noto Sans Mono, whose glyphs pictures show: Copyright 2022 The Noto Project Authors\n\
     (https://github.com/notofonts/latin-greek-cyrillic), under the SIL Open Font License 1.1",
    "docs/licences/OFL-1.1.txt",
);

/// Writes `NOTICES.txt` to `dir`, and returns how many crates it names.
pub(crate) fn write(repo: &Repo, dir: &Path) -> Result<usize> {
    let mut metadata = repo.cargo(&["metadata", "--format-version", "1", "--all-features"]);
    let target = format!(
        "--filter-platform={}-unknown-linux-gnu",
        std::env::consts::ARCH
    );
    let output = metadata
        .args(["--locked", &target])
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    ensure!(output.status.success(), "cargo metadata failed");
    let crates = linked(&serde_json::from_slice(&output.stdout)?)?;
    let font = crates.iter().find(|linked| linked.name == FONT.0);
    let font = match font {
        Some(_) => Some(fs::read_to_string(repo.root.join(FONT.2)).context(FONT.2)?),
        None => None,
    };
    let text = text(&crates, font.as_deref())?;
    fs::create_dir_all(dir)?;
    let path = dir.join("NOTICES.txt");
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(crates.len())
}

/// A crate of others that is linked.
#[derive(Debug)]
struct Linked {
    name: String,
    version: String,
    licence: String,
    source: String,
    /// The texts in its directory.
    texts: Vec<String>,
}

/// What the shipped packages depend on, but for tests and build scripts, by name.
fn linked(metadata: &Value) -> Result<Vec<Linked>> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let id = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages = list(&metadata["packages"]);
    let packages: BTreeMap<String, &Value> =
        packages.iter().map(|it| (id(&it["id"]), it)).collect();
    let mut needs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for node in list(&metadata["resolve"]["nodes"]) {
        let is_linked = |dep: &&Value| {
            list(&dep["dep_kinds"])
                .iter()
                .any(|it| it["kind"].is_null())
        };
        let deps = list(&node["deps"]);
        let deps = deps.iter().filter(is_linked).map(|dep| id(&dep["pkg"]));
        needs.insert(id(&node["id"]), deps.collect());
    }
    let shipped = |it: &&Value| SHIPPED.contains(&it["name"].as_str().unwrap_or_default());
    let mut open: Vec<String> = packages
        .values()
        .copied()
        .filter(shipped)
        .map(|it| id(&it["id"]))
        .collect();
    let mut seen = BTreeSet::new();
    while let Some(next) = open.pop() {
        if seen.insert(next.clone()) {
            open.extend(needs.get(&next).into_iter().flatten().cloned());
        }
    }
    let theirs = seen.iter().filter_map(|id| packages.get(id));
    // Ours come by path.
    let theirs = theirs.filter(|it| !it["source"].is_null());
    let mut crates = theirs.map(|it| of(it)).collect::<Result<Vec<_>>>()?;
    crates.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    Ok(crates)
}

fn of(package: &Value) -> Result<Linked> {
    let word = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
    let manifest = word("manifest_path");
    let dir = Path::new(&manifest).parent().context("no directory")?;
    let mut files = Vec::new();
    for path in entries(dir)?.into_iter().filter(|path| is_licence(path)) {
        match path.is_dir() {
            // Where https://reuse.software has them.
            true => files.extend(entries(&path)?),
            false => files.push(path),
        }
    }
    files.sort();
    let texts = files.iter().map(fs::read_to_string);
    Ok(Linked {
        name: word("name"),
        version: word("version"),
        licence: word("license"),
        source: word("repository"),
        texts: texts.collect::<Result<_, _>>().context(manifest.clone())?,
    })
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| dir.display().to_string())?;
    let paths = entries.map(|entry| Ok(entry?.path()));
    paths.collect()
}

fn is_licence(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.to_lowercase();
    FILES.iter().any(|start| name.starts_with(start))
}

/// A line for each crate, then each text once, with the crates that it is of.
fn text(crates: &[Linked], font: Option<&str>) -> Result<String> {
    let mut out = String::from("pagetrail contains work of others, under these licences.\n\n");
    let mut texts: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for linked in crates {
        let name = format!("{} {}", linked.name, linked.version);
        ensure!(
            !linked.licence.is_empty() && !linked.texts.is_empty(),
            "{name} comes without a licence or its text; ask its authors, or do without it"
        );
        writeln!(out, "{name}: {}, {}", linked.licence, linked.source)?;
        for text in &linked.texts {
            texts.entry(text.trim()).or_default().push(name.clone());
        }
    }
    if font.is_some() {
        writeln!(out, "{}", FONT.1)?;
    }
    let rule = "=".repeat(80);
    for (text, names) in texts {
        writeln!(out, "\n{rule}\n{}\n{rule}\n\n{text}", names.join(", "))?;
    }
    if let Some(font) = font {
        writeln!(out, "\n{rule}\n{}\n{rule}\n\n{}", FONT.1, font.trim())?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_crate(name: &str, texts: &[&str]) -> Linked {
        Linked {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            licence: "MIT".to_owned(),
            source: "https://example.org".to_owned(),
            texts: texts.iter().map(|&text| text.to_owned()).collect(),
        }
    }

    #[test]
    fn each_text_stands_once_with_its_crates() {
        let crates = [
            a_crate("a", &["all rights\n"]),
            a_crate("b", &["all rights", "other"]),
        ];
        let text = text(&crates, Some("glyphs")).unwrap();
        assert_eq!(text.matches("all rights").count(), 1);
        assert!(text.contains("\na 1.0.0, b 1.0.0\n"), "{text}");
        assert!(text.ends_with("glyphs\n"), "{text}");
    }

    #[test]
    fn a_crate_without_its_licence_is_an_error() {
        let error = text(&[a_crate("a", &[])], None).unwrap_err().to_string();
        assert!(error.starts_with("a 1.0.0 comes without"), "{error}");
    }

    /// Tests, build scripts and our own crates are not what others must be named for.
    #[test]
    fn what_is_linked_is_found() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("LICENSE-MIT"), "words").unwrap();
        let manifest = dir.path().join("Cargo.toml");
        let package = |name: &str, source: Value| {
            serde_json::json!({
                "id": name, "name": name, "version": "1.0.0", "license": "MIT",
                "repository": "", "source": source, "manifest_path": manifest,
            })
        };
        let dep = |name: &str, kind: Value| serde_json::json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let registry = || Value::from("registry");
        let metadata = serde_json::json!({
            "packages": [
                package("pagetrail-cli", Value::Null), package("pagetrail", Value::Null),
                package("far", registry()), package("tester", registry()),
                package("xtask", Value::Null), package("builder", registry()),
            ],
            "resolve": { "nodes": [
                { "id": "pagetrail-cli", "deps": [
                    dep("pagetrail", Value::Null), dep("tester", "dev".into()),
                    dep("builder", "build".into()),
                ] },
                { "id": "pagetrail", "deps": [dep("far", Value::Null)] },
                { "id": "xtask", "deps": [dep("builder", Value::Null)] },
            ] },
        });
        let crates = linked(&metadata).unwrap();
        let names: Vec<&str> = crates.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["far"]);
        assert_eq!(crates[0].texts, ["words"]);
    }
}
