//! [`Writer`]: appends records to a trail file during the recording, one write per record.

use std::io::Write;

use crate::error::WriteError;
use crate::format::{self, CHECKSUM_BYTES, PAYLOAD_BYTES_MAX, RECORD_HEADER_BYTES, kind};
use crate::payload::{self, Counts};
use crate::{End, Header, Mapping, Round, StackTable, Trail};

/// Writes a trail, record by record.
///
/// Each record is handed to the output in one `write_all` and nothing is held back, so give it the
/// bare file. When a write fails (disk full), all records before it are readable and the writer
/// refuses further ones with [`WriteError::Closed`]. Strings longer than 65536 bytes are cut there.
///
/// The caller makes the file durable with `fsync(2)`: see [`Writer::get_ref`].
#[derive(Debug)]
pub struct Writer<W> {
    output: W,
    /// Bytes written so far, all in whole records.
    offset: u64,
    /// Reused for every record, to allocate only once.
    buffer: Vec<u8>,
    /// Whether each mapping has vanished.
    mappings: Vec<bool>,
    rounds: u32,
    /// How many stacks, frames and modules there are so far.
    counts: Counts,
    failed: bool,
}

impl<W: Write> Writer<W> {
    /// Writes the beginning of a trail. The output must be empty, or positioned where the trail
    /// begins.
    pub fn create(output: W, header: &Header) -> Result<Self, WriteError> {
        if !header.page_size.is_power_of_two() {
            return invalid("the page size is not a power of two");
        }
        let mut writer = Self {
            output,
            offset: 0,
            buffer: Vec::new(),
            mappings: Vec::new(),
            rounds: 0,
            counts: Counts::default(),
            failed: false,
        };
        let prologue = format::prologue(format::MAJOR, format::MINOR);
        writer.write(&prologue)?;
        writer.record(kind::HEADER, |out| payload::put_header(out, header))?;
        Ok(writer)
    }

    /// Adds a mapping that appeared, before the first round that covers it. Returns the index of
    /// the mapping in [`Trail::mappings`], which [`Writer::mapping_gone`] takes.
    pub fn mapping(&mut self, mapping: &Mapping) -> Result<usize, WriteError> {
        self.check_open()?;
        let index = self.mappings.len();
        if u32::try_from(index).is_err() {
            return invalid("more than 2^32 mappings");
        }
        self.record(kind::MAPPING, |out| payload::put_mapping(out, mapping))?;
        self.mappings.push(mapping.last_round.is_some());
        Ok(index)
    }

    /// Records that a mapping has vanished; `last_round` is the last round that covers it.
    pub fn mapping_gone(&mut self, index: usize, last_round: u32) -> Result<(), WriteError> {
        self.check_open()?;
        match self.mappings.get(index) {
            Some(false) => {}
            Some(true) => return invalid("the mapping has vanished before"),
            None => return invalid("the mapping that vanishes never appeared"),
        }
        self.record(kind::MAPPING_GONE, |out| {
            payload::put_mapping_gone(out, index, last_round);
        })?;
        self.mappings[index] = true;
        Ok(())
    }

    /// Adds call stacks, before the first round that refers to them. Entries are numbered on from
    /// those added before.
    pub fn stacks(&mut self, stacks: &StackTable) -> Result<(), WriteError> {
        self.check_open()?;
        if let Some(what) = self.counts.refuse(stacks) {
            return invalid(what);
        }
        self.record(kind::STACKS, |out| payload::put_stacks(out, stacks))?;
        self.counts = self.counts.and(stacks);
        Ok(())
    }

    /// Adds a round. Rounds are numbered from 0 without gaps.
    pub fn round(&mut self, round: &Round) -> Result<(), WriteError> {
        self.check_open()?;
        if round.index != self.rounds {
            return invalid("the round is out of order");
        }
        let Some(next) = self.rounds.checked_add(1) else {
            return invalid("more than 2^32 rounds");
        };
        let writers = round.attribution.iter().flat_map(|found| &found.writers);
        let attributed = writers.map(|writer| &writer.pages);
        for set in [&round.written, &round.newly_mapped]
            .into_iter()
            .chain(attributed)
        {
            let end = set.ranges().last().map_or(0, |range| range.end());
            if end > payload::ADDRESS_MAX {
                return invalid("a written address at or above 2^63");
            }
        }
        let refused = round.attribution.as_ref();
        if let Some(what) = refused.and_then(|found| self.counts.refuse_attribution(found)) {
            return invalid(what);
        }
        self.record(kind::ROUND, |out| payload::put_round(out, round))?;
        self.rounds = next;
        Ok(())
    }

    /// Ends the trail and returns the output. A trail without an end reads as cut off.
    pub fn finish(mut self, end: &End) -> Result<W, WriteError> {
        self.check_open()?;
        self.record(kind::END, |out| payload::put_end(out, end))?;
        self.output.flush().map_err(|source| self.io(source))?;
        Ok(self.output)
    }

    /// The output, for `fsync(2)` and the like; writing to it would damage the trail.
    pub fn get_ref(&self) -> &W {
        &self.output
    }

    /// Bytes written so far.
    pub fn bytes(&self) -> u64 {
        self.offset
    }

    fn check_open(&self) -> Result<(), WriteError> {
        if self.failed {
            Err(WriteError::Closed)
        } else {
            Ok(())
        }
    }

    fn record(
        &mut self,
        kind: u8,
        put_payload: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), WriteError> {
        let mut bytes = std::mem::take(&mut self.buffer);
        bytes.clear();
        bytes.resize(RECORD_HEADER_BYTES, 0);
        put_payload(&mut bytes);
        let payload_bytes = bytes.len() - RECORD_HEADER_BYTES;
        if payload_bytes > PAYLOAD_BYTES_MAX {
            return invalid("a record longer than 1 GiB");
        }
        let header = format::record_header(self.offset, kind, payload_bytes as u32);
        bytes[..RECORD_HEADER_BYTES].copy_from_slice(&header);
        bytes.reserve(CHECKSUM_BYTES);
        let checksum = format::checksum(self.offset, &[&bytes]);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        let done = self.write(&bytes);
        self.buffer = bytes;
        done
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        match self.output.write_all(bytes) {
            Ok(()) => {
                self.offset += bytes.len() as u64;
                Ok(())
            }
            Err(source) => {
                self.failed = true;
                Err(self.io(source))
            }
        }
    }

    fn io(&self, source: std::io::Error) -> WriteError {
        WriteError::Io {
            offset: self.offset,
            rounds: self.rounds,
            source,
        }
    }
}

fn invalid<T>(what: &'static str) -> Result<T, WriteError> {
    Err(WriteError::Invalid { what })
}

impl Trail {
    /// Writes the whole trail, each mapping before the first round that covers it. If
    /// [`Trail::end`] is `None`, the file reads as cut off.
    pub fn write(&self, output: impl Write) -> Result<(), WriteError> {
        let mut writer = Writer::create(output, &self.header)?;
        if !self.stacks.is_empty() {
            writer.stacks(&self.stacks)?;
        }
        let mut mappings = self.mappings.iter().peekable();
        for round in &self.rounds {
            while let Some(mapping) = mappings.next_if(|m| m.first_round <= round.index) {
                writer.mapping(mapping)?;
            }
            writer.round(round)?;
        }
        for mapping in mappings {
            writer.mapping(mapping)?;
        }
        match &self.end {
            Some(end) => writer.finish(end).map(drop),
            None => Ok(()),
        }
    }
}
