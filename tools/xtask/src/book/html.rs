//! The book as HTML, by mdBook, and whether all that its pages refer to is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use pagetrail_rig::mdbook;
use pagetrail_steps::repo::program;
use pagetrail_steps::steps::{NotHere, Outcome};

use super::{files, joined};

/// Pages that are no chapters: the chapters once more, and one for addresses that do not exist.
const NO_CHAPTERS: &[&str] = &["print.html", "404.html", "toc.html"];

/// Makes HTML of the staged book in `book`, by the mdBook of this machine or else Debian's.
pub(super) fn build(book: &Path) -> Result<Outcome> {
    let mut mdbook = match program("mdbook") {
        Some(mdbook) => Command::new(mdbook),
        None => match mdbook::command() {
            Err(error) if error.is::<NotHere>() => {
                println!("no HTML: {error}");
                return Ok(Outcome::NotHere(error.to_string()));
            }
            command => command?,
        },
    };
    let status = mdbook.arg("build").arg(book).status()?;
    ensure!(status.success(), "mdbook build failed: {status}");
    let pages = book.join("book");
    let lost = lost_references(&pages)?;
    for reference in &lost {
        println!("{reference}");
    }
    println!("open {}", pages.join("index.html").display());
    Ok(Outcome::of(lost.is_empty()))
}

/// What chapters refer to, by links and pictures, and is not there; a line each.
fn lost_references(pages: &Path) -> Result<Vec<String>> {
    let is_chapter = |name: &PathBuf| {
        let is_page = name
            .extension()
            .is_some_and(|extension| extension == "html");
        is_page && !NO_CHAPTERS.iter().any(|other| name == Path::new(other))
    };
    let names = files(pages)?;
    let mut texts = BTreeMap::new();
    for name in names.iter().filter(|name| is_chapter(name)) {
        texts.insert(name.clone(), fs::read_to_string(pages.join(name))?);
    }
    let anchors: BTreeMap<&PathBuf, BTreeSet<&str>> = texts
        .iter()
        .map(|(name, text)| (name, values(text, " id=\"").collect()))
        .collect();
    let names: BTreeSet<PathBuf> = names.into_iter().collect();
    let mut lost = Vec::new();
    for (name, text) in &texts {
        let text = chapter(text);
        for target in values(text, " href=\"").chain(values(text, " src=\"")) {
            if target.contains(':') || target.starts_with("//") {
                // Elsewhere, or in the page itself.
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let wanted = match path {
                "" => name.clone(),
                path => joined(name, path),
            };
            let has_anchor = anchors
                .get(&wanted)
                .is_none_or(|anchors| anchor.is_empty() || anchors.contains(anchor));
            if !names.contains(&wanted) || !has_anchor {
                lost.push(format!("{}: nothing is at {target}", name.display()));
            }
        }
    }
    Ok(lost)
}

/// What of a page is ours. The frame around it is mdBook's own; Debian's refers to a script and to
/// fonts that its package leaves out, without which pages can be read all the same.
fn chapter(text: &str) -> &str {
    let inner = text.split_once("<main>").map_or(text, |(_, rest)| rest);
    inner
        .split_once("</main>")
        .map_or(inner, |(inner, _)| inner)
}

/// The values of an attribute, given as ` name="`.
fn values<'a>(text: &'a str, attribute: &'a str) -> impl Iterator<Item = &'a str> {
    let parts = text.split(attribute).skip(1);
    parts.filter_map(|rest| Some(rest.split_once('"')?.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_page_refers_to_must_be_there() {
        let scratch = tempfile::tempdir().unwrap();
        let pages = scratch.path();
        fs::create_dir(pages.join("how")).unwrap();
        let first = r##"<script src="frame.js"></script><main><h1 id="top">x</h1> <a href="how/a.html#here">a</a> <a href="#top">x</a>
            <a href="https://example.org/#x">e</a> <img src="picture.svg"></main><a href="frame.html">"##;
        fs::write(pages.join("index.html"), first).unwrap();
        fs::write(
            pages.join("how/a.html"),
            r#"<h2 id="here"><a href="../index.html">i</a>"#,
        )
        .unwrap();
        fs::write(pages.join("print.html"), r#"<a href="nowhere.html">"#).unwrap();
        let lost = lost_references(pages).unwrap();
        assert_eq!(lost, ["index.html: nothing is at picture.svg"]);
        fs::write(pages.join("picture.svg"), "").unwrap();
        assert!(lost_references(pages).unwrap().is_empty());
        fs::write(
            pages.join("how/a.html"),
            r#"<a href="../index.html#gone">i</a>"#,
        )
        .unwrap();
        let lost = lost_references(pages).unwrap();
        let expected = [
            "how/a.html: nothing is at ../index.html#gone",
            "index.html: nothing is at how/a.html#here",
        ];
        assert_eq!(lost, expected);
    }
}
