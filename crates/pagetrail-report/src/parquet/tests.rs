//! Tables of recordings that are made up; the tests of the command have an independent reader.

use super::*;
use crate::testing;

fn table(trail: &Trail) -> Vec<u8> {
    let mut out = Vec::new();
    write(&[(0, trail)], &mut out).expect("a Vec takes all");
    out
}

/// An independent reader checks whole files in the command's tests; here is what needs none.
#[test]
fn a_file_is_framed_and_holds_its_columns() {
    let bytes = table(&testing::program_with_stacks(20));
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
    let length = bytes.len();
    let footer = u32::from_le_bytes(bytes[length - 8..length - 4].try_into().expect("4 bytes"));
    assert!((footer as usize) < length - 12);
    let footer = &bytes[length - 8 - footer as usize..length - 8];
    for (name, _) in COLUMNS {
        let name = name.as_bytes();
        assert!(footer.windows(name.len()).any(|window| window == name));
    }
}

#[test]
fn pages_are_divided_where_their_writer_changes() {
    let writers = RoundWriters {
        round: Some(0),
        pieces: vec![
            (0, 2, 1, "a".into()),
            (4, 6, 2, "b".into()),
            (6, 20, 3, "c".into()),
        ],
    };
    let split = |first, pages| {
        let mut parts = Vec::new();
        writers
            .split(first, pages, |first, pages, writer| {
                parts.push((first, pages, writer.map(|(thread, _)| thread)));
                Ok(())
            })
            .expect("nothing fails");
        parts
    };
    let expected = [
        (1, 1, Some(1)),
        (2, 2, None),
        (4, 2, Some(2)),
        (6, 4, Some(3)),
    ];
    assert_eq!(split(1, 9), expected);
    assert_eq!(split(30, 2), [(30, 2, None)]);
    assert_eq!(split(18, 4), [(18, 2, Some(3)), (20, 2, None)]);
}

#[test]
fn no_trail_is_too_strange() {
    assert!(table(&testing::program(0)).ends_with(b"PAR1"));
    let mut trail = testing::program_with_stacks(4);
    trail.header.started_unix_ms = u64::MAX;
    trail.rounds[1].start_ns = u64::MAX;
    trail.rounds[2].written = [pagetrail::PageRange::new(5, u64::MAX).expect("not empty")]
        .into_iter()
        .collect();
    trail.mappings[0].name = "\0\u{1b}".repeat(1000);
    if let Some(attribution) = &mut trail.rounds[0].attribution {
        attribution.writers[0].stack = 99;
    }
    assert!(table(&trail).ends_with(b"PAR1"));
}
