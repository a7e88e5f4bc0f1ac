//! [`Reader`] reads a trail file record by record; [`Trail::read`] reads all of it.
//!
//! A file that has no end record is cut off: all whole records in it are valid. A record that fails
//! its checksum is an error, with one exception: if the file holds only zeros from within that
//! record to its end, it is cut off. A power cut leaves such a file when its length reached the
//! disk before its bytes.

use std::io::{BufRead, ErrorKind, Read};

use crate::contents::Contents;
use crate::error::ReadError;
use crate::format::{
    self, CHECKSUM_BYTES, MAGIC, PAYLOAD_BYTES_MAX, PROLOGUE_BYTES, RECORD_HEADER_BYTES,
    ZERO_TAIL_BYTES_MIN, kind,
};
use crate::payload::{Decoder, Wrong};
use crate::{End, Header, Mapping, Process, Round, StackTable, Trail};

/// One record after the header, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Record {
    /// A mapping appeared. Mappings are numbered from 0 in the order of these records.
    Mapping(Mapping),
    /// A mapping vanished.
    MappingGone {
        /// The number of the mapping.
        index: usize,
        /// The last round that covers it.
        last_round: u32,
    },
    /// A round. Rounds come in order and without gaps.
    Round(Round),
    /// Call stacks and what they consist of; to be appended to the table of earlier ones.
    Stacks(StackTable),
    /// A process appeared after the first. Processes are numbered in the order of these records,
    /// from 1; 0 is the process of the header.
    Process(Process),
    /// A record of a process other than the first: a mapping, a round, or stacks. Mappings, rounds
    /// and stacks are numbered for each process by itself.
    Of {
        /// The number of the process.
        process: u32,
        /// The record.
        record: Box<Record>,
    },
    /// A process ended while the recording went on.
    ProcessEnded {
        /// The number of the process.
        process: u32,
        /// When, in nanoseconds since the recording started.
        at_ns: u64,
        /// How it ended.
        end: End,
    },
    /// Processes began and ended between two rounds, so that nothing of them is recorded.
    ShortLives {
        /// When that was noticed, in nanoseconds since the recording started.
        at_ns: u64,
        /// How many they were.
        count: u64,
    },
    /// The recording ended; no record follows.
    End(End),
}

/// Reads a trail record by record. Memory grows with the largest record, and by a byte per mapping.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    /// Where the next record begins.
    offset: u64,
    buffer: Vec<u8>,
    header: Header,
    /// The minor version that wrote the file.
    minor: u16,
    /// What each process has so far.
    processes: Vec<Contents>,
    /// Whether no further record can be read, because of the end, a cut or an error.
    over: bool,
}

/// A record that passed its checks; its payload is in the reader's buffer.
enum Framed {
    Record(u8),
    CutOff,
}

impl<R: BufRead> Reader<R> {
    /// Reads the signature, the version and the header.
    pub fn open(input: R) -> Result<Self, ReadError> {
        let mut reader = Self {
            input,
            offset: 0,
            buffer: Vec::new(),
            header: Header::default(),
            minor: format::MINOR,
            processes: vec![Contents::default()],
            over: false,
        };
        reader.prologue()?;
        let at = reader.offset;
        match reader.frame()? {
            Framed::CutOff => Err(ReadError::NoHeader),
            Framed::Record(kind::HEADER) => {
                reader.header = reader.decode(at, |payload| payload.header())?;
                Ok(reader)
            }
            Framed::Record(_) => damaged(at, "the first record is not a header"),
        }
    }

    /// Facts that hold for the whole recording.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the next record; `None` after the end record, where the file is cut off, and after
    /// an error.
    pub fn next_record(&mut self) -> Result<Option<Record>, ReadError> {
        while !self.over {
            // Cleared again on success, so that no record after an error is read.
            self.over = true;
            let at = self.offset;
            let Framed::Record(kind) = self.frame()? else {
                return Ok(None);
            };
            let record = self.record(at, kind)?;
            self.over = matches!(record, Some(Record::End(_)));
            if record.is_some() {
                return Ok(record);
            }
        }
        Ok(None)
    }

