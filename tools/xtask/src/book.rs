//! `cargo xtask book`: the book of docs/book, whole: included documents, the command reference,
//! links.
//!
//! The chapters are staged in `target/book/src`, so that a chapter may be a document that stands
//! elsewhere in the repository. Links between such documents become links between chapters; a link
//! to a file that is no chapter becomes its text. mdBook makes HTML of that, where it is installed
//! or can be fetched.

mod html;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use pagetrail_steps::products::{Product, Profile};
use pagetrail_steps::repo::Repo;
use pagetrail_steps::steps::Outcome;

/// Where the chapters are, in the repository.
const SOURCE: &str = "docs/book/src";
/// The chapter that is made from the command's own definitions.
const COMMANDS: &str = "reference/commands.md";

/// Stages the book, checks it, and makes HTML of it where mdBook is to be had.
pub(crate) fn build(repo: &Repo) -> Result<Outcome> {
    let book = repo.target.join("book");
    let stage = book.join("src");
    if stage.exists() {
        fs::remove_dir_all(&stage)?;
    }
    let chapters = chapters(&repo.root)?;
    for (name, origin) in &chapters {
        let text = fs::read_to_string(repo.root.join(&origin.file))?;
        let text = with_links(&text, name, &origin.file, &chapters);
        write(&stage.join(name), &text)?;
    }
    for name in pictures(&repo.root.join(SOURCE))? {
        let to = stage.join(&name);
        fs::create_dir_all(to.parent().context("no directory")?)?;
        fs::copy(repo.root.join(SOURCE).join(&name), to)?;
    }
    fs::copy(
        repo.root.join(SOURCE).join("SUMMARY.md"),
        stage.join("SUMMARY.md"),
    )?;
    fs::copy(
        repo.root.join("docs/book/book.toml"),
        book.join("book.toml"),
    )?;
    append_commands(repo, &stage.join(COMMANDS))?;
    check_summary(&stage, &chapters)?;
    println!("staged in {}", stage.display());
    html::build(&book)
}

/// Files of the book that are no chapters, relative to its source.
fn pictures(source: &Path) -> Result<Vec<PathBuf>> {
    let files = files(source)?.into_iter();
    Ok(files.filter(|name| !is_chapter(name)).collect())
}

fn is_chapter(name: &Path) -> bool {
    name.extension().is_some_and(|extension| extension == "md")
}

/// All files below a folder, relative to it.
fn files(source: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut dirs = vec![source.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir)? {
            let path = entry?.path();
            match path.is_dir() {
                true => dirs.push(path),
                false => files.push(path.strip_prefix(source)?.to_owned()),
            }
        }
    }
    Ok(files)
}

/// Where a chapter's text is.
struct Origin {
    /// Relative to the repository's root.
    file: PathBuf,
    included: bool,
}

/// All chapters by their place in the book.
type Chapters = BTreeMap<PathBuf, Origin>;

fn chapters(root: &Path) -> Result<Chapters> {
    let source = root.join(SOURCE);
    let mut chapters = Chapters::new();
    for name in files(&source)? {
        if name == Path::new("SUMMARY.md") || !is_chapter(&name) {
            continue;
        }
        let text = fs::read_to_string(source.join(&name))?;
        let here = Path::new(SOURCE).join(&name);
        let included = include_of(&text).map(|target| joined(&here, target));
        let origin = Origin {
            included: included.is_some(),
            file: included.unwrap_or(here),
        };
        chapters.insert(name, origin);
    }
    Ok(chapters)
}

/// The document that a chapter consists of, if it is nothing but an include.
fn include_of(text: &str) -> Option<&str> {
    let target = text.trim().strip_prefix("{{#include ")?;
    target
        .strip_suffix("}}")
        .filter(|target| !target.contains('\n'))
}

/// `target` as seen from the directory of `file`, without `..`.
fn joined(file: &Path, target: &str) -> PathBuf {
    let mut path = file.parent().map(Path::to_owned).unwrap_or_default();
    for component in Path::new(target).components() {
        match component {
            Component::ParentDir => drop(path.pop()),
            Component::Normal(part) => path.push(part),
            _ => {}
        }
    }
    path
}

/// The way from the directory of the chapter `from` to the chapter `to`.
fn way(from: &Path, to: &Path) -> String {
    let up = from.components().count() - 1;
    format!("{}{}", "../".repeat(up), to.display())
}

/// The text of chapter `name`, whose words stand in `file`, with links that lead within the book.
fn with_links(text: &str, name: &Path, file: &Path, chapters: &Chapters) -> String {
    let mut out = String::with_capacity(text.len());
    let mut fenced = false;
    for line in text.lines() {
        fenced ^= line.trim_start().starts_with("```");
        match fenced {
            true => out.push_str(line),
            false => push_line(&mut out, line, name, file, chapters),
        }
        out.push('\n');
    }
    out
}

