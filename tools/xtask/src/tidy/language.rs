//! The rules of `docs/style.md` that a program can check: words of a private dialect, width of
//! comments, doc comments and safety comments that cannot be read alone.

use super::rules::words_at;
use super::{File, Finding};

const COMMENT_COLUMNS: usize = 100;

/// Words that the field does not use for what they were used for here, and the cure. They count as
/// words of their own, and as parts of identifiers. In halves, so that this file may be checked.
const DIALECT: &[(&str, &str)] = &[
    (concat!("to", "ld"), "say what is reported, dirty or known"),
    (concat!("boo", "ks"), "metadata, table, state or accounting"),
    (concat!("presu", "med"), "predicted (dirty)"),
    (concat!("presump", "tion"), "prediction"),
    (concat!("har", "vest"), "collect"),
    (concat!("har", "vested"), "collected"),
    (concat!("fel", "low"), "name the thread or process"),
    (concat!("fel", "lows"), "name the threads or processes"),
    (concat!("fare", "well"), "final round, exit notice"),
    (concat!("pati", "ence"), "timeout"),
    (concat!("PATI", "ENCE"), "TIMEOUT"),
    (concat!("ow", "ed"), "pending"),
    (
        concat!("who", "ever"),
        "name the caller, or 'the process that'",
    ),
    (concat!("rob", "bed"), "cleared by another process"),
];

/// Phrases of that dialect; see [`DIALECT`].
const PHRASES: &[(&str, &str)] = &[
    (concat!("in ", "vain"), "false positive, without effect"),
    (
        concat!("asked ", "about"),
        "sampled, re-protected, looked up",
    ),
    (concat!("given ", "up"), "untracked"),
    (
        concat!("nobo", "dy's"),
        "name the state: passed through, unowned",
    ),
];

/// How a text asks for a flag of the command.
const FLAGS: &[&str] = &["use --", "pass --", "with --", "or --", "give --"];

/// How a doc comment that needs its neighbour begins.
const DEPENDENT: &[&str] = &["The same", "Also ", "Those ", "Of these", "Of those"];

/// Safety comments that give no reason.
const THIN: &[&str] = &[
    "as above",
    "numbers",
    "as the caller promises",
    "the same",
    "see above",
];

/// The file that lists the words themselves, and one that is generated.
const EXEMPT: &[&str] = &["docs/style.md", "Cargo.lock"];

/// Comments of Rust files: their width, doc comments that begin without a subject, thin reasons.
pub(super) fn check_comments(file: &File, findings: &mut Vec<Finding>) {
    let mut before = "";
    for (number, line) in file.lines() {
        let text = line.trim_start();
        if text.starts_with("//") {
            let breakable = text.trim_start_matches(['/', '!', ' ']).contains(' ')
                && !text.contains("://")
                && !text.starts_with("/// |")
                && !text.starts_with("//! |");
            if breakable && line.chars().count() > COMMENT_COLUMNS {
                let what = format!("a comment over {COMMENT_COLUMNS} columns; wrap it");
                findings.push(file.finding(number, what));
            }
            check_beginning(file, number, before, text, findings);
            check_reason(file, number, text, findings);
        }
        before = text;
    }
}

fn check_beginning(
    file: &File,
    number: usize,
    before: &str,
    text: &str,
    findings: &mut Vec<Finding>,
) {
    let Some(doc) = text.strip_prefix("/// ") else {
        return;
    };
    let continues = before.starts_with("///");
    if let Some(word) = DEPENDENT.iter().find(|word| doc.starts_with(**word))
        && !continues
    {
        let what = format!("a doc comment that begins with '{word}'; name its subject");
        findings.push(file.finding(number, what));
    }
}

fn check_reason(file: &File, number: usize, text: &str, findings: &mut Vec<Finding>) {
    let Some((_, reason)) = text.split_once("SAFETY: ") else {
        return;
    };
    let reason = reason.trim_end_matches(['.', ';']).to_lowercase();
    if THIN.contains(&reason.as_str()) {
        let what = "SAFETY without a reason; say which rule is met, and by what";
        findings.push(file.finding(number, what));
    }
}

