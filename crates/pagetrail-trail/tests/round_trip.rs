//! A trail reads as it was written, and invalid records are refused.

mod common;

use std::io::{self, Write};

use common::forge;
use pagetrail::{AccessKind, PageRange, PageSet};
use pagetrail_trail::{
    End, Header, Inherited, Origin, Process, ReadError, Reader, Record, Round, Trail, TreeTrail,
    WriteError, Writer,
};

#[test]
fn random_trails_come_back() {
    common::for_seeds(3000, |random| {
        let trail = common::trail(random);
        let mut bytes = Vec::new();
        trail.write(&mut bytes).unwrap();
        assert_eq!(Trail::read(&bytes[..]).unwrap(), trail);
        assert_eq!(trail.is_cut_off(), trail.end.is_none());
    });
}

#[test]
fn records_written_one_by_one_come_back_in_order() {
    let small = common::small();
    assert_eq!(Trail::read(&small.bytes[..]).unwrap(), small.trail);
    let mut reader = Reader::open(&small.bytes[..]).unwrap();
    assert_eq!(reader.header(), &small.trail.header);
    for end in &small.record_ends[1..] {
        assert!(reader.next_record().unwrap().is_some());
        assert_eq!(reader.offset(), *end as u64);
    }
    assert_eq!(reader.next_record().unwrap(), None);
}

/// The document and the code agree: a file put together by the document is read.
#[test]
fn a_forged_file_reads_like_the_written_one() {
    let small = common::small();
    let forged = forge::file(CURRENT, &forge::records(&small.bytes));
    assert_eq!(forged, small.bytes);
}

/// The minor version that is written.
const CURRENT: u16 = 6;
/// A minor version that does not exist yet.
const LATER: u16 = 7;

#[test]
fn a_later_minor_version_is_read_without_what_it_adds() {
    let small = common::small_without_stacks();
    let mut records = forge::records(&small.bytes);
    for (kind, payload) in &mut records {
        if *kind == 4 {
            // The events, or their number if there are none, are followed by six fields of one
            // byte each.
            let fields = payload.split_off(payload.len() - 6);
            if payload.last() == Some(&0) {
                *payload.last_mut().unwrap() = 1;
                payload.extend([99, 2, b'h', b'i']);
            }
            payload.extend(fields);
        }
        payload.extend(b"a later field");
    }
    records.insert(2, (77, b"a later record".to_vec()));
    assert_eq!(
        Trail::read(&forge::file(LATER, &records)[..]).unwrap(),
        small.trail
    );
}

/// The records of a file whose mappings show no shared memory, as versions before 1.6 have them.
fn without_shared(file: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut records = forge::records(file);
    for (kind, payload) in &mut records {
        if *kind == 2 {
            assert_eq!(payload.pop(), Some(0));
        }
    }
    records
}

/// Version 1.5 does not say what memory a shared mapping shows.
#[test]
fn a_version_without_shared_memory_is_read() {
    let small = common::small();
    let file = forge::file(5, &without_shared(&small.bytes));
    assert_eq!(Trail::read(&file[..]).unwrap(), small.trail);
}

/// Version 1.0 has rounds of writes only.
#[test]
fn the_first_version_is_read() {
    let mut small = common::small_without_stacks();
    let mut records = without_shared(&small.bytes);
    for (kind, payload) in &mut records {
        if *kind == 4 {
            payload.truncate(payload.len() - 6);
        }
    }
    for round in &mut small.trail.rounds {
        round.access_kind = AccessKind::Writes;
        round.blind_ns = 0;
    }
    assert_eq!(
        Trail::read(&forge::file(0, &records)[..]).unwrap(),
        small.trail
    );
}

/// Version 1.1 has neither predictions nor sub-pages.
#[test]
fn the_second_version_is_read() {
    let small = common::small_without_stacks();
    let mut records = without_shared(&small.bytes);
    for (kind, payload) in &mut records {
        if *kind == 4 {
            payload.truncate(payload.len() - 4);
        }
    }
    assert_eq!(
        Trail::read(&forge::file(1, &records)[..]).unwrap(),
        small.trail
    );
}

