//! CRIU's `stats-dump` image: what a dump took. A magic number, another, the length of a message of
//! protocol buffers, and that message (`images/stats.proto` in CRIU's sources).

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// The numbers of the fields of `dump_stats_entry` that are wanted.
const FIELDS: &[(u64, &str)] = &[
    (1, "freezing_us"),
    (2, "frozen_us"),
    (3, "memdump_us"),
    (4, "memwrite_us"),
    (5, "pages_scanned"),
    (6, "pages_skipped_parent"),
    (7, "pages_written"),
];

/// The figures of one dump.
pub(super) fn read(path: &Path) -> Result<Value> {
    let image = fs::read(path).with_context(|| path.display().to_string())?;
    parse(&image).with_context(|| format!("{} is no image of CRIU's figures", path.display()))
}

fn parse(image: &[u8]) -> Option<Value> {
    let mut message = image.get(12..)?;
    // The only field: the figures of a dump, a message within.
    (varint(&mut message)? == 1 << 3 | 2).then_some(())?;
    let length = varint(&mut message)? as usize;
    let mut message = message.get(..length)?;
    let mut figures = json!({});
    while !message.is_empty() {
        let key = varint(&mut message)?;
        (key & 7 == 0).then_some(())?;
        let value = varint(&mut message)?;
        if let Some((_, name)) = FIELDS.iter().find(|(number, _)| *number == key >> 3) {
            figures[*name] = json!(value);
        }
    }
    Some(figures)
}

/// One run for each of what was run several times, with the medians of its figures.
pub(super) fn medians(runs: &[Value]) -> Vec<Value> {
    let mut found: Vec<Value> = Vec::new();
    for run in runs {
        let is_same = |other: &&Value| {
            (&other["bits"], &other["mebibytes"]) == (&run["bits"], &run["mebibytes"])
        };
        if found.iter().any(|known| is_same(&known)) {
            continue;
        }
        let same: Vec<Value> = runs.iter().filter(is_same).cloned().collect();
        found.push(median_of(&same));
    }
    found
}

/// The first of several runs, with the median of all of them in place of each of its numbers.
pub(super) fn median_of(runs: &[Value]) -> Value {
    let [first, ..] = runs else {
        return Value::Null;
    };
    let at = |step: &dyn Fn(&Value) -> Option<Value>| {
        median_of(&runs.iter().filter_map(step).collect::<Vec<_>>())
    };
    match first {
        Value::Object(fields) => {
            let names = fields.keys();
            let medians = names.map(|name| (name.clone(), at(&|run| run.get(name).cloned())));
            Value::Object(medians.collect())
        }
        Value::Array(elements) => {
            let numbers = 0..elements.len();
            numbers.map(|i| at(&|run| run.get(i).cloned())).collect()
        }
        Value::Number(_) => {
            let mut all: Vec<u64> = runs.iter().filter_map(Value::as_u64).collect();
            all.sort_unstable();
            all.get(all.len() / 2)
                .map_or(first.clone(), |middle| json!(middle))
        }
        other => other.clone(),
    }
}

/// Takes a number of seven bits a byte, the lowest first.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_has_its_own_median() {
        let run = |bits: &str, ms: u64, written: u64| {
            let phase = json!({"phase": "dump", "ms": ms, "pages_written": written});
            json!({"bits": bits, "mebibytes": 64, "phases": [phase]})
        };
        let runs = [
            run("a", 5, 1),
            run("b", 7, 2),
            run("a", 1, 9),
            run("a", 3, 4),
        ];
        assert_eq!(medians(&runs), [run("a", 3, 4), run("b", 7, 2)]);
        let alone = [9, 2, 5].map(|ms| json!({"alone_ms": ms, "phases": []}));
        assert_eq!(median_of(&alone), json!({"alone_ms": 5, "phases": []}));
        assert_eq!(median_of(&[]), Value::Null);
    }

    #[test]
    fn reads_the_fields_that_are_wanted() {
        let image = [
            &[0; 8][..],
            &[9, 0, 0, 0],
            &[0x0a, 7, 0x18, 0xac, 0x02, 0x38, 5, 0x58, 1],
        ]
        .concat();
        let figures = parse(&image).unwrap();
        assert_eq!(figures, json!({"memdump_us": 300, "pages_written": 5}));
        assert_eq!(parse(&image[..18]), None);
        assert_eq!(parse(b""), None);
    }
}
