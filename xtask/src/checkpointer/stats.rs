//! CRIU's `stats-dump` image: what a dump took. A magic number, another, the length of a message of protocol buffers, and
//! that message (`images/stats.proto` in CRIU's sources).

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
