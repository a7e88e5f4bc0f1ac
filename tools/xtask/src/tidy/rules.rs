//! The rules that look at one file at a time, and the one that compares the code map with the
//! crates.

use std::fs;
use std::path::Path;

use anyhow::Result;

use super::{File, Finding, language};

const LINES_MAX: usize = 500;
const LINES_MAX_TESTS: usize = 700;

/// Words that stand for work not done. In two halves, so that this file may be checked as well.
const UNFINISHED: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];

/// Paths of somebody's machine, in two halves as well.
const PRIVATE_PATHS: &[&str] = &[concat!("/ro", "ot/"), concat!("/ho", "me/")];

const PLAIN_HTTP: &str = concat!("http:", "//");

/// Addresses that are names, or this machine: nothing is fetched in the clear.
const HARMLESS_HTTP: &[&str] = &["www.w3.org/", "localhost", "127.0.0.1"];

/// Files whose bytes are given from outside.
const VERBATIM: &[&str] = &["snap", "patch"];

/// All rules for one file.
pub(super) fn check(file: &File, findings: &mut Vec<Finding>) {
    if file.has_extension(&["rs"]) {
        check_length(file, findings);
        check_module_doc(file, findings);
        check_unsafe(file, findings);
        check_ignore(file, findings);
        language::check_comments(file, findings);
    }
    language::check_words(file, findings);
    check_whitespace(file, findings);
    check_words(file, findings);
}

fn check_length(file: &File, findings: &mut Vec<Finding>) {
    let max = if is_test(file) {
        LINES_MAX_TESTS
    } else {
        LINES_MAX
    };
    let code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
    let lines = file.text.lines().filter(code).count();
    if lines > max {
        let what = format!(
            "{lines} lines of code, at most {max}; split it where its reasons to change part"
        );
        findings.push(file.finding(1, what));
    }
}

fn check_module_doc(file: &File, findings: &mut Vec<Finding>) {
    if !file.text.starts_with("//!") {
        let what = "no module doc; begin with `//!` and what the file promises";
        findings.push(file.finding(1, what));
    }
}

fn check_unsafe(file: &File, findings: &mut Vec<Finding>) {
    if is_test(file) || file.path.contains("/sys/") || file.path.ends_with("/sys.rs") {
        return;
    }
    // An example that measures bare system calls says so at its top.
    let bare =
        file.path.contains("/examples/") && file.text.contains("#![allow(unsafe_code, reason");
    for (number, line) in file.lines().filter(|_| !bare) {
        let code = line.split("//").next().unwrap_or(line);
        if has_unsafe(code) {
            findings.push(file.finding(
                number,
                "`unsafe` outside sys/; move it behind a safe function there",
            ));
        }
    }
}

/// The keyword before what it can stand before: a block, a function, an impl, a trait, a foreign
/// block, an attribute.
fn has_unsafe(code: &str) -> bool {
    let follows = |after: &str| {
        let next = after.trim_start();
        after.starts_with('(')
            || next.starts_with('{')
            || after != next
                && ["fn ", "impl", "trait ", "extern"]
                    .iter()
                    .any(|word| next.starts_with(word))
    };
    words_at(code, "unsafe").any(|at| follows(&code[at + "unsafe".len()..]))
}

fn check_ignore(file: &File, findings: &mut Vec<Finding>) {
    for (number, line) in file.lines() {
        if line.trim() == "#[ignore]" {
            findings.push(file.finding(
                number,
                "ignored without a reason; write #[ignore = \"why\"]",
            ));
        }
    }
}

fn check_whitespace(file: &File, findings: &mut Vec<Finding>) {
    if file.has_extension(VERBATIM) {
        return;
    }
    let tabs_allowed = file.path.ends_with("Makefile");
    for (number, line) in file.lines() {
        if line.contains('\t') && !tabs_allowed {
            findings.push(file.finding(number, "a tab; use blanks"));
        }
        if line.ends_with([' ', '\t']) {
            findings.push(file.finding(number, "blanks at the end of the line; remove them"));
        }
    }
}

fn check_words(file: &File, findings: &mut Vec<Finding>) {
    let code = file.has_extension(&["rs", "c", "h", "toml", "sh", "py"]);
    for (number, line) in file.lines() {
        for word in UNFINISHED {
            if words_at(line, word).next().is_some() {
                let what = format!("{word}; do it, or open an issue");
                findings.push(file.finding(number, what));
            }
        }
        for path in PRIVATE_PATHS {
            if line.contains(path) {
                let what =
                    format!("{path}: a path of one machine; use a relative or a temporary one");
                findings.push(file.finding(number, what));
            }
        }
        if code && has_plain_http(line) {
            let what = format!("{PLAIN_HTTP} in code; use https");
            findings.push(file.finding(number, what));
        }
    }
}

fn has_plain_http(line: &str) -> bool {
    line.match_indices(PLAIN_HTTP).any(|(at, _)| {
        let host = &line[at + PLAIN_HTTP.len()..];
        let harmless = HARMLESS_HTTP
            .iter()
            .any(|harmless| host.starts_with(harmless));
        host.starts_with(char::is_alphanumeric) && !harmless
    })
}

