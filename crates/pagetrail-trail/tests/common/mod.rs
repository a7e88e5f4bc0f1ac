//! Random trails from a seed, and trail files written with known places of their records.
#![allow(dead_code, reason = "every test file uses its own part of this one")]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the test harness shows it"
)]

use pagetrail::{AccessKind, PageRange, PageSet};
use pagetrail_trail::{
    Attribution, End, Event, Frame, Header, Mapping, Module, Overhead, Predicted, Round,
    SharedMemory, Stack, StackTable, StackWrites, SubpageWrites, Thread, Trail, Writer,
};

/// A number from the environment, so that a run can be longer or be repeated.
pub(crate) fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name} is no number: {text}")),
        Err(_) => default,
    }
}

/// Calls `check` with one generator per iteration; a failure names the seed that repeats it alone.
pub(crate) fn for_seeds(iterations: u64, check: impl Fn(&mut fastrand::Rng)) {
    struct Named(u64);
    impl Drop for Named {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!(
                    "repeat with PAGETRAIL_SEED={} PAGETRAIL_FUZZ_ITERATIONS=1",
                    self.0
                );
            }
        }
    }
    let first = setting("PAGETRAIL_SEED", 1);
    let iterations = setting("PAGETRAIL_FUZZ_ITERATIONS", iterations);
    println!("seeds {first} to {}", first + iterations.saturating_sub(1));
    for seed in first..first + iterations {
        let named = Named(seed);
        check(&mut fastrand::Rng::with_seed(seed));
        drop(named);
    }
}

/// A random trail that uses every feature of the format.
pub(crate) fn trail(random: &mut fastrand::Rng) -> Trail {
    let page_size = 1 << random.u32(9..17);
    let stacks = stacks(random);
    let rounds: Vec<Round> = (0..random.u32(0..6))
        .map(|index| {
            let mut round = round(random, index, page_size);
            if random.bool() {
                round.attribution = Some(attribution(random, &stacks, page_size));
            }
            round
        })
        .collect();
    Trail {
        header: Header {
            command: (0..random.usize(0..4)).map(|_| text(random)).collect(),
            pid: random.u32(..),
            page_size,
            technique: text(random),
            reason: text(random),
            interval_ms: number(random),
            started_unix_ms: number(random),
            attach_stopped_ns: number(random),
        },
        mappings: (0..random.usize(0..5)).map(|_| mapping(random)).collect(),
        rounds,
        stacks,
        end: match random.u8(0..5) {
            0 => None,
            1 => Some(End::Exited(random.i32(..))),
            2 => Some(End::Killed(random.i32(..))),
            3 => Some(End::Gone),
            _ => Some(End::Detached),
        },
    }
}

fn round(random: &mut fastrand::Rng, index: u32, page_size: u64) -> Round {
    Round {
        index,
        start_ns: number(random),
        duration_ns: number(random),
        collect_ns: number(random),
        stopped_ns: number(random),
        blind_ns: number(random),
        access_kind: match random.bool() {
            true => AccessKind::Accesses,
            false => AccessKind::Writes,
        },
        faults: random.bool().then(|| number(random)),
        predicted: random.bool().then(|| Predicted {
            pages: number(random),
            faults_avoided: number(random),
            false_positives: number(random),
            memory_bytes: number(random),
        }),
        written: set(random, page_size),
        newly_mapped: set(random, page_size),
        events: (0..random.usize(0..3))
            .map(|_| match random.u8(0..3) {
                0 => Event::Exec(text(random)),
                1 => Event::Children(random.u32(..)),
                _ => Event::Note(text(random)),
            })
            .collect(),
        subpages: random.bool().then(|| SubpageWrites {
            subpages_per_page: 1 << random.u32(0..7),
            aliases: set(random, page_size),
            dirty: set(random, page_size / 8),
        }),
        attribution: None,
        overhead: random.bool().then(|| Overhead {
            allowed_ppm: number(random),
            cost_ppm: number(random),
            faults: number(random),
            is_kept: random.bool(),
        }),
    }
}

/// A table whose entries refer to each other only where there is something.
fn stacks(random: &mut fastrand::Rng) -> StackTable {
    let modules: Vec<Module> = (0..random.usize(0..3))
        .map(|_| Module {
            name: text(random),
            build_id: (0..random.usize(0..=64)).map(|_| random.u8(..)).collect(),
            file_bytes: number(random),
        })
        .collect();
    let frames: Vec<Frame> = (0..random.usize(0..5))
        .map(|_| Frame {
            module: (!modules.is_empty() && random.bool())
                .then(|| random.u32(0..modules.len() as u32)),
            address: number(random),
            function: text(random),
        })
        .collect();
    let depth = if frames.is_empty() { 1 } else { 9 };
    StackTable {
        stacks: (0..random.usize(0..4))
            .map(|_| Stack {
                in_kernel: random.bool(),
                frames: (0..random.usize(0..depth))
                    .map(|_| random.u32(0..frames.len() as u32))
                    .collect(),
            })
            .collect(),
        threads: (0..random.usize(0..3))
            .map(|_| Thread {
                id: random.u32(..),
                name: text(random),
            })
            .collect(),
        modules,
        frames,
    }
}

