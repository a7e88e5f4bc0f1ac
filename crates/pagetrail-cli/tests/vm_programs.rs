//! Compares real programs as guests of KVM with native runs: their output, how they end, and the
//! files that they write.
//!
//! Needs a KVM that runs guests. The machine with nested virtualization that `cargo xtask test`
//! starts has one. A program that is not installed is named, and its test is skipped.

mod common;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use common::beside::{Beside, Form, program};
use common::guest::no_guest;
use common::{address, number, report, run};
use serde_json::Value;

/// A file of these tests.
fn script(name: &str) -> String {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let path: PathBuf = tests.join("vm_programs").join(name);
    path.to_str().expect("UTF-8").to_owned()
}

/// Writes lines of a number and a word, unsorted, and a tree of directories with one entry each,
/// whose order is unambiguous.
fn fill(directory: &Path) {
    let mut numbers = String::new();
    for n in 1..=3000 {
        let word = n * 7919 % 3001;
        writeln!(numbers, "{word} word{}", word % 97).expect("a text");
    }
    fs::write(directory.join("numbers"), numbers).expect("a file");
    let deep = directory.join("tree/a/b");
    fs::create_dir_all(&deep).expect("directories");
    fs::write(deep.join("leaf"), "a leaf\n").expect("a file");
}

/// Keys and values, in no order of the keys.
fn fill_with_words(directory: &Path) {
    let mut words = String::new();
    for n in 1..=500 {
        writeln!(words, "key{}\tvalue {}", n * 7919 % 501, n * n).expect("a text");
    }
    fs::write(directory.join("words.tsv"), words).expect("a file");
}

/// A script in whose pipes each program is a guest.
#[track_caller]
fn same_script(beside: &Beside, name: &str) {
    let path = script(name);
    beside.same_of(&[name], |form| {
        let words = [&["sh", &*path], form.words()].concat();
        Form::Natively.command(beside.directory(form), &words)
    });
}

#[test]
fn applets_of_busybox_write_what_they_write_natively() {
    if no_guest() {
        return;
    }
    let Some(busybox) = &program("busybox") else {
        return;
    };
    let beside = Beside::new(fill);
    let commands: [&[&str]; 13] = [
        &["sort", "-n", "-o", "sorted", "numbers"],
        &["sort", "-u", "-r", "-k2", "numbers"],
        &[
            "awk",
            "{ sum[$2] += $1 } END { for (w = 0; w < 97; w++) print w, sum[\"word\" w] > \"sums\"; exit 3 }",
            "numbers",
        ],
        &["gzip", "-k", "-9", "sorted"],
        &["gunzip", "-c", "sorted.gz"],
        &["bzip2", "numbers"],
        &["bunzip2", "numbers.bz2"],
        &["find", "tree", "-type", "f", "-exec", "wc", "-c", "{}", ";"],
        &["find", "tree", "-name", "leaf", "-delete"],
        &["find", "tree", "nowhere", "-depth"],
        &["sed", "-i", "s/word1/WORD/g", "numbers"],
        &["md5sum", "numbers"],
        &["no-such-applet"],
    ];
    for command in commands {
        beside.same(&[&[&**busybox], command].concat());
    }
}

#[test]
fn the_shell_of_busybox_runs_scripts() {
    if no_guest() {
        return;
    }
    let Some(busybox) = program("busybox") else {
        return;
    };
    let beside = Beside::new(|_| {});
    beside.same(&[&busybox, "sh", &script("applets.sh")]);
}

#[test]
fn bash_runs_scripts() {
    if no_guest() || program("bash").is_none() {
        return;
    }
    let beside = Beside::new(|_| {});
    beside.same(&["bash", &script("script.bash")]);
}

#[test]
fn pipes_of_guests_carry_what_they_carry_natively() {
    if no_guest() {
        return;
    }
    same_script(&Beside::new(|_| {}), "chain.sh");
}