/// Version 1.2 has no call stacks, and a record of them is damage.
#[test]
fn the_third_version_is_read() {
    let small = common::small_without_stacks();
    let mut records = without_shared(&small.bytes);
    for (kind, payload) in &mut records {
        if *kind == 4 {
            payload.truncate(payload.len() - 2);
        }
    }
    assert_eq!(
        Trail::read(&forge::file(2, &records)[..]).unwrap(),
        small.trail
    );
    records.insert(1, (6, vec![0, 0, 0, 0]));
    let error = Trail::read(&forge::file(2, &records)[..]).unwrap_err();
    assert!(matches!(error, ReadError::Damaged { .. }), "{error}");
}

/// Versions 1.3 and 1.4 do not have what tracking cost.
#[test]
fn versions_without_overhead_are_read() {
    let small = common::small();
    for minor in [3, 4] {
        let mut records = without_shared(&small.bytes);
        for (kind, payload) in &mut records {
            if *kind == 4 {
                assert_eq!(payload.pop(), Some(0));
            }
        }
        let read = Trail::read(&forge::file(minor, &records)[..]).unwrap();
        assert_eq!(read, small.trail);
    }
}

/// Numbers that refer to what is not there are damage, and no writer accepts them.
#[test]
fn stacks_refer_only_to_what_is_there() {
    let trail = common::small().trail;
    let mut writer = Writer::create(Vec::new(), &trail.header).unwrap();
    let mut wrong = [
        trail.stacks.clone(),
        trail.stacks.clone(),
        trail.stacks.clone(),
        trail.stacks.clone(),
    ];
    wrong[0].frames[0].module = Some(1);
    wrong[1].stacks[0].frames[1] = 2;
    wrong[2].stacks[0].frames = vec![0; 1025];
    wrong[3].modules[0].build_id = vec![0; 65];
    for table in &wrong {
        let error = writer.stacks(table).unwrap_err();
        assert!(matches!(error, WriteError::Invalid { .. }), "{error}");
    }
    writer.round(&trail.rounds[0]).unwrap();
    let error = writer.round(&trail.rounds[1]).unwrap_err();
    assert!(
        error.to_string().contains("a stack that is not there"),
        "{error}"
    );
    writer.stacks(&trail.stacks).unwrap();
    writer.round(&trail.rounds[1]).unwrap();
    let mut records = forge::records(&common::small().bytes);
    let at = records.iter().position(|(kind, _)| *kind == 6).unwrap();
    records.remove(at);
    let error = Trail::read(&forge::file(CURRENT, &records)[..]).unwrap_err();
    assert!(
        error.to_string().contains("a stack that is not there"),
        "{error}"
    );
    // A frame in module 1 of 1, a stack with frame 1 of 1, and a length that lies.
    let module = [1, 1, b'm', 0, 9];
    for rest in [
        &[1, 2, 0, 0, 0, 0][..],
        &[1, 1, 0, 0, 1, 0, 1, 1, 0],
        &[0, 0xff, 0xff, 0x7f, 0],
    ] {
        let mut records = records.clone();
        records.insert(at, (6, [&module[..], rest].concat()));
        let error = Trail::read(&forge::file(CURRENT, &records)[..]).unwrap_err();
        assert!(
            matches!(error, ReadError::Damaged { offset, .. } if offset < 400),
            "{error}"
        );
    }
}

#[test]
fn rounds_of_one_kind_can_be_selected() {
    let trail = common::small().trail;
    let writes = trail.only(AccessKind::Writes);
    let accesses = trail.only(AccessKind::Accesses);
    assert!(!writes.rounds.is_empty() && !accesses.rounds.is_empty());
    assert_eq!(
        writes.rounds.len() + accesses.rounds.len(),
        trail.rounds.len()
    );
    assert!(
        writes
            .rounds
            .iter()
            .all(|r| r.access_kind == AccessKind::Writes)
    );
    assert_eq!(writes.mappings, trail.mappings);
}

