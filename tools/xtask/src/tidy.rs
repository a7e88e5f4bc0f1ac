//! `cargo xtask tidy`: the cheap checks of the house over all files of the repository.
//!
//! Each finding is one line: where, what, and the cure. What a compiler lint can say is left to
//! the lints in the workspace manifest.

mod language;
mod links;
mod rules;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::capi::header;
use pagetrail_steps::repo::Repo;

/// Prints what it finds; true if there is nothing.
pub(crate) fn run(repo: &Repo) -> Result<bool> {
    let mut findings = Vec::new();
    let mut files = 0;
    for path in list(&repo.root)? {
        let Some(file) = File::read(&repo.root, path)? else {
            continue;
        };
        files += 1;
        rules::check(&file, &mut findings);
        links::check(&repo.root, &file, &mut findings);
    }
    rules::check_code_map(&repo.root, &mut findings)?;
    if !header::is_fresh(&repo.root)? {
        let path = header::path(&repo.root);
        findings.push(Finding {
            path: path.strip_prefix(&repo.root)?.display().to_string(),
            line: 1,
            what: "not what the sources make; run cargo xtask generate".to_owned(),
        });
    }
    for finding in &findings {
        println!("{finding}");
    }
    println!("{} findings in {files} files", findings.len());
    Ok(findings.is_empty())
}

/// A text file of the repository.
struct File {
    /// Relative to the root, with `/`.
    path: String,
    text: String,
}

impl File {
    /// None for what is not text, or is gone.
    fn read(root: &Path, path: String) -> Result<Option<Self>> {
        let full = root.join(&path);
        if !full.is_file() {
            return Ok(None);
        }
        let text = String::from_utf8(fs::read(full)?).ok();
        let text = text.filter(|text| !text.contains('\0'));
        Ok(text.map(|text| Self { path, text }))
    }

    fn has_extension(&self, extensions: &[&str]) -> bool {
        let extension = Path::new(&self.path).extension();
        extension.is_some_and(|own| extensions.iter().any(|other| own == *other))
    }

    /// The lines with their numbers, from 1.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text
            .lines()
            .zip(1..)
            .map(|(line, number)| (number, line))
    }

    fn finding(&self, line: usize, what: impl Into<String>) -> Finding {
        Finding {
            path: self.path.clone(),
            line,
            what: what.into(),
        }
    }
}

/// Something to mend.
#[derive(Debug)]
struct Finding {
    path: String,
    line: usize,
    /// What is wrong, and the cure.
    what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// The files of the repository, committed or about to be, relative to the root.
fn list(root: &Path) -> Result<Vec<String>> {
    let git = Command::new("git")
        // Another user's clone, as CI makes them, is fine to list.
        .args(["-c", "safe.directory=*", "ls-files", "-z"])
        .args(["--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output();
    match git {
        Ok(output) if output.status.success() => {
            let names = String::from_utf8_lossy(&output.stdout);
            let names = names.split('\0').filter(|name| !name.is_empty());
            Ok(names.map(str::to_owned).collect())
        }
        // A source archive is no clone.
        _ => walk(root),
    }
}

/// All files below `root` but what is hidden or built.
fn walk(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut todo = vec![PathBuf::new()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(root.join(&dir))? {
            let entry = entry?;
            let name = entry.file_name();
            if name.as_encoded_bytes().starts_with(b".") || name == "target" {
                continue;
            }
            let path = dir.join(name);
            match entry.file_type()?.is_dir() {
                true => todo.push(path),
                false => found.push(path.display().to_string()),
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_walked() {
        let dir = tempfile::tempdir().unwrap();
        for sub in ["src/sys", "target", ".git"] {
            fs::create_dir_all(dir.path().join(sub)).unwrap();
            fs::write(dir.path().join(sub).join("a.rs"), "").unwrap();
        }
        assert_eq!(walk(dir.path()).unwrap(), ["src/sys/a.rs"]);
    }

    #[test]
    fn binary_files_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), b"a\0b").unwrap();
        fs::write(dir.path().join("b"), b"\xff\xfe").unwrap();
        for name in ["a", "b", "gone"] {
            assert!(File::read(dir.path(), name.to_owned()).unwrap().is_none());
        }
    }
}
