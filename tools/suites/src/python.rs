//! Python's own tests: which of them other programs are tried with, and an interpreter that has
//! them.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Result;

use pagetrail_steps::steps::NotHere;

/// Of what allocates most, and of threads and forks.
pub(crate) const TESTS: &[&str] = &[
    "test_dict",
    "test_list",
    "test_json",
    "test_sqlite3",
    "test_threading",
    "test_fork1",
];

/// The interpreter itself: what stands in `PATH` may be a script that looks for it.
pub(crate) fn find() -> Result<PathBuf> {
    let found = ["python3", "/usr/bin/python3"]
        .into_iter()
        .find_map(|python| {
            let mut asked = Command::new(python);
            asked.args([
                "-c",
                "import test.test_dict, test.test_sqlite3, sqlite3, sys; print(sys.executable)",
            ]);
            let asked = asked.stdin(Stdio::null()).stderr(Stdio::null()).output();
            let output = asked.ok().filter(|output| output.status.success())?;
            let path = String::from_utf8(output.stdout).ok()?;
            // Its tests say which versions they are of when they are imported.
            path.lines().last().map(PathBuf::from)
        });
    found.ok_or_else(|| NotHere::error("apt-get install libpython3-testsuite"))
}
