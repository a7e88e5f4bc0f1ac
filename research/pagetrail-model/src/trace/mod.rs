//! Programs on disk: a compact file of [`Op`]s, described in `docs/trace-format.md`.
//!
//! A [`Reader`] takes any bytes: what is not a whole and undamaged trace ends in a [`TraceError`],
//! and memory does not grow with what a file claims.

pub mod lackey;

use std::fmt;
use std::io::{self, Read, Write};

use crate::workload::Op;

/// The first bytes of each trace, with the version of the format.
pub const MAGIC: [u8; 8] = *b"PTOPS\x001\n";

const END: u8 = 0;
const SPAWN: u8 = 1;
const EXIT: u8 = 2;
const SWITCH: u8 = 3;
const MAP: u8 = 4;
const UNMAP: u8 = 5;
const START: u8 = 6;
const ROUND: u8 = 7;
const READ: u8 = 8;
const WRITE: u8 = 9;
const REPEAT: u8 = 10;

/// Why a trace cannot be read to its end.
#[derive(Debug)]
#[non_exhaustive]
pub enum TraceError {
    /// The file cannot be read.
    Io(io::Error),
    /// It does not begin like a trace of this version.
    NotATrace,
    /// It ends too early.
    Truncated,
    /// An unknown record.
    UnknownRecord {
        /// Where, in bytes from the start.
        at: u64,
        /// Its first byte.
        tag: u8,
    },
    /// A number that no record may hold, or a repetition of nothing.
    BadNumber {
        /// Where, in bytes from the start.
        at: u64,
    },
    /// The number of steps or the checksum at the end is not that of what came before.
    Damaged,
    /// There is more after the end.
    TrailingData,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "cannot read the trace: {error}"),
            Self::NotATrace => f.write_str("not a trace, or one of another version"),
            Self::Truncated => f.write_str("the trace ends too early"),
            Self::UnknownRecord { at, tag } => {
                write!(f, "unknown record {tag} at byte {at} of the trace")
            }
            Self::BadNumber { at } => write!(f, "impossible number at byte {at} of the trace"),
            Self::Damaged => f.write_str("the trace is damaged: its checksum is wrong"),
            Self::TrailingData => f.write_str("there is more after the end of the trace"),
        }
    }
}

impl std::error::Error for TraceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            _ => None,
        }
    }
}

/// FNV-1a, 64 bits.
#[derive(Clone, Copy, Debug)]
struct Checksum(u64);

impl Checksum {
    const START: Self = Self(0xcbf2_9ce4_8422_2325);

    fn add(&mut self, byte: u8) {
        self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
}

/// An access: its area and whether it writes.
type Access = (u32, bool);

/// Writes a program as a trace, and returns its number of steps.
pub fn write(ops: impl IntoIterator<Item = Op>, to: impl Write) -> io::Result<u64> {
    let mut out = Out {
        to,
        checksum: Checksum::START,
    };
    out.bytes(&MAGIC)?;
    let mut steps = 0;
    let mut offset = 0;
    // The last access, the distance that it went, and how often it has been repeated since.
    let mut last: Option<(Access, u64, u64)> = None;
    for op in ops {
        steps += 1;
        if let Op::Read { area, offset: to } | Op::Write { area, offset: to } = op {
            let access = (area, matches!(op, Op::Write { .. }));
            let distance = to.wrapping_sub(offset);
            offset = to;
            if let Some((previous, previous_distance, repeats)) = &mut last
                && (*previous, *previous_distance) == (access, distance)
            {
                *repeats += 1;
                continue;
            }
            out.repeats(&mut last)?;
            out.bytes(&[if access.1 { WRITE } else { READ }])?;
            out.number(area.into())?;
            out.number(zigzag(distance))?;
            last = Some((access, distance, 0));
            continue;
        }
        out.repeats(&mut last)?;
        last = None;
        match op {
            Op::Spawn { process } => out.record(SPAWN, &[process.into()])?,
            Op::Exit { process } => out.record(EXIT, &[process.into()])?,
            Op::Switch { process } => out.record(SWITCH, &[process.into()])?,
            Op::Map { area, bytes } => out.record(MAP, &[area.into(), bytes])?,
            Op::Unmap { area } => out.record(UNMAP, &[area.into()])?,
            Op::Start => out.record(START, &[])?,
            Op::Round => out.record(ROUND, &[])?,
            Op::Read { .. } | Op::Write { .. } => {}
        }
    }
    out.repeats(&mut last)?;
    out.record(END, &[steps])?;
    let checksum = out.checksum.0;
    out.bytes(&checksum.to_le_bytes())?;
    out.to.flush()?;
    Ok(steps)
}

struct Out<W> {
    to: W,
    checksum: Checksum,
}

impl<W: Write> Out<W> {
    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        bytes.iter().for_each(|&byte| self.checksum.add(byte));
        self.to.write_all(bytes)
    }

    /// LEB128: seven bits a byte, the low ones first, the top bit set in all bytes but the last.
    fn number(&mut self, mut number: u64) -> io::Result<()> {
        let mut bytes = [0; 10];
        let mut length = 0;
        loop {
            let more = number > 0x7f;
            bytes[length] = number as u8 & 0x7f | if more { 0x80 } else { 0 };
            length += 1;
            number >>= 7;
            if !more {
                return self.bytes(&bytes[..length]);
            }
        }
    }

