//! The ABI as the linker has it: what the shared library exports must be what the version script
//! and the header name, no more and no less.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::header;

/// What is wrong with the symbols, a line each.
pub(super) fn findings(root: &Path, library: &Path) -> Result<Vec<String>> {
    let header = fs::read_to_string(header::path(root))?;
    let declared: BTreeSet<String> = header::functions(&header).into_iter().collect();
    let script = fs::read_to_string(header::crate_dir(root).join("pagetrail.map"))?;
    let exported = exported(library)?;
    Ok(compare(&declared, &versions(&script), &exported))
}

fn name(symbol: &str) -> &str {
    symbol.split('@').next().unwrap_or(symbol)
}

/// The symbols that a program can link to, as `name@@VERSION`.
fn exported(library: &Path) -> Result<BTreeSet<String>> {
    let output = Command::new("nm")
        .args([
            "--dynamic",
            "--just-symbols",
            "--with-symbol-versions",
            "--defined-only",
        ])
        .arg(library)
        .output()
        .context("cannot run nm")?;
    ensure!(output.status.success(), "nm failed: {}", output.status);
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// The symbols of a version script, as `name@@VERSION`.
fn versions(script: &str) -> BTreeSet<String> {
    let mut version = "";
    let mut found = BTreeSet::new();
    for line in script.lines().map(str::trim) {
        if let Some(node) = line.strip_suffix(" {") {
            version = node;
        } else if let Some(symbol) = line.strip_suffix(';')
            && symbol.starts_with("pagetrail_")
        {
            found.insert(format!("{symbol}@@{version}"));
        }
    }
    found
}

fn compare(
    declared: &BTreeSet<String>,
    script: &BTreeSet<String>,
    exported: &BTreeSet<String>,
) -> Vec<String> {
    let mut findings = Vec::new();
    let named: BTreeSet<String> = script.iter().map(|symbol| name(symbol).into()).collect();
    for lacking in declared.difference(&named) {
        findings.push(format!(
            "pagetrail.map lacks {lacking}, which the header declares"
        ));
    }
    for surplus in named.difference(declared) {
        findings.push(format!(
            "pagetrail.map has {surplus}, which the header lacks"
        ));
    }
    // The version itself is an absolute symbol.
    let is_version = |symbol: &&String| !name(symbol).starts_with("PAGETRAIL_");
    for lacking in script.difference(exported) {
        findings.push(format!("the library does not export {lacking}"));
    }
    for surplus in exported.difference(script).filter(is_version) {
        findings.push(format!("the library exports {surplus}"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(words: &[&str]) -> BTreeSet<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn agreement_is_no_finding() {
        let script = versions("V_1 {\n global:\n  pagetrail_a;\n local:\n  *;\n};\n");
        assert_eq!(script, set(&["pagetrail_a@@V_1"]));
        let exported = set(&["pagetrail_a@@V_1", "PAGETRAIL_0@@PAGETRAIL_0"]);
        assert!(compare(&set(&["pagetrail_a"]), &script, &exported).is_empty());
    }

    #[test]
    fn each_difference_is_one() {
        let script = set(&["pagetrail_b@@V", "pagetrail_c@@V"]);
        let exported = set(&["pagetrail_b@@V", "rust_eh_personality"]);
        let found = compare(&set(&["pagetrail_a", "pagetrail_b"]), &script, &exported);
        assert_eq!(found.len(), 4, "{found:?}");
    }
}