#[test]
fn unknown_records_and_fields_of_this_version_are_damage() {
    let records = forge::records(&common::small().bytes);
    let assert_damaged = |records: &[(u8, Vec<u8>)]| {
        let error = Trail::read(&forge::file(CURRENT, records)[..]).unwrap_err();
        assert!(matches!(error, ReadError::Damaged { .. }), "{error}");
    };
    for longer in 0..records.len() {
        let mut records = records.clone();
        records[longer].1.push(0);
        assert_damaged(&records);
    }
    let mut unknown = records.clone();
    unknown.insert(2, (77, Vec::new()));
    assert_damaged(&unknown);
    let mut unknown = records;
    unknown.last_mut().unwrap().1[0] = 9;
    assert_damaged(&unknown);
}

#[test]
fn a_string_is_read_up_to_its_bound() {
    let with_name = |length: u32| {
        let mut records = forge::records(&common::small().bytes);
        // A mapping of one byte in round 0, with a name; the length takes three bytes of LEB128.
        let mut payload = vec![1, 1, 0, 0];
        payload.extend([
            length as u8 | 0x80,
            (length >> 7) as u8 | 0x80,
            (length >> 14) as u8,
        ]);
        payload.resize(payload.len() + length as usize, b'n');
        payload.extend([0, 0, 0]);
        records.insert(1, (2, payload));
        Trail::read(&forge::file(CURRENT, &records)[..])
    };
    assert_eq!(with_name(65_536).unwrap().mappings[0].name.len(), 65_536);
    let error = with_name(65_537).unwrap_err();
    assert!(matches!(error, ReadError::Damaged { .. }), "{error}");
}

#[test]
fn a_whole_trail_is_written_in_the_order_of_a_recording() {
    let trail = common::small().trail;
    let mut bytes = Vec::new();
    trail.write(&mut bytes).unwrap();
    let kinds: Vec<u8> = forge::records(&bytes)
        .iter()
        .map(|(kind, _)| *kind)
        .collect();
    // Header, stacks, the first mapping, round 0, the mapping that round 1 covers first, ..
    assert_eq!(kinds, [1, 6, 2, 4, 2, 4, 4, 5]);
}

#[test]
fn another_major_version_is_refused_in_one_line() {
    for major in [0, 2, 300] {
        let error = Trail::read(&forge::prologue(major, 7)[..]).unwrap_err();
        let line = error.to_string();
        assert!(matches!(error, ReadError::Version { .. }), "{line}");
        assert!(
            line.contains(&format!("{major}.7")) && !line.contains('\n'),
            "{line}"
        );
    }
}

#[test]
fn a_long_string_is_cut_between_two_characters() {
    let header = Header {
        page_size: 4096,
        reason: format!("x{}", "ä".repeat(40_000)),
        ..Header::default()
    };
    let mut bytes = Vec::new();
    let trail = Trail {
        header,
        ..Trail::default()
    };
    trail.write(&mut bytes).unwrap();
    let read = Trail::read(&bytes[..]).unwrap().header.reason;
    assert_eq!(read.len(), 65_535);
    assert!(trail.header.reason.starts_with(&read));
}