fn attribution(random: &mut fastrand::Rng, table: &StackTable, page_size: u64) -> Attribution {
    let writers = match table.stacks.len() {
        0 => 0,
        _ => random.usize(0..4),
    };
    Attribution {
        period: random.u32(1..) >> random.u32(0..31) | 1,
        lost: number(random),
        writers: (0..writers)
            .map(|_| StackWrites {
                stack: random.u32(0..table.stacks.len() as u32),
                thread: random.u32(..),
                pages: set(random, page_size),
            })
            .collect(),
    }
}

/// A random set: mostly whole pages, sometimes parts; near and far; up to the largest valid
/// address.
fn set(random: &mut fastrand::Rng, page_size: u64) -> PageSet {
    let unit = if random.u8(0..4) == 0 { 1 } else { page_size };
    let mut set = PageSet::new();
    for _ in 0..random.usize(0..8) {
        let end_max = (1 << random.u32(20..=63)) / unit;
        let start = random.u64(0..end_max - 1);
        let end = start + random.u64(1..=(end_max - start).min(9));
        set.insert(PageRange::new(start * unit, end * unit).unwrap());
    }
    set
}

fn mapping(random: &mut fastrand::Rng) -> Mapping {
    let start = number(random).min(u64::MAX - 1);
    let end = random.u64(start + 1..=u64::MAX);
    Mapping {
        range: PageRange::new(start, end).unwrap(),
        name: text(random),
        permissions: text(random),
        untracked: random.bool().then(|| text(random)),
        shared: random.bool().then(|| SharedMemory {
            device: (random.u32(..), random.u32(..)),
            inode: number(random),
            offset: number(random),
        }),
        first_round: random.u32(..) >> random.u32(0..32),
        last_round: random.bool().then(|| random.u32(..)),
    }
}

/// All lengths of numbers are equally likely.
fn number(random: &mut fastrand::Rng) -> u64 {
    random.u64(..) >> random.u32(0..64)
}

fn text(random: &mut fastrand::Rng) -> String {
    (0..random.usize(0..9)).map(|_| random.char(..)).collect()
}

/// A trail file with the places of its records.
pub(crate) struct Written {
    pub(crate) bytes: Vec<u8>,
    /// Where the header and each record after it ends.
    pub(crate) record_ends: Vec<usize>,
    /// Where each round's record ends.
    pub(crate) round_ends: Vec<usize>,
    pub(crate) trail: Trail,
}

/// Writes a small trail that has all types of records.
pub(crate) fn small() -> Written {
    small_with(true)
}

/// Writes a small trail as versions before 1.3 have it: without call stacks.
pub(crate) fn small_without_stacks() -> Written {
    small_with(false)
}

