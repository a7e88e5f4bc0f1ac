//! `pagetrail(3)`, the man page of the C library, made from the header: its introduction, and each
//! function with its comment. A build product like the other man pages.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::header;

/// Writes `pagetrail.3` to `dir`.
pub(crate) fn write(root: &Path, dir: &Path) -> Result<()> {
    let header = fs::read_to_string(header::path(root))?;
    let path = dir.join("pagetrail.3");
    fs::write(&path, page(&header, &super::version(root)?))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn page(header: &str, version: &str) -> String {
    let mut out = format!(
        ".TH pagetrail 3 \"\" \"pagetrail {version}\"\n\
         .SH NAME\npagetrail \\- track which memory a program writes, from C\n\
         .SH LIBRARY\npagetrail (libpagetrail, \\-lpagetrail), by pkg\\-config(1): pagetrail\n\
         .SH SYNOPSIS\n.nf\n#include <pagetrail.h>\n.fi\n.SH DESCRIPTION\n"
    );
    let mut items = items(header).into_iter();
    if let Some((introduction, _)) = items.next() {
        // Its first lines say what the file is, which the page has said.
        let from = introduction
            .iter()
            .position(|line| line.starts_with("    "));
        paragraphs(&mut out, &introduction[from.unwrap_or(0)..]);
    }
    out.push_str(
        ".PP\nTypes and constants are described where they are defined, in pagetrail.h.\n",
    );
    out.push_str(".SH FUNCTIONS\n");
    let is_function = |code: &str| code.ends_with(");") && !code.starts_with("typedef");
    for (comment, code) in items.filter(|(_, code)| is_function(code)) {
        out.push_str(".PP\n.nf\n");
        for line in code.lines() {
            let _ = writeln!(out, ".B {}", escape(line));
        }
        out.push_str(".fi\n.RS\n");
        paragraphs(&mut out, &comment);
        out.push_str(".RE\n");
    }
    out.push_str(
        ".SH SEE ALSO\n.BR pagetrail (1),\n.BR userfaultfd (2),\n.BR proc_pid_pagemap (5)\n",
    );
    out
}

/// Each comment, and the declaration that follows it up to a blank line.
fn items(header: &str) -> Vec<(Vec<String>, String)> {
    let mut found = Vec::new();
    let mut lines = header.lines();
    while let Some(line) = lines.next() {
        if !line.starts_with("/*") {
            continue;
        }
        let mut comment = Vec::new();
        for line in lines.by_ref() {
            if line.ends_with("*/") {
                break;
            }
            let text = line.strip_prefix(" *").unwrap_or(line);
            comment.push(text.strip_prefix(' ').unwrap_or(text).to_owned());
        }
        let code: Vec<&str> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
        found.push((comment, code.join("\n")));
    }
    found
}

/// Text in paragraphs; lines that begin with blanks stand as they are.
fn paragraphs(out: &mut String, lines: &[String]) {
    let mut verbatim = false;
    for line in lines {
        if line.starts_with("    ") != verbatim {
            verbatim = !verbatim;
            out.push_str(if verbatim { ".PP\n.nf\n" } else { ".fi\n" });
        }
        match line.is_empty() {
            true => out.push_str(".PP\n"),
            false => {
                let _ = writeln!(out, "{}", escape(line));
            }
        }
    }
    if verbatim {
        out.push_str(".fi\n");
    }
}

/// For roff: backslashes and hyphens, and a control character at the start of a line.
fn escape(line: &str) -> String {
    let text = line.replace('\\', "\\e").replace('-', "\\-");
    match text.starts_with(['.', '\'']) {
        true => format!("\\&{text}"),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_on_the_page_and_types_are_not() {
        let header = "/*\n * File.\n *\n *     code-1\n *\n * Intro.\n */\n\n\
                      /**\n * A type.\n */\ntypedef struct {\n    /** f() */\n    int a;\n} t;\n\n\
                      /**\n * Does it.\n * .dot\n */\nint pagetrail_do(int a,\n                 int b);\n\n";
        let page = page(header, "1.2.3");
        assert!(
            page.contains(".PP\n.nf\n    code\\-1\n.fi\n.PP\nIntro.\n"),
            "{page}"
        );
        assert!(page.contains(".B int pagetrail_do(int a,\n"));
        assert!(page.contains("Does it.\n\\&.dot\n"));
        assert!(!page.contains("A type.") && !page.contains("File."));
    }
}
