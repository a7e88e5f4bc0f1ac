//! `model reproduce --report`: a paper as a chapter of Markdown, with a picture of each table.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::reproduced::{Document, LEGEND, Reproduced};
use super::reproduced_chart as chart;
use crate::outfile::{Kind, OutFile};

/// A folder for a chapter and its pictures.
pub(super) struct Chapter {
    directory: PathBuf,
    text: OutFile,
}

impl Chapter {
    /// Makes the folder and opens the chapter, early: before the work whose result it is to hold.
    pub(super) fn open(directory: &Path, paper: &str) -> Result<Self> {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let text = OutFile::open(&directory.join(format!("{paper}.md")), Kind::Page)?;
        Ok(Self {
            directory: directory.to_owned(),
            text,
        })
    }

    /// Writes the chapter and its pictures.
    pub(super) fn write(self, document: &Document) -> Result<()> {
        let mut pictures = Vec::new();
        for (number, table) in (1..).zip(&document.tables) {
            let picture = chart::svg(table);
            let name = picture
                .as_ref()
                .map(|_| format!("{}-{number:02}.svg", document.paper));
            if let (Some(picture), Some(name)) = (picture, &name) {
                let file = OutFile::open(&self.directory.join(name), Kind::Page)?;
                file.write(|out| out.write_all(picture.as_bytes()))?;
            }
            pictures.push(name);
        }
        self.text.write(|out| write(document, &pictures, out))
    }
}

fn write(document: &Document, pictures: &[Option<String>], out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "<!-- Made by `pagetrail model reproduce {} --report`; changes are lost. -->\n\n# {}\n\n{LEGEND}",
        document.paper, document.title
    )?;
    for (table, picture) in document.tables.iter().zip(pictures) {
        section(table, picture.as_deref(), out)?;
    }
    Ok(())
}

fn section(table: &Reproduced, picture: Option<&str>, out: &mut dyn Write) -> io::Result<()> {
    let heading = table.heading();
    writeln!(out, "\n## {heading}\n\n{}\n", table.about())?;
    writeln!(out, "**{}.**", cell(&table.verdict()))?;
    if let Some(picture) = picture {
        writeln!(out, "\n![{heading}]({picture})")?;
    }
    if let Some((sheet, notes)) = table.sheet() {
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|text| cell(text)).collect();
            format!("| {} |", cells.join(" | "))
        };
        writeln!(out, "\n{}", line(&sheet.heads))?;
        let rule: Vec<String> = (0..sheet.heads.len())
            .map(|column| if column < sheet.labels { "---" } else { "---:" }.to_owned())
            .collect();
        writeln!(out, "|{}|", rule.join("|"))?;
        for row in &sheet.rows {
            writeln!(out, "{}", line(row))?;
        }
        if !notes.is_empty() {
            writeln!(out)?;
        }
        for (note, number) in notes.iter().zip(1..) {
            writeln!(out, "{number}. {}", cell(note))?;
        }
    }
    let statements: Vec<String> = table.statements().collect();
    if !statements.is_empty() {
        writeln!(out)?;
    }
    for statement in statements {
        writeln!(out, "- {}", cell(&statement))?;
    }
    Ok(())
}

/// Text that is neither a column nor markup.
fn cell(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '|' | '*' | '_' | '<' | '[' | ']' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::reproduced;
    use super::super::reproduced_page::testing;
    use super::*;
    use pagetrail_model::reproduce::catalog::Paper;

    #[test]
    fn a_chapter_shows_all_that_the_text_has() {
        let here = tempfile::tempdir().unwrap();
        let directory = here.path().join("new/chapter");
        let arguments = testing::arguments(Paper::Hmmv, Some(3));
        let document = reproduced::make(&arguments, |_| {}).unwrap();
        Chapter::open(&directory, "hmmv")
            .unwrap()
            .write(&document)
            .unwrap();
        let text = std::fs::read_to_string(directory.join("hmmv.md")).unwrap();
        for part in [
            "## Table 3",
            "![Table 3](hmmv-01.svg)",
            "fitted",
            "simulated: cargo xtask bench tier",
            "\\[1\\]",
        ] {
            assert!(text.contains(part), "no {part} in {text}");
        }
        let columns = |line: &str| line.matches(" | ").count();
        let rows = text.lines().filter(|line| line.starts_with("| "));
        let widths: std::collections::BTreeSet<usize> = rows.map(columns).collect();
        assert_eq!(widths.len(), 1, "{text}");
        let picture = std::fs::read_to_string(directory.join("hmmv-01.svg")).unwrap();
        // The bars of the paper, of the simulator, the ground, and the legend.
        assert_eq!(picture.matches("<rect").count(), 4 * 7 + 1 + 3);
        assert!(picture.contains("3.973 % (simulated)") && !picture.contains("NaN"));
        // What is no chapter is not overwritten.
        let other = directory.join("ooh.md");
        std::fs::write(&other, "# mine\n").unwrap();
        assert!(Chapter::open(&directory, "ooh").is_err());
    }
}