fn push_line(out: &mut String, line: &str, name: &Path, file: &Path, chapters: &Chapters) {
    let mut rest = line;
    while let Some(middle) = rest.find("](") {
        let (Some(start), Some(length)) = (rest[..middle].rfind('['), rest[middle..].find(')'))
        else {
            break;
        };
        let (words, target) = (&rest[start + 1..middle], &rest[middle + 2..middle + length]);
        out.push_str(&rest[..start]);
        // A picture beside its chapter stays where it is.
        match rest[..start].ends_with('!') && file.starts_with(SOURCE) {
            true => out.push_str(&rest[start..=middle + length]),
            false => out.push_str(&link(words, target, name, file, chapters)),
        }
        rest = &rest[middle + length + 1..];
    }
    out.push_str(rest);
}

fn link(words: &str, target: &str, name: &Path, file: &Path, chapters: &Chapters) -> String {
    let (path, anchor) = target
        .split_once('#')
        .map_or((target, ""), |(path, a)| (path, a));
    if path.is_empty() || target.contains("://") {
        return format!("[{words}]({target})");
    }
    let wanted = joined(file, path);
    let place = wanted.strip_prefix(SOURCE).ok().map(Path::to_owned);
    let place = place
        .filter(|place| chapters.contains_key(place))
        .or_else(|| {
            let mut included = chapters.iter().filter(|(_, origin)| origin.included);
            included
                .find(|(_, origin)| origin.file == wanted)
                .map(|(place, _)| place.clone())
        });
    let anchor = if anchor.is_empty() {
        String::new()
    } else {
        format!("#{anchor}")
    };
    match place {
        Some(place) => format!("[{words}]({}{anchor})", way(name, &place)),
        // Not in the book: say where it is in the repository.
        None if words.contains(path.trim_start_matches("../")) => words.to_owned(),
        None => format!("{words} (`{}`)", wanted.display()),
    }
}

/// Adds the reference that the command writes about itself.
fn append_commands(repo: &Repo, page: &Path) -> Result<()> {
    let out = repo.target.join("book/generated");
    let mut generate = Command::new(Product::Command.build(repo, Profile::Dev)?);
    let status = generate.arg("generate").arg(&out).status()?;
    ensure!(status.success(), "pagetrail generate failed: {status}");
    let mut text = fs::read_to_string(page)?;
    text.push('\n');
    text.push_str(&fs::read_to_string(out.join("markdown/commands.md"))?);
    write(page, &text)
}

/// Each chapter is in the table of contents, and each of its lines leads to a chapter.
fn check_summary(stage: &Path, chapters: &Chapters) -> Result<()> {
    let summary = fs::read_to_string(stage.join("SUMMARY.md"))?;
    let listed: Vec<&str> = summary
        .split("](")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once(')')?.0))
        .collect();
    for name in &listed {
        if !chapters.contains_key(Path::new(name)) {
            bail!("SUMMARY.md lists {name}, which does not exist");
        }
    }
    for name in chapters.keys() {
        let name = name.to_str().context("a chapter's name is not UTF-8")?;
        ensure!(listed.contains(&name), "{name} is not in SUMMARY.md");
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::create_dir_all(path.parent().context("no directory")?)?;
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_chapters_or_become_text() {
        let chapter = |name: &str, file: &str| {
            let included = !file.starts_with(SOURCE);
            let file = file.into();
            (PathBuf::from(name), Origin { file, included })
        };
        let chapters: Chapters = [
            chapter("guide/vm.md", "docs/book/src/guide/vm.md"),
            chapter("reference/trail.md", "docs/trail-format.md"),
        ]
        .into();
        let of = |text: &str, name: &str, file: &str| {
            with_links(text, Path::new(name), Path::new(file), &chapters)
        };
        let guide = "docs/book/src/guide/vm.md";
        let text = "[a](../reference/trail.md#magic) [b](https://example.org) [c](#here)\n";
        assert_eq!(of(text, "guide/vm.md", guide), text);
        let text = "see [the format](../../../trail-format.md) and [it](../../../../README.md).\n";
        let expected = "see [the format](../reference/trail.md) and it (`README.md`).\n";
        assert_eq!(of(text, "guide/vm.md", guide), expected);
        let text = "![a picture](picture.svg), [the format](../../../trail-format.md)\n";
        let expected = "![a picture](picture.svg), [the format](../reference/trail.md)\n";
        assert_eq!(of(text, "guide/vm.md", guide), expected);
        let text = "```\n[x](gone.md)\n```\n[guide](book/src/guide/vm.md)\n";
        let expected = "```\n[x](gone.md)\n```\n[guide](../guide/vm.md)\n";
        assert_eq!(
            of(text, "reference/trail.md", "docs/trail-format.md"),
            expected
        );
    }
}
