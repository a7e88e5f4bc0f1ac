//! How a test that ends early says that this machine lacks what it needs, so that it is counted as
//! skipped: to Rust's harness it has passed.
//!
//! `cargo xtask test` reads the lines, one JSON object each, in a file of its own among the rows of
//! the table: `{"where":"this machine","skipped":"tests/x.rs, name","reason":".."}`.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::panic::Location;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

/// Says that the test of this thread does not run here, and why; the test then returns.
///
/// # Panics
///
/// If `PAGETRAIL_ROWS` names no directory in which a file can be written.
#[track_caller]
#[allow(clippy::print_stderr, reason = "what is not tested is said")]
pub fn not_here(why: impl Display) {
    let why = why.to_string();
    eprintln!("not here: {why}");
    let Some(directory) = std::env::var_os("PAGETRAIL_ROWS") else {
        return;
    };
    let place = std::env::var("PAGETRAIL_WHERE").unwrap_or_else(|_| "this machine".into());
    let line = line(&place, &test(Location::caller()), &why);
    let file = format!("skipped-{}", std::process::id());
    let file = Path::new(&directory).join(file);
    let file = OpenOptions::new().create(true).append(true).open(file);
    file.and_then(|mut file| file.write_all(line.as_bytes()))
        .expect("PAGETRAIL_ROWS must be a directory");
}

/// The test's name: that of its thread, where it has one of its own.
fn test(place: &Location<'_>) -> String {
    static NAMELESS: AtomicU32 = AtomicU32::new(1);
    let program = std::env::args().next().unwrap_or_default();
    let program = Path::new(&program).file_name().unwrap_or_default();
    let program = program.to_string_lossy();
    // Cargo adds a hash.
    let suite = program.rsplit_once('-').map_or(&*program, |(name, _)| name);
    match std::thread::current().name() {
        Some(name) if name != "main" => format!("{suite}, {name}"),
        _ => {
            let number = NAMELESS.fetch_add(1, Ordering::Relaxed);
            format!("{suite}, number {number} at {place}")
        }
    }
}

fn line(place: &str, test: &str, why: &str) -> String {
    let [place, test, why] = [place, test, why].map(json);
    format!("{{\"where\":{place},\"skipped\":{test},\"reason\":{why}}}\n")
}

/// The text as a string of JSON (RFC 8259, section 7).
fn json(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c < ' ' => quoted += &format!("\\u{:04x}", u32::from(c)),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_json_whatever_it_says() {
        let expected =
            "{\"where\":\"here\",\"skipped\":\"a, b\",\"reason\":\"no \\\"x\\\\\\u000ay\"}\n";
        assert_eq!(line("here", "a, b", "no \"x\\\ny"), expected);
    }

    #[test]
    fn a_test_is_named_by_its_thread() {
        let thread = std::thread::Builder::new().name("mine".to_owned());
        let name = thread.spawn(|| test(Location::caller())).unwrap();
        assert_eq!(name.join().unwrap(), "pagetrail_skips, mine");
    }
}