/// ARCHITECTURE.md must name the directory of every crate.
pub(super) fn check_code_map(root: &Path, findings: &mut Vec<Finding>) -> Result<()> {
    let map = File {
        path: "ARCHITECTURE.md".to_owned(),
        text: fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap_or_default(),
    };
    let mut crates = Vec::new();
    for house in ["crates", "research", "tools"] {
        let Ok(entries) = fs::read_dir(root.join(house)) else {
            continue;
        };
        for entry in entries {
            let entry = entry?;
            if entry.path().join("Cargo.toml").exists() {
                crates.push(format!("{house}/{}", entry.file_name().display()));
            }
        }
    }
    crates.sort();
    for name in crates {
        if words_at(&map.text, &name).next().is_none() {
            let what = format!("the code map lacks {name}; say in a line what it is for");
            findings.push(map.finding(1, what));
        }
    }
    Ok(())
}

fn is_test(file: &File) -> bool {
    let tests = |part: &str| matches!(part, "tests" | "tests.rs" | "fuzz");
    file.path.split('/').any(tests)
}

/// Where `word` stands in `text` as a word of its own: no letter, digit, `_` or `-` beside it.
pub(super) fn words_at<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let inside = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    text.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |&at| {
            !text[..at].ends_with(inside) && !text[at + word.len()..].starts_with(inside)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    /// The lines at which `text`, as the file `path`, is at fault.
    fn lines(path: &str, text: &str) -> Vec<usize> {
        let file = File {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let mut findings = Vec::new();
        check(&file, &mut findings);
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_fine_file_is_fine() {
        assert_eq!(lines("src/a.rs", "//! Doc.\nfn f() {}\n"), NONE);
        assert_eq!(lines("README.md", "# Name\n"), NONE);
    }

    #[test]
    fn long_files() {
        let text = |lines: usize| format!("//! Doc.\n\n{}", "f();\n".repeat(lines));
        assert_eq!(lines("src/a.rs", &text(500)), NONE);
        assert_eq!(lines("src/a.rs", &text(501)), [1]);
        assert_eq!(lines("crates/a/tests/a.rs", &text(700)), NONE);
        assert_eq!(lines("crates/a/tests/a.rs", &text(701)), [1]);
        assert_eq!(lines("a.c", &text(1000)), NONE);
        let comments = "//! Doc.\n".repeat(1000);
        assert_eq!(lines("src/a.rs", &comments), NONE);
    }

    #[test]
    fn missing_module_doc() {
        assert_eq!(lines("src/a.rs", "fn f() {}\n"), [1]);
        assert_eq!(lines("src/a.rs", ""), [1]);
    }

    #[test]
    fn unsafe_belongs_in_sys() {
        const KEYWORD: &str = "unsafe";
        let block = format!("{KEYWORD} {{ f() }}");
        let text = format!("//! Doc of {block}.\n{block}\n// {block}\nlet {KEYWORD}_fn = 1;\n");
        assert_eq!(lines("crates/a/src/a.rs", &text), [2]);
        assert_eq!(lines("crates/a/src/sys/a.rs", &text), NONE);
        assert_eq!(lines("crates/a/tests/a.rs", &text), NONE);
        for after in [
            " fn f()",
            "  extern \"C\" fn f()",
            " impl Send for A {}",
            "{ }",
            "(no_mangle)",
        ] {
            assert!(has_unsafe(&format!("pub {KEYWORD}{after}")), "{after}");
        }
        for after in ["_code)", " to do so", "-looking {"] {
            assert!(!has_unsafe(&format!("it is {KEYWORD}{after}")), "{after}");
        }
    }

    #[test]
    fn ignored_tests_say_why() {
        let text = "//! Doc.\n    #[ignore]\n    #[ignore = \"needs a guest\"]\n";
        assert_eq!(lines("src/a.rs", text), [2]);
    }

    #[test]
    fn whitespace() {
        assert_eq!(lines("a.c", "a\tb\nc \nd\n\te\n"), [1, 2, 4]);
        assert_eq!(lines("Makefile", "all:\n\tcc\n"), NONE);
        assert_eq!(lines("a.snap", "c \n"), NONE);
    }

    #[test]
    fn unfinished_work() {
        for word in UNFINISHED {
            assert_eq!(lines("a.md", &format!("a {word}: b\n")), [1]);
            assert_eq!(lines("a.md", &format!("mktemp a.{word}{word}\n")), NONE);
        }
    }

    #[test]
    fn paths_and_addresses() {
        for path in PRIVATE_PATHS {
            assert_eq!(lines("a.md", &format!("see {path}x\n")), [1]);
        }
        let text = |host: &str| format!("# {PLAIN_HTTP}{host}\n");
        assert_eq!(lines("a.sh", &text("example.org")), [1]);
        assert_eq!(lines("a.md", &text("example.org")), NONE);
        assert_eq!(lines("a.sh", &text("www.w3.org/2000/svg")), NONE);
        assert_eq!(lines("a.sh", &text("localhost:80/")), NONE);
        assert_eq!(lines("a.rs", &format!("//! {:?}\n", PLAIN_HTTP)), NONE);
    }

    #[test]
    fn the_code_map_names_every_crate() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["pagetrail", "pagetrail-cli", "empty"] {
            fs::create_dir_all(dir.path().join("crates").join(name)).unwrap();
            if name != "empty" {
                fs::write(dir.path().join("crates").join(name).join("Cargo.toml"), "").unwrap();
            }
        }
        let map = dir.path().join("ARCHITECTURE.md");
        let mut findings = Vec::new();
        fs::write(&map, "`crates/pagetrail-cli`").unwrap();
        check_code_map(dir.path(), &mut findings).unwrap();
        assert_eq!(findings.len(), 1, "pagetrail is not named by pagetrail-cli");
        fs::write(&map, "`crates/pagetrail`, `crates/pagetrail-cli`").unwrap();
        findings.clear();
        check_code_map(dir.path(), &mut findings).unwrap();
        assert!(findings.is_empty());
    }
}