fn small_with(has_stacks: bool) -> Written {
    let range = |start: u64, end: u64| PageRange::new(start << 12, end << 12).unwrap();
    let mut trail = Trail {
        header: Header {
            command: vec!["sort".into(), "words.txt".into()],
            pid: 4711,
            page_size: 4096,
            technique: "pagemap-scan".into(),
            reason: "the cheapest that works here".into(),
            interval_ms: 100,
            started_unix_ms: 1_800_000_000_000,
            attach_stopped_ns: 1_234_567,
        },
        mappings: vec![
            Mapping {
                range: range(0x5500, 0x5600),
                name: "[heap]".into(),
                permissions: "rw-p".into(),
                untracked: None,
                shared: None,
                first_round: 0,
                last_round: Some(1),
            },
            Mapping {
                range: range(0x7000, 0x7003),
                name: String::new(),
                permissions: "rw-s".into(),
                untracked: Some("has its own userfaultfd".into()),
                shared: None,
                first_round: 1,
                last_round: None,
            },
        ],
        rounds: Vec::new(),
        stacks: StackTable {
            modules: vec![Module {
                name: "/usr/bin/sort".into(),
                build_id: vec![0xab, 0xcd],
                file_bytes: 100_000,
            }],
            frames: vec![
                Frame {
                    module: Some(0),
                    address: 0x1234,
                    function: String::new(),
                },
                Frame {
                    module: None,
                    address: 0x7f00_0000_1000,
                    function: "jitted".into(),
                },
            ],
            stacks: vec![Stack {
                in_kernel: true,
                frames: vec![0, 1],
            }],
            threads: vec![Thread {
                id: 4711,
                name: "sort".into(),
            }],
        },
        end: Some(End::Exited(1)),
    };
    for index in 0..3 {
        let page = 0x5500 + u64::from(index);
        trail.rounds.push(Round {
            index,
            access_kind: match index {
                2 => AccessKind::Accesses,
                _ => AccessKind::Writes,
            },
            start_ns: 100_000_000 * u64::from(index),
            duration_ns: 100_000_000,
            collect_ns: 12_345,
            stopped_ns: 0,
            blind_ns: u64::from(index),
            faults: (index > 0).then_some(7),
            predicted: None,
            written: [range(page, page + 1), range(page + 9, page + 40)]
                .into_iter()
                .collect(),
            newly_mapped: (index == 1)
                .then(|| range(0x7000, 0x7003))
                .into_iter()
                .collect(),
            events: match index {
                1 => vec![Event::Children(2), Event::Exec("sort -r".into())],
                2 => vec![Event::Note("a line".into())],
                _ => Vec::new(),
            },
            subpages: None,
            attribution: (index == 1).then(|| Attribution {
                period: 1,
                lost: 0,
                writers: vec![StackWrites {
                    stack: 0,
                    thread: 4711,
                    pages: [range(page, page + 1)].into_iter().collect(),
                }],
            }),
            overhead: None,
        });
    }
    if !has_stacks {
        trail.stacks = StackTable::default();
        trail.rounds[1].attribution = None;
    }
    let mut writer = Writer::create(Vec::new(), &trail.header).unwrap();
    let mut record_ends = vec![writer.bytes() as usize];
    let mut round_ends = Vec::new();
    let mut heap = trail.mappings[0].clone();
    heap.last_round = None;
    writer.mapping(&heap).unwrap();
    record_ends.push(writer.bytes() as usize);
    for round in &trail.rounds {
        if round.index == 1 {
            if has_stacks {
                writer.stacks(&trail.stacks).unwrap();
                record_ends.push(writer.bytes() as usize);
            }
            writer.mapping(&trail.mappings[1]).unwrap();
            record_ends.push(writer.bytes() as usize);
        }
        if round.index == 2 {
            writer.mapping_gone(0, 1).unwrap();
            record_ends.push(writer.bytes() as usize);
        }
        writer.round(round).unwrap();
        record_ends.push(writer.bytes() as usize);
        round_ends.push(writer.bytes() as usize);
    }
    let bytes = writer.finish(trail.end.as_ref().unwrap()).unwrap();
    record_ends.push(bytes.len());
    Written {
        bytes,
        record_ends,
        round_ends,
        trail,
    }
}

/// A second implementation of the file format after `docs/trail-format.md`, so that tests can make
/// files that the crate's writer never makes.
pub(crate) mod forge {
    pub(crate) const PROLOGUE_BYTES: usize = 16;

    pub(crate) fn prologue(major: u16, minor: u16) -> Vec<u8> {
        let mut bytes = b"\x89PTRAIL\n".to_vec();
        bytes.extend(major.to_le_bytes());
        bytes.extend(minor.to_le_bytes());
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        bytes
    }

    /// Appends a record with right checksums.
    pub(crate) fn record(file: &mut Vec<u8>, kind: u8, payload: &[u8]) {
        head(file, kind, payload.len() as u32);
        let begin = file.len() - 12;
        file.extend_from_slice(payload);
        file.extend(checksum(begin, &file[begin..]).to_le_bytes());
    }

    /// Appends the head of a record, with a length that may lie.
    pub(crate) fn head(file: &mut Vec<u8>, kind: u8, payload_bytes: u32) {
        let begin = file.len();
        file.extend([kind, 0, 0, 0]);
        file.extend(payload_bytes.to_le_bytes());
        file.extend(checksum(begin, &file[begin..]).to_le_bytes());
    }

    /// Types and payloads of a good file.
    pub(crate) fn records(file: &[u8]) -> Vec<(u8, Vec<u8>)> {
        let mut records = Vec::new();
        let mut at = PROLOGUE_BYTES;
        while at < file.len() {
            let length = u32::from_le_bytes(file[at + 4..at + 8].try_into().unwrap()) as usize;
            records.push((file[at], file[at + 12..at + 12 + length].to_vec()));
            at += 12 + length + 4;
        }
        records
    }

    pub(crate) fn file(minor: u16, records: &[(u8, Vec<u8>)]) -> Vec<u8> {
        let mut file = prologue(1, minor);
        for (kind, payload) in records {
            record(&mut file, *kind, payload);
        }
        file
    }

    fn checksum(offset: usize, bytes: &[u8]) -> u32 {
        crc32fast::hash(&[&(offset as u64).to_le_bytes(), bytes].concat())
    }
}
