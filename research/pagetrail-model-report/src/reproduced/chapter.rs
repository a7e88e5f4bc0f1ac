//! A paper as a chapter of Markdown, with a picture of each table.

use std::io::{self, Write};

use super::{Document, LEGEND, Reproduced, chart, summary};

/// A chapter of Markdown about a paper.
#[derive(Debug)]
pub struct Chapter<'a> {
    document: &'a Document,
    /// One entry for each table: a picture, if the table has values.
    pictures: Vec<Option<Picture>>,
}

/// A picture of a table, which the chapter expects beside it.
#[derive(Debug)]
pub struct Picture {
    /// The name of its file.
    pub name: String,
    /// What is drawn.
    pub svg: String,
}

impl<'a> Chapter<'a> {
    /// Draws the pictures.
    pub fn new(document: &'a Document) -> Self {
        let picture = |(number, table)| {
            Some(Picture {
                svg: chart::svg(table)?,
                name: format!("{}-{number:02}.svg", document.paper),
            })
        };
        Self {
            document,
            pictures: (1_u32..).zip(&document.tables).map(picture).collect(),
        }
    }

    /// The pictures.
    pub fn pictures(&self) -> impl Iterator<Item = &Picture> {
        self.pictures.iter().flatten()
    }

    /// Writes the text, which names the pictures.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let Document { paper, title, .. } = self.document;
        writeln!(
            out,
            "<!-- Made by `pagetrail model reproduce {paper} --report`; changes are lost. -->\n\n# {title}\n\n{LEGEND}"
        )?;
        writeln!(
            out,
            "\nWhat stands beside each table and figure:\n\n| | model | measured |\n|---|---|---|"
        )?;
        for (number, beside) in summary::of(self.document) {
            let words = [number, beside.model_words(), beside.measured_words()];
            let [number, model, measured] = words.map(|words| cell(&words));
            writeln!(out, "| {number} | {model} | {measured} |")?;
        }
        for (table, picture) in self.document.tables.iter().zip(&self.pictures) {
            let name = picture.as_ref().map(|picture| picture.name.as_str());
            section(table, name, out)?;
        }
        Ok(())
    }
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
    use super::*;
    use crate::reproduced::testing;
    use pagetrail_model::reproduce::catalog::Paper;
    use std::collections::BTreeSet;

    #[test]
    fn a_chapter_shows_all_that_the_text_has() {
        let document = testing::table(Paper::Hmmv, 3);
        let chapter = Chapter::new(&document);
        let mut text = Vec::new();
        chapter.write(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
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
        let (summary, tables) = text.split_once("## ").unwrap();
        assert!(
            summary.contains("| Table 3 | fitted, simulated | - |"),
            "{summary}"
        );
        let rows = tables.lines().filter(|line| line.starts_with("| "));
        let widths: BTreeSet<usize> = rows.map(columns).collect();
        assert_eq!(widths.len(), 1, "{text}");
        let picture = chapter.pictures().next().unwrap();
        assert_eq!(picture.name, "hmmv-01.svg");
        // The bars of the paper, of the simulator, the ground, and the legend.
        assert_eq!(picture.svg.matches("<rect").count(), 4 * 7 + 1 + 3);
        assert!(picture.svg.contains(" % (simulated)") && !picture.svg.contains("NaN"));
    }
}