#[test]
fn invalid_records_are_refused_and_leave_the_trail_valid() {
    let refused = |result: Result<(), WriteError>| {
        let error = result.unwrap_err();
        assert!(matches!(error, WriteError::Invalid { .. }), "{error}");
    };
    refused(Writer::create(Vec::new(), &Header::default()).map(drop));
    let mut bytes = Vec::new();
    let small = common::small();
    let mut writer = Writer::create(&mut bytes, &small.trail.header).unwrap();
    refused(writer.mapping_gone(0, 0));
    let index = writer.mapping(&small.trail.mappings[1]).unwrap();
    writer.mapping_gone(index, 3).unwrap();
    refused(writer.mapping_gone(index, 4));
    refused(writer.round(&small.trail.rounds[1]));
    writer.round(&small.trail.rounds[0]).unwrap();
    refused(writer.round(&small.trail.rounds[0]));
    let kernel = PageRange::new(1 << 62, (1 << 63) + 1).unwrap();
    let written: PageSet = [kernel].into_iter().collect();
    refused(writer.round(&Round {
        index: 1,
        written,
        ..Round::default()
    }));
    writer.stacks(&small.trail.stacks).unwrap();
    writer.round(&small.trail.rounds[1]).unwrap();
    writer.finish(&End::Gone).unwrap();
    let read = Trail::read(&bytes[..]).unwrap();
    assert_eq!(read.rounds, small.trail.rounds[..2]);
    assert_eq!(read.mappings[0].last_round, Some(3));
}

/// Takes some bytes and then fails, as a full disk does.
struct Full<'a> {
    file: &'a mut Vec<u8>,
    left: usize,
}

impl Write for Full<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let length = bytes.len().min(self.left);
        self.left -= length;
        self.file.extend_from_slice(&bytes[..length]);
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_keeps_all_rounds_before_and_closes_the_writer() {
    let small = common::small();
    for left in 0..small.bytes.len() {
        let mut file = Vec::new();
        let full = Full {
            file: &mut file,
            left,
        };
        let mut rounds = 0;
        match Writer::create(full, &small.trail.header) {
            Err(WriteError::Io { .. }) => {
                let error = Trail::read(&file[..]).unwrap_err();
                assert!(matches!(error, ReadError::NoHeader), "{error}");
                continue;
            }
            Err(other) => panic!("{other}"),
            Ok(mut writer) => {
                let mut failed = writer.mapping(&small.trail.mappings[0]).is_err();
                failed |= writer.stacks(&small.trail.stacks).is_err();
                for round in &small.trail.rounds {
                    match writer.round(round) {
                        Ok(()) => rounds += 1,
                        Err(WriteError::Io { rounds: kept, .. }) if !failed => {
                            assert_eq!(kept as usize, rounds);
                            failed = true;
                        }
                        Err(WriteError::Closed) if failed => {}
                        Err(other) => panic!("{other}"),
                    }
                }
            }
        }
        let read = Trail::read(&file[..]).unwrap();
        assert_eq!(read.rounds, small.trail.rounds[..rounds]);
    }
}

/// How compact the format is; `docs/trail-format.md` quotes these.
#[test]
fn sizes_are_as_documented() {
    let header = Header {
        page_size: 4096,
        ..Header::default()
    };
    let bytes_per_range = |pages_apart: u64, pages_long: u64| {
        let ranges = (0..10_000).map(|i| {
            let start = 0x7f00_0000_0000 + i * (pages_apart + pages_long) * 4096;
            PageRange::new(start, start + pages_long * 4096).unwrap()
        });
        let mut writer = Writer::create(Vec::new(), &header).unwrap();
        let mut round = Round {
            start_ns: 10_000_000_000,
            duration_ns: 100_000_000,
            collect_ns: 200_000,
            ..Round::default()
        };
        let before = writer.bytes();
        writer.round(&round).unwrap();
        let empty = writer.bytes() - before;
        assert_eq!(empty, 41, "bytes of an empty round");
        round.index = 1;
        round.written = ranges.collect();
        let before = writer.bytes();
        writer.round(&round).unwrap();
        (writer.bytes() - before - empty) / 10_000
    };
    assert_eq!(bytes_per_range(1, 1), 1);
    assert_eq!(bytes_per_range(64, 1), 1);
    assert_eq!(bytes_per_range(65, 1), 2);
    assert_eq!(bytes_per_range(8192, 1), 2);
    assert_eq!(bytes_per_range(8193, 1), 3);
    assert_eq!(bytes_per_range(64, 129), 2);
}