    /// Bytes of the file in the records read so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    fn prologue(&mut self) -> Result<(), ReadError> {
        self.fill(PROLOGUE_BYTES)?;
        let bytes = &self.buffer[..];
        let signature = bytes.len().min(MAGIC.len());
        if bytes[..signature] != MAGIC[..signature] {
            return Err(ReadError::NotATrail);
        }
        let Ok(bytes) = <[u8; PROLOGUE_BYTES]>::try_from(bytes) else {
            return Err(ReadError::NoHeader);
        };
        let major = u16::from_le_bytes([bytes[8], bytes[9]]);
        let minor = u16::from_le_bytes([bytes[10], bytes[11]]);
        if bytes != format::prologue(major, minor) {
            return damaged(MAGIC.len() as u64, "the version fails its checksum");
        }
        if major != format::MAJOR {
            return Err(ReadError::Version { major, minor });
        }
        self.minor = minor;
        self.offset = PROLOGUE_BYTES as u64;
        Ok(())
    }

    /// Reads one record and checks it.
    fn frame(&mut self) -> Result<Framed, ReadError> {
        let at = self.offset;
        self.fill(RECORD_HEADER_BYTES)?;
        let Ok(header) = <[u8; RECORD_HEADER_BYTES]>::try_from(&self.buffer[..]) else {
            return Ok(Framed::CutOff);
        };
        let Some((kind, payload_bytes)) = format::parse_record_header(at, &header) else {
            return self.bad(at, "the head of a record fails its checksum");
        };
        let payload_bytes = payload_bytes as usize;
        if payload_bytes > PAYLOAD_BYTES_MAX {
            return damaged(at, "a record longer than 1 GiB");
        }
        self.fill(payload_bytes + CHECKSUM_BYTES)?;
        if self.buffer.len() < payload_bytes + CHECKSUM_BYTES {
            return Ok(Framed::CutOff);
        }
        let (payload, sum) = self.buffer.split_at(payload_bytes);
        if sum != format::checksum(at, &[&header, payload]).to_le_bytes() {
            let at = at + RECORD_HEADER_BYTES as u64;
            return self.bad(at, "the content of a record fails its checksum");
        }
        self.buffer.truncate(payload_bytes);
        self.offset = at + (RECORD_HEADER_BYTES + payload_bytes + CHECKSUM_BYTES) as u64;
        Ok(Framed::Record(kind))
    }

    fn record(&mut self, at: u64, kind: u8) -> Result<Option<Record>, ReadError> {
        let count = self.processes.len();
        Ok(Some(match kind {
            kind::END => {
                let end = self.decode(at, |payload| payload.end())?;
                if self.peek()?.0 > 0 {
                    return damaged(self.offset, "bytes after the end of the recording");
                }
                Record::End(end)
            }
            kind::HEADER => return damaged(at, "a second header"),
            kind::PROCESS if self.minor >= format::MINOR_PROCESSES => {
                let process = self.decode(at, |payload| payload.process(count))?;
                self.processes.push(Contents::default());
                Record::Process(process)
            }
            kind::PROCESS_ENDED if self.minor >= format::MINOR_PROCESSES => {
                let (process, at_ns, end) =
                    self.decode(at, |payload| payload.process_ended(count))?;
                Record::ProcessEnded {
                    process,
                    at_ns,
                    end,
                }
            }
            kind::SHORT_LIVES if self.minor >= format::MINOR_INHERITED => {
                let (at_ns, count) = self.decode(at, |payload| payload.short_lives())?;
                Record::ShortLives { at_ns, count }
            }
            kind::OF_PROCESS if self.minor >= format::MINOR_PROCESSES => {
                let mut payload = Decoder::new(&self.buffer, self.minor);
                let (process, kind) = payload
                    .of_process(count)
                    .map_err(|wrong| wrong_field(at, &wrong))?;
                let contents = &mut self.processes[process as usize];
                match part(contents, payload, at, kind, self.minor)? {
                    Some(record) => Record::Of {
                        process,
                        record: Box::new(record),
                    },
                    None => return Ok(None),
                }
            }
            kind => {
                let payload = Decoder::new(&self.buffer, self.minor);
                return part(&mut self.processes[0], payload, at, kind, self.minor);
            }
        }))
    }

    /// Decodes the payload in the buffer, which belongs to the record at offset `at`.
    fn decode<T>(
        &self,
        at: u64,
        take: impl FnOnce(&mut Decoder<'_>) -> Result<T, Wrong>,
    ) -> Result<T, ReadError> {
        let mut payload = Decoder::new(&self.buffer, self.minor);
        take(&mut payload)
            .and_then(|value| payload.finish().map(|()| value))
            .map_err(|wrong| wrong_field(at, &wrong))
    }

    /// Reads the next `length` bytes into the buffer, fewer at the end of the file. The buffer
    /// grows with the bytes read, not with the length that a field claims.
    fn fill(&mut self, length: usize) -> Result<(), ReadError> {
        self.buffer.clear();
        let read = (&mut self.input)
            .take(length as u64)
            .read_to_end(&mut self.buffer);
        read.map(drop).map_err(|source| self.io(source))
    }

    /// Decides whether a record that failed its check is cut off (only zeros up to the end) or
    /// damaged.
    fn bad(&mut self, at: u64, what: &'static str) -> Result<Framed, ReadError> {
        let zeros = self.buffer.iter().rev().take_while(|byte| **byte == 0);
        let mut zeros = zeros.count() as u64;
        if zeros == 0 {
            return damaged(at, what);
        }
        loop {
            let (length, all_zero) = self.peek()?;
            if length == 0 {
                break;
            }
            if !all_zero {
                return damaged(at, what);
            }
            self.input.consume(length);
            zeros += length as u64;
        }
        if zeros >= ZERO_TAIL_BYTES_MIN {
            Ok(Framed::CutOff)
        } else {
            damaged(at, what)
        }
    }

    /// Number of buffered bytes, 0 only at the end of the file, and whether all of them are zero.
    fn peek(&mut self) -> Result<(usize, bool), ReadError> {
        loop {
            match self.input.fill_buf() {
                Ok(bytes) => return Ok((bytes.len(), bytes.iter().all(|byte| *byte == 0))),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(source) => return Err(self.io(source)),
            }
        }
    }

    fn io(&self, source: std::io::Error) -> ReadError {
        ReadError::Io {
            offset: self.offset,
            source,
        }
    }
}

