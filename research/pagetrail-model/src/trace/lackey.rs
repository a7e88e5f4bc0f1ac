//! Programs recorded by Valgrind: `valgrind --tool=lackey --trace-mem=yes --log-file=FILE PROGRAM`.
//!
//! Lackey prints a line for each load, store and modification, with its address and size. Pages
//! that were touched become areas, mapped before the first access: lackey does not tell when a
//! program maps or unmaps. Instruction fetches are left out. One process, whose threads run in
//! turn.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::io::{self, BufRead, Read};

use crate::machine::PAGE_BYTES;
use crate::workload::Op;

/// How to turn a recording into a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LackeyOptions {
    /// Accesses in a row to the same unit of so many bytes, of the same kind, become one. 1 keeps
    /// all of them.
    pub unit_bytes: u64,
    /// Of a unit's accesses of a kind, keep only the first in each round. What is written in a
    /// round stays the same; how often the TLB is asked does not.
    pub once_per_round: bool,
    /// A round ends after so many loads and stores of the recording.
    pub round_every: u64,
    /// Loads and stores that are read at most; what comes after them is left.
    pub limit: u64,
}

impl Default for LackeyOptions {
    /// One access for each visit to a page; ten thousand accesses to a round.
    fn default() -> Self {
        Self {
            unit_bytes: PAGE_BYTES,
            once_per_round: false,
            round_every: 10_000,
            limit: u64::MAX,
        }
    }
}

/// Why a recording cannot be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum LackeyError {
    /// The file cannot be read.
    Io(io::Error),
    /// A line that lackey does not print; counted from 1.
    Line(u64),
    /// No load or store in the whole recording.
    Empty,
}

impl fmt::Display for LackeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "cannot read the recording: {error}"),
            Self::Line(line) => write!(f, "line {line} of the recording is not one of lackey's"),
            Self::Empty => {
                f.write_str("the recording has no load or store: was --trace-mem=yes given?")
            }
        }
    }
}

impl std::error::Error for LackeyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            _ => None,
        }
    }
}

/// A recording as a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The program.
    pub ops: Vec<Op>,
    /// Whether the recording was read to its end, and not only to the limit.
    pub complete: bool,
}

/// The longest line that is read, in bytes: those with an access have some 20, others quote the
/// command line of the program.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// An access of the recording, or the end of a round.
#[derive(Clone, Copy, PartialEq)]
enum Event {
    Access { at: u64, write: bool },
    Round,
}

/// Reads a recording. Memory grows with its accesses, after those in a row have become one.
pub fn import(
    mut recording: impl BufRead,
    options: LackeyOptions,
) -> Result<Imported, LackeyError> {
    let unit_bytes = options.unit_bytes.max(1);
    let mut events = Vec::new();
    let mut pages = BTreeSet::new();
    let mut seen = 0_u64;
    let mut last = None;
    let mut this_round = HashSet::new();
    let (mut line, mut number) = (String::new(), 0);
    let mut complete = true;
    while next_line(&mut recording, &mut line).map_err(LackeyError::Io)? {
        number += 1;
        let Some((at, size, kinds)) = parse(&line).ok_or(LackeyError::Line(number))? else {
            continue;
        };
        for &write in kinds {
            // The first byte, and the first one of each further page.
            let end = at.checked_add(size).ok_or(LackeyError::Line(number))?;
            let further =
                (at / PAGE_BYTES + 1..end.div_ceil(PAGE_BYTES)).map(|page| page * PAGE_BYTES);
            for at in std::iter::once(at).chain(further) {
                let visit = (at / unit_bytes, write);
                let again = last.replace(visit) == Some(visit)
                    || options.once_per_round && !this_round.insert(visit);
                if !again {
                    events.push(Event::Access { at, write });
                    pages.insert(at / PAGE_BYTES);
                }
            }
        }
        seen += 1;
        if seen.is_multiple_of(options.round_every.max(1)) {
            events.push(Event::Round);
            last = None;
            this_round.clear();
        }
        if seen >= options.limit {
            complete = false;
            break;
        }
    }
    if pages.is_empty() {
        return Err(LackeyError::Empty);
    }
    if events.last() != Some(&Event::Round) {
        events.push(Event::Round);
    }
    Ok(Imported {
        ops: program(&pages, events),
        complete,
    })
}

/// Reads a line without its end; false after the last one.
fn next_line(recording: &mut impl BufRead, line: &mut String) -> io::Result<bool> {
    line.clear();
    let mut limited = Read::take(recording, LINE_BYTES_MAX);
    if limited.read_line(line)? == 0 {
        return Ok(false);
    }
    if line.ends_with('\n') {
        line.pop();
    }
    Ok(true)
}

/// Address, size, and for each access of the line whether it writes; `None` for lines without one.
#[allow(clippy::type_complexity, reason = "no line, no access, or an access")]
fn parse(line: &str) -> Option<Option<(u64, u64, &'static [bool])>> {
    if line.is_empty() || line.starts_with("==") || line.starts_with("I ") {
        return Some(None);
    }
    let kinds: &[bool] = match line.get(..3)? {
        " L " => &[false],
        " S " => &[true],
        " M " => &[false, true],
        _ => return None,
    };
    let (address, size) = line[3..].split_once(',')?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let size = size
        .parse()
        .ok()
        .filter(|size| (1..=PAGE_BYTES).contains(size))?;
    Some(Some((address, size, kinds)))
}