#[test]
fn a_second_end_or_header_is_damage() {
    let small = common::small();
    for again in [1, 5] {
        let mut records = forge::records(&small.bytes);
        let copy = records.iter().find(|(kind, _)| *kind == again).cloned();
        records.push(copy.unwrap());
        let error = Trail::read(&forge::file(CURRENT, &records)[..]).unwrap_err();
        let end = small.bytes.len() as u64;
        assert!(
            matches!(error, ReadError::Damaged { offset, .. } if offset == end),
            "{error}"
        );
    }
    let mut records = forge::records(&small.bytes);
    records.swap(0, 1);
    let error = Trail::read(&forge::file(CURRENT, &records)[..]).unwrap_err();
    assert!(
        matches!(error, ReadError::Damaged { offset: 16, .. }),
        "{error}"
    );
}

#[test]
fn the_end_is_the_last_record() {
    let small = common::small();
    let mut reader = Reader::open(&small.bytes[..]).unwrap();
    let mut last = None;
    while let Some(record) = reader.next_record().unwrap() {
        last = Some(record);
    }
    assert_eq!(last, Some(Record::End(End::Exited(1))));
}

fn inherited() -> Inherited {
    let pages = |from: u64, to: u64| PageRange::new(from << 12, to << 12).unwrap();
    Inherited {
        pages: [pages(5, 9), pages(1 << 30, (1 << 30) + 1)]
            .into_iter()
            .collect(),
        shared: [pages(6, 8)].into_iter().collect(),
    }
}

/// A trail of three processes whose records alternate.
fn three_processes() -> (Vec<u8>, Trail) {
    let small = common::small();
    let mut writer = Writer::create(Vec::new(), &small.trail.header).unwrap();
    for (parent, origin) in [(Some(0), Origin::Present), (None, Origin::New)] {
        let header = Header {
            pid: 5000,
            ..small.trail.header.clone()
        };
        let process = Process {
            parent,
            origin,
            appeared_ns: 5,
            inherited: inherited(),
            header,
        };
        writer.process(&process).unwrap();
    }
    for process in 0..3 {
        writer.select(process).unwrap();
        writer.stacks(&small.trail.stacks).unwrap();
    }
    for round in &small.trail.rounds {
        for process in 0..3 {
            writer.select(process).unwrap();
            for mapping in &small.trail.mappings {
                if mapping.first_round == round.index {
                    writer.mapping(mapping).unwrap();
                }
            }
            writer.round(round).unwrap();
        }
    }
    writer.process_ended(1, 99, &End::Killed(9)).unwrap();
    writer.short_lives(7, 2).unwrap();
    writer.short_lives(8, 5).unwrap();
    let bytes = writer.finish(&End::Exited(1)).unwrap();
    (bytes, small.trail)
}

#[test]
fn processes_come_back_each_with_its_trail() {
    let (bytes, trail) = three_processes();
    let tree = TreeTrail::read(&bytes[..]).unwrap();
    assert_eq!(tree.processes.len(), 3);
    assert_eq!(tree.processes[0].trail, trail);
    let [_, one, other] = &tree.processes[..] else {
        panic!("three processes")
    };
    assert_eq!((one.parent, one.origin), (Some(0), Origin::Present));
    assert_eq!((other.parent, other.origin), (None, Origin::New));
    assert_eq!((one.appeared_ns, one.ended_ns), (5, Some(99)));
    assert_eq!(one.trail.end, Some(End::Killed(9)));
    assert_eq!(other.trail.end, Some(End::Detached));
    assert_eq!(tree.short_lives, 7);
    assert_eq!(tree.processes[0].inherited, Inherited::default());
    for process in [one, other] {
        assert_eq!(process.trail.rounds, trail.rounds);
        assert_eq!(process.trail.mappings, trail.mappings);
        assert_eq!(process.trail.stacks, trail.stacks);
        assert_eq!(process.trail.header.pid, 5000);
        assert_eq!(process.inherited, inherited());
    }
    // A caller that asks for one trail gets that of the first process, as a reader of an earlier
    // version does.
    assert_eq!(Trail::read(&bytes[..]).unwrap(), trail);
}