/// Decodes a record of the type `kind` that belongs to one process, and checks it against what that
/// process has; `None` for a type of a later version.
fn part(
    contents: &mut Contents,
    mut payload: Decoder<'_>,
    at: u64,
    kind: u8,
    minor: u16,
) -> Result<Option<Record>, ReadError> {
    let wrong = |wrong| wrong_field(at, &wrong);
    let record = match kind {
        kind::MAPPING => {
            let mapping = payload.mapping().map_err(wrong)?;
            contents.add_mapping(mapping.last_round.is_some());
            Record::Mapping(mapping)
        }
        kind::MAPPING_GONE => {
            let (index, last_round) = payload.mapping_gone().map_err(wrong)?;
            match contents.is_mapped(index) {
                Some(true) => contents.remove_mapping(index),
                Some(false) => return damaged(at, "a mapping vanishes twice"),
                None => return damaged(at, "a mapping vanishes that never appeared"),
            }
            Record::MappingGone { index, last_round }
        }
        kind::ROUND => {
            let index = contents.rounds;
            let Some(rounds) = index.checked_add(1) else {
                return damaged(at, "more than 2^32 rounds");
            };
            contents.rounds = rounds;
            Record::Round(payload.round(index, contents.counts).map_err(wrong)?)
        }
        kind::STACKS if minor >= format::MINOR_STACKS => {
            let stacks = payload.stacks(contents.counts).map_err(wrong)?;
            contents.add_stacks(&stacks);
            Record::Stacks(stacks)
        }
        _ if minor > format::MINOR => return Ok(None),
        _ => return damaged(at, "an unknown type of record"),
    };
    payload.finish().map_err(wrong)?;
    Ok(Some(record))
}

/// The error for a field of the record that begins at `at`.
fn wrong_field(at: u64, wrong: &Wrong) -> ReadError {
    ReadError::Damaged {
        offset: at + (RECORD_HEADER_BYTES + wrong.position) as u64,
        what: wrong.what,
    }
}

fn damaged<T>(offset: u64, what: &'static str) -> Result<T, ReadError> {
    Err(ReadError::Damaged { offset, what })
}

impl Trail {
    /// Reads the whole trail of the first process: the one that was named or started. A trail that
    /// is cut off is no error: the result has all whole records and [`Trail::is_cut_off`] is true.
    /// [`TreeTrail::read`](crate::TreeTrail::read) reads the other processes, too.
    pub fn read(input: impl BufRead) -> Result<Self, ReadError> {
        let mut reader = Reader::open(input)?;
        let mut trail = Self::default();
        while let Some(record) = reader.next_record()? {
            trail.take(record);
        }
        trail.header = reader.header;
        Ok(trail)
    }

    /// Takes in a record of this process, and passes over those of others.
    pub(crate) fn take(&mut self, record: Record) {
        match record {
            Record::Mapping(mapping) => self.mappings.push(mapping),
            Record::MappingGone { index, last_round } => {
                if let Some(mapping) = self.mappings.get_mut(index) {
                    mapping.last_round = Some(last_round);
                }
            }
            Record::Round(round) => self.rounds.push(round),
            Record::Stacks(stacks) => self.stacks.append(stacks),
            Record::End(end) => {
                self.end.get_or_insert(end);
            }
            Record::ProcessEnded {
                process: 0, end, ..
            } => self.end = Some(end),
            Record::ProcessEnded { .. }
            | Record::Process(_)
            | Record::Of { .. }
            | Record::ShortLives { .. } => {}
        }
    }
}