    fn record(&mut self, tag: u8, numbers: &[u64]) -> io::Result<()> {
        self.bytes(&[tag])?;
        numbers.iter().try_for_each(|&number| self.number(number))
    }

    fn repeats(&mut self, last: &mut Option<(Access, u64, u64)>) -> io::Result<()> {
        match last {
            Some((_, _, repeats)) if *repeats > 0 => {
                let count = std::mem::take(repeats);
                self.record(REPEAT, &[count])
            }
            _ => Ok(()),
        }
    }
}

/// Small distances in either direction as small numbers.
fn zigzag(distance: u64) -> u64 {
    distance << 1 ^ ((distance as i64) >> 63) as u64
}

fn unzigzag(number: u64) -> u64 {
    number >> 1 ^ (number & 1).wrapping_neg()
}

/// Reads a trace, step by step.
///
/// As an iterator it yields steps until the trace ends or cannot be read on;
/// [`finish`](Self::finish) tells which. A reader that does not call it takes a damaged trace for a
/// short one.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    at: u64,
    checksum: Checksum,
    steps: u64,
    offset: u64,
    last: Option<(Access, u64)>,
    repeats: u64,
    end: Option<Result<(), TraceError>>,
}

impl<R: Read> Reader<R> {
    /// Checks that `from` begins like a trace. Give it a buffered reader.
    pub fn new(from: R) -> Result<Self, TraceError> {
        let mut reader = Self {
            from,
            at: 0,
            checksum: Checksum::START,
            steps: 0,
            offset: 0,
            last: None,
            repeats: 0,
            end: None,
        };
        for expected in MAGIC {
            match reader.byte() {
                Ok(byte) if byte == expected => {}
                Ok(_) | Err(TraceError::Truncated) => return Err(TraceError::NotATrace),
                Err(error) => return Err(error),
            }
        }
        Ok(reader)
    }

    /// Reads what is left, and says whether the trace is whole.
    pub fn finish(mut self) -> Result<(), TraceError> {
        self.by_ref().for_each(drop);
        self.end.unwrap_or(Err(TraceError::Truncated))
    }

    /// The next byte, or `None` at the end of the file.
    fn next_byte(&mut self) -> Result<Option<u8>, TraceError> {
        let mut byte = [0];
        loop {
            match self.from.read(&mut byte) {
                Ok(0) => return Ok(None),
                Ok(_) => {
                    self.at += 1;
                    return Ok(Some(byte[0]));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(TraceError::Io(error)),
            }
        }
    }

    fn byte(&mut self) -> Result<u8, TraceError> {
        let byte = self.next_byte()?.ok_or(TraceError::Truncated)?;
        self.checksum.add(byte);
        Ok(byte)
    }

    fn number(&mut self) -> Result<u64, TraceError> {
        let at = self.at;
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(TraceError::BadNumber { at })
    }

    fn small_number(&mut self) -> Result<u32, TraceError> {
        let at = self.at;
        u32::try_from(self.number()?).map_err(|_| TraceError::BadNumber { at })
    }

    fn access(&mut self) -> Option<Op> {
        let ((area, write), distance) = self.last?;
        self.offset = self.offset.wrapping_add(distance);
        let offset = self.offset;
        Some(if write {
            Op::Write { area, offset }
        } else {
            Op::Read { area, offset }
        })
    }

    /// The next step, or `None` after a sound end.
    fn step(&mut self) -> Result<Option<Op>, TraceError> {
        if self.repeats > 0 {
            self.repeats -= 1;
            return Ok(self.access());
        }
        let at = self.at;
        let tag = self.byte()?;
        if let READ | WRITE = tag {
            let access = (self.small_number()?, tag == WRITE);
            self.last = Some((access, unzigzag(self.number()?)));
            return Ok(self.access());
        }
        if tag == REPEAT {
            let count = self.number()?;
            // At least one, and only right after the access that it repeats.
            self.repeats = count.checked_sub(1).ok_or(TraceError::BadNumber { at })?;
            return self.access().ok_or(TraceError::BadNumber { at }).map(Some);
        }
        self.last = None;
        Ok(Some(match tag {
            SPAWN => Op::Spawn {
                process: self.small_number()?,
            },
            EXIT => Op::Exit {
                process: self.small_number()?,
            },
            SWITCH => Op::Switch {
                process: self.small_number()?,
            },
            MAP => Op::Map {
                area: self.small_number()?,
                bytes: self.number()?,
            },
            UNMAP => Op::Unmap {
                area: self.small_number()?,
            },
            START => Op::Start,
            ROUND => Op::Round,
            END => return self.check_end().map(|()| None),
            tag => return Err(TraceError::UnknownRecord { at, tag }),
        }))
    }

    fn check_end(&mut self) -> Result<(), TraceError> {
        let steps = self.number()?;
        let expected = self.checksum.0;
        let mut checksum = [0; 8];
        for byte in &mut checksum {
            *byte = self.byte()?;
        }
        if (steps, u64::from_le_bytes(checksum)) != (self.steps, expected) {
            return Err(TraceError::Damaged);
        }
        match self.next_byte()? {
            None => Ok(()),
            Some(_) => Err(TraceError::TrailingData),
        }
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Op;

    fn next(&mut self) -> Option<Op> {
        if self.end.is_some() {
            return None;
        }
        match self.step() {
            Ok(Some(op)) => {
                self.steps += 1;
                Some(op)
            }
            Ok(None) => {
                self.end = Some(Ok(()));
                None
            }
            Err(error) => {
                self.end = Some(Err(error));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;
