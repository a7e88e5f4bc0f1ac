//! The programs of the Open POSIX Test Suite: which files they are of, and how they are compiled.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

/// What only a machine of one's own may be asked for: another time of day, and threads that take
/// the processor from all others.
const NOT_HERE: [&str; 4] = ["clock_settime", "settimeofday", "SCHED_FIFO", "SCHED_RR"];

/// A test of the suite.
#[derive(Debug)]
pub(super) struct Program {
    /// Its interface and its number, as `sigwait/1-1`.
    pub(super) name: String,
    pub(super) path: PathBuf,
    source: PathBuf,
    include: PathBuf,
}

/// The tests of an interface, in the order of their names.
pub(super) fn of(suite: &Path, built: &Path, interface: &str) -> Result<Vec<Program>> {
    let directory = suite.join("conformance/interfaces").join(interface);
    let entries = fs::read_dir(&directory)
        .with_context(|| format!("the suite has no {}", directory.display()))?;
    let mut programs = Vec::new();
    for entry in entries {
        let source = entry?.path();
        let stem = source.file_stem().unwrap_or_default().to_string_lossy();
        let is_source = source.extension().is_some_and(|extension| extension == "c");
        if !is_source || !is_number(&stem) {
            continue;
        }
        let text = fs::read(&source)?;
        let text = String::from_utf8_lossy(&text);
        if NOT_HERE.iter().any(|word| text.contains(word)) {
            continue;
        }
        programs.push(Program {
            name: format!("{interface}/{stem}"),
            path: built.join(format!("{interface}_{stem}")),
            include: suite.join("include"),
            source,
        });
    }
    programs.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    Ok(programs)
}

/// Tests are named by the number of the assertion and their own; the rest is what they share.
fn is_number(stem: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    stem.split_once('-')
        .is_some_and(|(assertion, test)| digits(assertion) && digits(test))
}

impl Program {
    /// Compiles it, unless that was done; false if this compiler or libc does not take it.
    pub(super) fn compile(&self) -> Result<bool> {
        if self.exists() {
            return Ok(true);
        }
        let built = self.path.parent().context("a program is in a directory")?;
        fs::create_dir_all(built)?;
        let fresh = self.path.with_extension("fresh");
        let mut compiler = Command::new("cc");
        compiler.args(["-w", "-O1", "-std=gnu99", "-D_GNU_SOURCE", "-fcommon", "-I"]);
        compiler.arg(&self.include).arg("-o").arg(&fresh);
        compiler.arg(&self.source).args(["-pthread", "-lrt", "-lm"]);
        compiler.stdin(Stdio::null()).stderr(Stdio::null());
        let compiles = compiler.status().context("cannot run cc")?.success();
        if compiles {
            fs::rename(&fresh, &self.path)?;
        }
        Ok(compiles)
    }

    pub(super) fn exists(&self) -> bool {
        self.path.exists()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tests_are_listed_and_none_that_changes_the_machine() {
        let suite = tempfile::tempdir().unwrap();
        let directory = suite.path().join("conformance/interfaces/raise");
        fs::create_dir_all(&directory).unwrap();
        let files = [
            ("2-1.c", "int main(void) { return 0; }"),
            ("1-2.c", "int main(void) { return 1; }"),
            ("3-1.c", "clock_settime(CLOCK_REALTIME, &t);"),
            ("testfrmw.c", ""),
            ("1-1-buildonly.c", ""),
            ("1-1.sh", ""),
        ];
        for (name, text) in files {
            fs::write(directory.join(name), text).unwrap();
        }
        let programs = of(suite.path(), Path::new("/nowhere"), "raise").unwrap();
        let names: Vec<_> = programs.iter().map(|program| &*program.name).collect();
        assert_eq!(names, ["raise/1-2", "raise/2-1"]);
        assert!(of(suite.path(), Path::new("/nowhere"), "kill").is_err());
    }
}