/// Pages this near to each other lie in one area.
const GAP_PAGES: u64 = 16;

fn program(pages: &BTreeSet<u64>, events: Vec<Event>) -> Vec<Op> {
    let mut areas: Vec<(u64, u64)> = Vec::new();
    for &page in pages {
        match areas.last_mut() {
            Some((_, end)) if page - *end <= GAP_PAGES => *end = page + 1,
            _ => areas.push((page, page + 1)),
        }
    }
    let mut ops = vec![Op::Spawn { process: 0 }, Op::Switch { process: 0 }];
    ops.extend(areas.iter().zip(0..).map(|(&(start, end), area)| Op::Map {
        area,
        bytes: (end - start) * PAGE_BYTES,
    }));
    ops.push(Op::Start);
    ops.extend(events.into_iter().map(|event| {
        let Event::Access { at, write } = event else {
            return Op::Round;
        };
        let area = areas.partition_point(|&(start, _)| start <= at / PAGE_BYTES) - 1;
        let offset = at - areas[area].0 * PAGE_BYTES;
        let area = area as u32;
        if write {
            Op::Write { area, offset }
        } else {
            Op::Read { area, offset }
        }
    }));
    ops
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, options: LackeyOptions) -> Result<Vec<Op>, LackeyError> {
        Ok(import(text.as_bytes(), options)?.ops)
    }

    #[test]
    fn a_recording_becomes_a_program() {
        let text = "==1== Lackey\nI  0401ab70,3\n S 1fff000728,8\n S 1fff000720,8\n L 1fff000720,8\n \
                    M 00401000,4\nI  0401b771,7\n S 00402ffc,8\n==1== done\n";
        let setup = [
            Op::Spawn { process: 0 },
            Op::Switch { process: 0 },
            Op::Map {
                area: 0,
                bytes: 3 * PAGE_BYTES,
            },
            Op::Map {
                area: 1,
                bytes: PAGE_BYTES,
            },
            Op::Start,
        ];
        let all = [
            Op::Write {
                area: 1,
                offset: 0x728,
            },
            Op::Read {
                area: 1,
                offset: 0x720,
            },
            Op::Read { area: 0, offset: 0 },
            Op::Write { area: 0, offset: 0 },
            // Across the end of a page.
            Op::Write {
                area: 0,
                offset: 0x1ffc,
            },
            Op::Write {
                area: 0,
                offset: 0x2000,
            },
            Op::Round,
        ];
        let expected: Vec<Op> = setup.into_iter().chain(all).collect();
        assert_eq!(read(text, LackeyOptions::default()).unwrap(), expected);

        let options = LackeyOptions {
            unit_bytes: 1,
            once_per_round: false,
            round_every: 2,
            ..LackeyOptions::default()
        };
        let ops = read(text, options).unwrap();
        assert_eq!(ops.iter().filter(|op| **op == Op::Round).count(), 3);
        assert!(ops.contains(&Op::Write {
            area: 1,
            offset: 0x720
        }));
    }

    #[test]
    fn once_per_round_keeps_the_write_sets() {
        let text = " S 1000,8\n S 2000,8\n S 1008,8\n L 1000,8\n S 1000,8\n S 2000,8\n";
        let options = LackeyOptions {
            once_per_round: true,
            round_every: 4,
            ..LackeyOptions::default()
        };
        let ops = read(text, options).unwrap();
        let write = |page: u64| Op::Write {
            area: 0,
            offset: page * PAGE_BYTES,
        };
        let read = Op::Read { area: 0, offset: 0 };
        assert_eq!(
            ops[4..],
            [
                write(0),
                write(1),
                read,
                Op::Round,
                write(0),
                write(1),
                Op::Round
            ]
        );
    }

    #[test]
    fn a_recording_is_read_up_to_the_limit() {
        let text = " S 1000,8\n S 2000,8\nI  3000,8\n S 3000,8\n";
        let with = |limit| {
            let options = LackeyOptions {
                limit,
                ..LackeyOptions::default()
            };
            let imported = import(text.as_bytes(), options).unwrap();
            let is_write = |op: &&Op| matches!(op, Op::Write { .. });
            let writes = imported.ops.iter().filter(is_write).count();
            (writes, imported.complete)
        };
        assert_eq!(with(2), (2, false));
        assert_eq!(with(4), (3, true));
    }

    #[test]
    fn other_text_is_refused_with_its_line() {
        for (text, line) in [
            ("hello", 1),
            ("I  0401,1\n S 12,", 2),
            (" S 12,0", 1),
            (" S 12,99999999999", 1),
            (" S ffffffffffffffff,8", 1),
            (" S 0x12,8", 1),
            (" \u{e4}\u{e4}", 1),
        ] {
            let refused = read(text, LackeyOptions::default());
            assert!(
                matches!(refused, Err(LackeyError::Line(at)) if at == line),
                "{text}: {refused:?}"
            );
        }
        assert!(matches!(
            read("==1== x\n", LackeyOptions::default()),
            Err(LackeyError::Empty)
        ));
    }
}
