//! Cut off anywhere, a trail reads up to its last whole round; damaged anywhere, it says where.

mod common;

use common::forge;
use pagetrail_trail::{ReadError, Reader, Trail};

/// What must be read when only the first `whole` bytes of the small trail are left.
fn assert_reads_up_to(small: &common::Written, bytes: &[u8], whole: usize) {
    let result = Trail::read(bytes);
    if whole < small.record_ends[0] {
        assert!(matches!(result, Err(ReadError::NoHeader)), "cut at {whole}");
        return;
    }
    let trail = result.unwrap_or_else(|error| panic!("cut at {whole}: {error}"));
    let rounds = small.round_ends.iter().filter(|end| **end <= whole).count();
    assert_eq!(trail.header, small.trail.header);
    assert_eq!(trail.rounds, small.trail.rounds[..rounds], "cut at {whole}");
    assert_eq!(trail.is_cut_off(), whole < small.bytes.len());
    let mut reader = Reader::open(bytes).unwrap();
    while reader.next_record().unwrap().is_some() {}
    let ends = small.record_ends.iter().filter(|end| **end <= whole);
    assert_eq!(reader.offset(), *ends.max().unwrap() as u64);
}

#[test]
fn cut_at_every_byte() {
    let small = common::small();
    for length in 0..=small.bytes.len() {
        assert_reads_up_to(&small, &small.bytes[..length], length);
    }
}

#[test]
fn zeros_behind_a_cut_are_a_cut() {
    let small = common::small();
    for length in forge::PROLOGUE_BYTES..small.bytes.len() {
        // Zeros that were written anyway are no cut.
        let zeros = small.bytes[length..].iter().take_while(|byte| **byte == 0);
        let whole = length + zeros.count();
        if whole == small.bytes.len() {
            continue;
        }
        // Fewer could be a checksum that ends in zeros; see the next test.
        for padding in [8, 9, 100, 100_000] {
            let mut bytes = small.bytes[..length].to_vec();
            bytes.resize(length + padding, 0);
            if length + padding >= whole {
                assert_reads_up_to(&small, &bytes, whole);
            }
        }
    }
}

#[test]
fn a_few_zeros_or_zeros_before_something_else_are_damage() {
    let small = common::small();
    let last_round = small.round_ends[1];
    for length in [last_round, last_round + 3, last_round + 20] {
        let mut bytes = small.bytes[..length].to_vec();
        bytes.resize(length + 5000, 0);
        bytes.push(1);
        let error = Trail::read(&bytes[..]).unwrap_err();
        assert!(matches!(error, ReadError::Damaged { .. }), "{error}");
    }
    // The checksum of the last record loses its last bytes: that is damage and no cut.
    let mut bytes = small.bytes.clone();
    let length = bytes.len();
    bytes[length - 4..].fill(0);
    let error = Trail::read(&bytes[..]).unwrap_err();
    assert!(matches!(error, ReadError::Damaged { .. }), "{error}");
}

#[test]
fn every_flipped_byte_is_found_and_placed() {
    let small = common::small();
    let whole = Reader::open(&small.bytes[..]).unwrap();
    let records = all_records(whole).0;
    for (position, mask) in (0..small.bytes.len()).flat_map(|at| {
        (0..8)
            .map(move |bit| (at, 1 << bit))
            .chain([(at, 0xff), (at, 0x5a)])
    }) {
        let mut bytes = small.bytes.clone();
        bytes[position] ^= mask;
        let error = Trail::read(&bytes[..]).unwrap_err();
        let begin = match position {
            0..8 => {
                assert!(matches!(error, ReadError::NotATrail), "{error}");
                continue;
            }
            8..16 => 8,
            _ => {
                let ends = small.record_ends.iter().filter(|end| **end <= position);
                ends.max().copied().unwrap_or(16)
            }
        };
        let ReadError::Damaged { offset, .. } = error else {
            panic!("byte {position} mask {mask:#x}: {error}");
        };
        assert!(
            (begin as u64..=position as u64).contains(&offset),
            "byte {position} mask {mask:#x}: {error}"
        );
        // What comes before the damage is still to be had, one by one.
        if let Ok(reader) = Reader::open(&bytes[..]) {
            let (before, failed) = all_records(reader);
            assert!(failed);
            assert_eq!(before, records[..before.len()]);
            let whole = small
                .record_ends
                .iter()
                .filter(|end| **end <= position)
                .count();
            assert_eq!(before.len() + 1, whole);
        }
    }
}

/// The records up to the end, the cut or the damage, and whether it was damage.
fn all_records(mut reader: Reader<&[u8]>) -> (Vec<pagetrail_trail::Record>, bool) {
    let mut records = Vec::new();
    loop {
        match reader.next_record() {
            Ok(Some(record)) => records.push(record),
            Ok(None) => return (records, false),
            Err(_) => {
                assert_eq!(reader.next_record().unwrap(), None, "read past an error");
                return (records, true);
            }
        }
    }
}

#[test]
fn a_lost_or_moved_record_is_damage() {
    let small = common::small();
    for two in small.record_ends.windows(3) {
        let mut lost = small.bytes.clone();
        lost.drain(two[0]..two[1]);
        let error = Trail::read(&lost[..]).unwrap_err();
        assert!(
            matches!(error, ReadError::Damaged { offset, .. } if offset == two[0] as u64),
            "{error}"
        );
        let mut twice = small.bytes.clone();
        let copy = small.bytes[two[0]..two[1]].to_vec();
        twice.splice(two[1]..two[1], copy);
        let error = Trail::read(&twice[..]).unwrap_err();
        assert!(
            matches!(error, ReadError::Damaged { offset, .. } if offset == two[1] as u64),
            "{error}"
        );
    }
}

#[test]
fn other_files_are_no_trails() {
    for bytes in [
        &b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\0\0"[..],
        b"x",
        b"{\"schema\":1}",
        &[0; 100],
    ] {
        let error = Trail::read(bytes).unwrap_err();
        assert!(matches!(error, ReadError::NotATrail), "{error}");
    }
}

/// A head with a right checksum and a length that lies: a cut below the bound, damage above it, and
/// no memory for what is not there.
#[test]
fn a_length_that_lies_takes_no_memory() {
    let small = common::small();
    let good = &small.bytes[..small.round_ends[0]];
    let mut bytes = good.to_vec();
    forge::head(&mut bytes, 4, 1 << 30);
    bytes.extend([1; 50]);
    assert_eq!(Trail::read(&bytes[..]).unwrap().rounds.len(), 1);
    for length in [(1 << 30) + 1, u32::MAX] {
        let mut bytes = good.to_vec();
        forge::head(&mut bytes, 4, length);
        let error = Trail::read(&bytes[..]).unwrap_err();
        assert!(
            matches!(error, ReadError::Damaged { offset, .. } if offset == good.len() as u64),
            "{error}"
        );
    }
}