/// Words and phrases of the private dialect, in any text of the repository.
pub(super) fn check_words(file: &File, findings: &mut Vec<Finding>) {
    if EXEMPT.contains(&file.path.as_str()) {
        return;
    }
    let library = file.path.starts_with("crates/")
        && file.path.contains("/src/")
        && !file.path.starts_with("crates/pagetrail-cli/");
    for (number, line) in file.lines() {
        let code = !line.trim_start().starts_with("//");
        if library && code && FLAGS.iter().any(|flag| line.contains(flag)) {
            let what = "a library's text names a flag of the command; name what to choose";
            findings.push(file.finding(number, what));
        }
        for (word, cure) in DIALECT {
            if in_parts(line, word) {
                findings.push(file.finding(number, format!("'{word}'; {cure}")));
            }
        }
        let lower = line.to_lowercase();
        for (phrase, cure) in PHRASES {
            if words_at(&lower, phrase).next().is_some() {
                findings.push(file.finding(number, format!("'{phrase}'; {cure}")));
            }
        }
    }
}

/// Whether `word` is a word of the line, or of an identifier in it, in small letters or camel case.
fn in_parts(line: &str, word: &str) -> bool {
    let mut capital = word.to_owned();
    capital[..1].make_ascii_uppercase();
    let begins = |at: usize, word: &str| {
        word.starts_with(|c: char| c.is_uppercase()) || !line[..at].ends_with(char::is_alphanumeric)
    };
    let ends = |at: usize, word: &str| {
        let after = &line[at + word.len()..];
        !after.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
    };
    [word, &capital].into_iter().any(|word| {
        line.match_indices(word)
            .any(|(at, _)| begins(at, word) && ends(at, word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<usize> {
        let file = File {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let mut findings = Vec::new();
        check_comments(&file, &mut findings);
        check_words(&file, &mut findings);
        findings.iter().map(|finding| finding.line).collect()
    }

    const NONE: [usize; 0] = [];

    #[test]
    fn words_count_alone_and_in_identifiers() {
        for line in [
            concat!("struct To", "ldOf;"),
            concat!("fn was_to", "ld()"),
            concat!("it is to", "ld."),
            concat!("To", "ld"),
        ] {
            assert_eq!(findings("a.rs", line), [1], "{line}");
        }
        for line in ["stolde", "notebooks", "unfolded", "toldeo"] {
            assert_eq!(findings("a.rs", line), NONE, "{line}");
        }
    }

    #[test]
    fn phrases_count_in_any_text() {
        assert_eq!(findings("a.md", concat!("Reported In ", "vain.")), [1]);
        assert_eq!(findings("docs/style.md", concat!("in ", "vain")), NONE);
    }

    #[test]
    fn wide_comments_are_found_unless_nothing_can_be_broken() {
        let wide = format!("// {}\n", "word ".repeat(20));
        assert_eq!(findings("a.rs", &wide), [1]);
        let address = format!("// https://{}\n", "a".repeat(100));
        assert_eq!(findings("a.rs", &address), NONE);
    }

    #[test]
    fn doc_comments_name_their_subject() {
        assert_eq!(findings("a.rs", "/// The same, twice.\n"), [1]);
        assert_eq!(findings("a.rs", "/// A page.\n/// The same page.\n"), NONE);
    }

    #[test]
    fn libraries_name_no_flags() {
        let line = "    \"it is full; use --force\"";
        assert_eq!(findings("crates/a/src/a.rs", line), [1]);
        assert_eq!(findings("crates/pagetrail-cli/src/a.rs", line), NONE);
    }

    #[test]
    fn safety_comments_give_reasons() {
        assert_eq!(findings("a.rs", "// SAFETY: as above.\n"), [1]);
        assert_eq!(
            findings("a.rs", "// SAFETY: the descriptor is open.\n"),
            NONE
        );
    }
}
