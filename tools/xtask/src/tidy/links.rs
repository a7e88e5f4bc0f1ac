//! Links in Markdown files that lead to no file.
//!
//! Addresses on the web are not followed: this check is offline and always gives the same answer.

use std::path::Path;

use super::{File, Finding};

/// Checks inline links, `[text](target)`, and definitions, `[label]: target`.
pub(super) fn check(root: &Path, file: &File, findings: &mut Vec<Finding>) {
    if !file.has_extension(&["md"]) {
        return;
    }
    let dir = Path::new(&file.path).parent().unwrap_or(Path::new(""));
    let mut fenced = false;
    for (number, line) in file.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for target in targets(line) {
            let Some(path) = local_path(target) else {
                continue;
            };
            if !root.join(dir).join(path).exists() {
                let what = format!("links to {path}, which does not exist; mend the link");
                findings.push(file.finding(number, what));
            }
        }
    }
}

fn targets(line: &str) -> Vec<&str> {
    let mut targets = Vec::new();
    let mut rest = line;
    while let Some((_, after)) = rest.split_once("](") {
        let (target, after) = after.split_once(')').unwrap_or((after, ""));
        targets.push(target);
        rest = after;
    }
    if line.starts_with('[')
        && let Some((_, target)) = line.split_once("]: ")
    {
        targets.push(target);
    }
    targets
}

/// The path of a link into the repository, without anchor and title.
fn local_path(target: &str) -> Option<&str> {
    let target = target.split_whitespace().next()?;
    let target = target.trim_start_matches('<').trim_end_matches('>');
    let path = target.split('#').next()?;
    let elsewhere = target.contains("://") || target.starts_with("mailto:");
    (!elsewhere && !path.is_empty()).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_dead_links_only() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("docs")).unwrap();
        std::fs::write(dir.path().join("docs/format.md"), "").unwrap();
        let text = "\
[a](format.md#magic) and [b](../docs/format.md \"title\") [c](https://example.org/x) [d](#here)
![e](gone.png) and [f](mailto:me)
[g]: format.md
[h]: gone.md
```
[i](gone-too.md)
```
";
        let file = File {
            path: "docs/index.md".to_owned(),
            text: text.to_owned(),
        };
        let mut findings = Vec::new();
        check(dir.path(), &file, &mut findings);
        let lines: Vec<usize> = findings.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [2, 4]);
        let expected = "docs/index.md:2: links to gone.png, which does not exist; mend the link";
        assert_eq!(findings[0].to_string(), expected);
    }
}