/// Version 1.4 does not know what a process inherited.
#[test]
fn the_fifth_version_is_read() {
    let (bytes, trail) = three_processes();
    let mut records = forge::records(&bytes);
    records.retain(|(kind, _)| *kind != 10);
    // The bytes of two sets: a range of four pages and one far away; one of a unit of two pages.
    let sets = (2 + 2 + 5) + (2 + 1);
    for (kind, payload) in &mut records {
        match kind {
            7 => payload.truncate(payload.len() - sets),
            // Nor does it know what tracking cost, at the end of a round; those of later processes
            // are records within records.
            // Nor what memory a shared mapping shows.
            2 | 4 => assert_eq!(payload.pop(), Some(0)),
            8 if matches!(payload[1], 2 | 4) => assert_eq!(payload.pop(), Some(0)),
            _ => {}
        }
    }
    let tree = TreeTrail::read(&forge::file(4, &records)[..]).unwrap();
    assert_eq!(tree.processes.len(), 3);
    for process in &tree.processes {
        assert_eq!(process.trail.rounds, trail.rounds);
        assert_eq!(process.inherited, Inherited::default());
    }
    records.insert(3, (10, vec![1, 1]));
    let error = TreeTrail::read(&forge::file(4, &records)[..]).unwrap_err();
    assert!(error.to_string().contains("unknown type"), "{error}");
}

#[test]
fn a_tree_that_is_cut_off_anywhere_is_read_up_to_there() {
    let (bytes, trail) = three_processes();
    for length in 16..bytes.len() {
        let Ok(tree) = TreeTrail::read(&bytes[..length]) else {
            continue;
        };
        assert!(tree.processes[0].trail.is_cut_off());
        for process in &tree.processes {
            assert!(trail.rounds.starts_with(&process.trail.rounds));
        }
    }
}

#[test]
fn records_of_processes_that_do_not_exist_are_damage() {
    let (bytes, trail) = three_processes();
    let records = forge::records(&bytes);
    let of_one = records.iter().find(|(kind, _)| *kind == 8).unwrap().1[1..].to_vec();
    let process = records
        .iter()
        .find(|(kind, _)| *kind == 7)
        .unwrap()
        .1
        .clone();
    let mut orphan = process.clone();
    orphan[0] = 9;
    let mut odd = process;
    odd[1] = 9;
    let with = |first: u8| [&[first][..], &of_one].concat();
    for (kind, payload, complaint) in [
        (8, with(0), "first process"),
        (8, with(7), "has not appeared"),
        (8, vec![1, 5, 1, 0, 0, 0, 0], "unknown type"),
        (9, vec![7, 0, 1, 0, 0, 0, 0], "has not appeared"),
        (7, orphan, "parent that has not appeared"),
        (7, odd, "origin"),
    ] {
        let mut records = forge::records(&bytes);
        records.insert(3, (kind, payload));
        let error = TreeTrail::read(&forge::file(CURRENT, &records)[..]).unwrap_err();
        assert!(error.to_string().contains(complaint), "{error}");
        // A version without processes has no such record.
        let error = Trail::read(&forge::file(3, &records)[..]).unwrap_err();
        assert!(error.to_string().contains("unknown type"), "{error}");
    }
    let mut writer = Writer::create(Vec::new(), &trail.header).unwrap();
    assert!(writer.select(1).is_err());
    assert!(writer.process_ended(1, 0, &End::Gone).is_err());
    let process = Process {
        parent: Some(1),
        header: trail.header,
        ..Process::default()
    };
    assert!(writer.process(&process).is_err());
    let kernel = PageRange::new(1 << 62, (1 << 63) + 1).unwrap();
    let process = Process {
        parent: Some(0),
        inherited: Inherited {
            shared: [kernel].into_iter().collect(),
            ..Inherited::default()
        },
        ..process
    };
    assert!(writer.process(&process).is_err());
}
