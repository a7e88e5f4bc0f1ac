//! Traces there and back, and the reader against whatever a file may hold.

use super::*;
use crate::technique::TechniqueKind;
use crate::workload::{Workload, WorkloadKind};
use crate::{RunConfig, VmConfig, run};

fn trace_of(ops: &[Op]) -> Vec<u8> {
    let mut bytes = Vec::new();
    assert_eq!(
        write(ops.iter().copied(), &mut bytes).unwrap(),
        ops.len() as u64
    );
    bytes
}

fn read(bytes: &[u8]) -> Result<Vec<Op>, TraceError> {
    let mut reader = Reader::new(bytes)?;
    let ops = reader.by_ref().collect();
    reader.finish().map(|()| ops)
}

#[test]
fn programs_come_back_as_they_were() {
    for kind in WorkloadKind::ALL {
        let ops: Vec<Op> = Workload {
            kind,
            bytes: 400 << 10,
            rounds: 3,
            seed: 5,
        }
        .ops()
        .collect();
        let bytes = trace_of(&ops);
        assert_eq!(read(&bytes).unwrap(), ops, "{kind}");
        if kind == WorkloadKind::Listing1 {
            assert!(
                bytes.len() < 80,
                "a loop over an array is a few records: {}",
                bytes.len()
            );
        }
    }
    let extremes = [
        Op::Read {
            area: u32::MAX,
            offset: u64::MAX,
        },
        Op::Write { area: 0, offset: 0 },
        Op::Write {
            area: 0,
            offset: 1 << 63,
        },
        Op::Write { area: 0, offset: 0 },
        Op::Round,
        Op::Write {
            area: 0,
            offset: 1 << 63,
        },
        Op::Map {
            area: 7,
            bytes: u64::MAX,
        },
    ];
    assert_eq!(read(&trace_of(&extremes)).unwrap(), extremes);
    assert_eq!(read(&trace_of(&[])).unwrap(), []);
}

#[test]
fn each_damage_is_named() {
    let bytes = trace_of(&[
        Op::Spawn { process: 0 },
        Op::Switch { process: 0 },
        Op::Round,
    ]);
    assert!(matches!(read(b"PTOPS\x002\n"), Err(TraceError::NotATrace)));
    assert!(matches!(read(b""), Err(TraceError::NotATrace)));
    for length in MAGIC.len()..bytes.len() {
        assert!(
            matches!(read(&bytes[..length]), Err(TraceError::Truncated)),
            "{length}"
        );
    }
    let with = |at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        read(&bytes)
    };
    assert!(matches!(
        with(8, 99),
        Err(TraceError::UnknownRecord { at: 8, tag: 99 })
    ));
    assert!(matches!(with(9, 1), Err(TraceError::Damaged)));
    assert!(matches!(
        with(8, REPEAT),
        Err(TraceError::BadNumber { at: 8 })
    ));
    let longer = [bytes.as_slice(), b"x"].concat();
    assert!(matches!(read(&longer), Err(TraceError::TrailingData)));
    // Every single bit counts.
    for (at, byte) in bytes.iter().enumerate().skip(MAGIC.len()) {
        for bit in 0..8 {
            assert!(with(at, byte ^ 1 << bit).is_err(), "byte {at}, bit {bit}");
        }
    }
    let too_long = [&MAGIC[..], &[SPAWN], &[0xff; 20]].concat();
    assert!(matches!(
        read(&too_long),
        Err(TraceError::BadNumber { at: 9 })
    ));
}

/// Fixed so that a failure comes back; raise `CASES` to look for more.
const SEED: u64 = 0x5eed;
const CASES: u64 = 3000;

#[test]
fn no_bytes_make_the_reader_or_the_machine_panic() {
    let mut state = SEED;
    let mut random = move |bound: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    };
    let valid: Vec<Vec<u8>> = WorkloadKind::ALL
        .map(|kind| {
            Workload {
                kind,
                bytes: 40 << 10,
                rounds: 2,
                seed: 1,
            }
            .ops()
            .take(300)
            .collect::<Vec<_>>()
        })
        .iter()
        .map(|ops| trace_of(ops))
        .collect();
    let (mut ran, mut refused) = (0, 0);
    for case in 0..CASES {
        let mut bytes = valid[random(valid.len())].clone();
        for _ in 0..=random(4) {
            let at = MAGIC.len() + random(bytes.len() - MAGIC.len());
            match random(4) {
                0 => bytes[at] = random(256) as u8,
                1 => bytes[at] = random(11) as u8,
                2 => bytes.insert(at, random(11) as u8),
                _ => bytes.truncate(at + 1),
            }
        }
        let technique = TechniqueKind::ALL[random(TechniqueKind::ALL.len())];
        let config = RunConfig::new(technique);
        let config = RunConfig {
            vm: VmConfig {
                memory_bytes: 4 << 20,
                ..config.vm
            },
            ..config
        };
        let mut reader = Reader::new(bytes.as_slice()).unwrap();
        // Without the checksum at the end in the way, so that the machine gets to see the nonsense.
        let result = run(&config, reader.by_ref().take(2000));
        match result {
            Ok(_) => ran += 1,
            Err(error) => {
                refused += 1;
                assert!(!error.to_string().contains('\n'), "case {case}: {error}");
            }
        }
    }
    assert!(
        ran > 100 && refused > 100,
        "both ways are taken: {ran} ran, {refused} refused"
    );
}