#[test]
fn sqlite_makes_the_same_database() {
    if no_guest() || program("sqlite3").is_none() {
        return;
    }
    let beside = Beside::new(|_| {});
    let commands = format!(".read '{}'", script("database.sql"));
    beside.same(&["sqlite3", "words.db", &commands]);
    beside.same(&["sqlite3", "words.db", ".dump words"]);
    beside.same(&["sqlite3", "restored.db", ".read dump.sql"]);
    let twice = "INSERT INTO words VALUES (1, 'twice', 0.5)";
    beside.same(&["sqlite3", "restored.db", twice]);
    beside.same(&["sqlite3", "-bail", "words.db", ".read nowhere.sql"]);
}

#[test]
fn tokyo_cabinet_makes_the_same_databases() {
    if no_guest() || program("tchmgr").is_none() {
        return;
    }
    same_script(&Beside::new(fill_with_words), "tokyo_cabinet.sh");
}

#[test]
fn tkrzw_makes_the_same_databases() {
    if no_guest() || program("tkrzw_dbm_util").is_none() {
        return;
    }
    same_script(&Beside::new(fill_with_words), "tkrzw.sh");
}

/// A transaction of a database in memory holds 1 MiB of rows at once.
#[test]
fn a_recorded_sqlite_makes_the_same_database() {
    const ROW_BYTES: u64 = 1 << 20;
    if no_guest() || program("sqlite3").is_none() {
        return;
    }
    let beside = Beside::new(|_| {});
    let statements = "CREATE TABLE rows (id INTEGER PRIMARY KEY, text TEXT); \
                      WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1024) \
                      INSERT INTO rows SELECT i, printf('%01020d', i) FROM n; \
                      CREATE INDEX by_text ON rows (text); SELECT count(*), max(text) FROM rows;";
    let commands = ["sqlite3", "-cmd", "PRAGMA cache_size = -8000", "rows.db"];
    let commands = [&commands[..], &[statements]].concat();
    let native = beside.directory(Form::Natively);
    let native = Form::Natively.command(native, &commands).output();
    let native = native.expect("it starts");
    let trails = tempfile::tempdir().expect("a directory");
    let trail = trails.path().join("trail");
    let trail = trail.to_str().expect("UTF-8");
    let record = ["record", "--vm", "--interval", "50ms", "-o", trail, "--"];
    let guest = beside.directory(Form::AsGuest);
    let recorded = run(guest, &[&record[..], &commands].concat());
    assert_eq!(recorded.status, native.status, "{recorded:?}");
    assert_eq!(recorded.stdout, native.stdout, "{recorded:?}");
    beside.same_files(&commands);
    let report = report(guest, trail);
    assert_eq!(report["technique"], "kvm");
    assert_eq!(report["end"]["code"], 0);
    let pages = anonymous_pages(&report);
    assert!(ROW_BYTES / 4096 <= pages, "{pages} pages");
}

/// The number of distinct dirty pages that are in no file.
fn anonymous_pages(report: &Value) -> u64 {
    let mappings = report["mappings"].as_array().expect("mappings");
    let is_file = |mapping: &Value| mapping["name"].as_str().expect("a name").starts_with('/');
    let anonymous = mappings.iter().filter(|mapping| !is_file(mapping));
    let bounds = |mapping: &Value| address(&mapping["start"])..address(&mapping["end"]);
    let anonymous: Vec<_> = anonymous.map(bounds).collect();
    let mut written = BTreeSet::new();
    for round in report["rounds"].as_array().expect("rounds") {
        for range in round["ranges"].as_array().expect("ranges") {
            let first = address(&range["start"]);
            written.extend((0..number(&range["pages"])).map(|page| first + page * 4096));
        }
    }
    let is_anonymous = |page: &&u64| anonymous.iter().any(|range| range.contains(page));
    written.iter().filter(is_anonymous).count() as u64
}
