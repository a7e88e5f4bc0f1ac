//! [`Writer`]: appends records to a trail file during the recording, one write per record.

use std::io::Write;

use pagetrail::PageSet;

use crate::contents::Contents;
use crate::error::WriteError;
use crate::format::{self, CHECKSUM_BYTES, PAYLOAD_BYTES_MAX, RECORD_HEADER_BYTES, kind};
use crate::payload;
use crate::{End, Header, Mapping, Process, Round, StackTable, Trail};

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
    /// What each process has so far.
    processes: Vec<Contents>,
    /// The number of the process to which the next records belong.
    selected: u32,
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
            processes: vec![Contents::default()],
            selected: 0,
            failed: false,
        };
        let prologue = format::prologue(format::MAJOR, format::MINOR);
        writer.write(&prologue)?;
        writer.record(kind::HEADER, |out| payload::put_header(out, header))?;
        Ok(writer)
    }

    /// Adds a process, and returns its number. Mappings, rounds and stacks are added to it after
    /// [`Self::select`].
    pub fn process(&mut self, process: &Process) -> Result<u32, WriteError> {
        self.check_open()?;
        let Ok(number) = u32::try_from(self.processes.len()) else {
            return invalid("more than 2^32 processes");
        };
        if process.parent.is_some_and(|parent| parent >= number) {
            return invalid("the parent has not appeared");
        }
        if !process.header.page_size.is_power_of_two() {
            return invalid("the page size is not a power of two");
        }
        let inherited = [&process.inherited.pages, &process.inherited.shared];
        if !inherited.into_iter().all(fits) {
            return invalid("an inherited address at or above 2^63");
        }
        self.record(kind::PROCESS, |out| payload::put_process(out, process))?;
        self.processes.push(Contents::default());
        Ok(number)
    }

    /// Selects the process to which the next mappings, rounds and stacks belong; at first it is 0,
    /// that of the header. Each process has mappings, rounds and stacks that are numbered for
    /// itself.
    pub fn select(&mut self, process: u32) -> Result<(), WriteError> {
        if process as usize >= self.processes.len() {
            return invalid("the process has not appeared");
        }
        self.selected = process;
        Ok(())
    }

    /// Records that a process ended while the recording goes on; `at_ns` is since it started.
    pub fn process_ended(&mut self, process: u32, at_ns: u64, end: &End) -> Result<(), WriteError> {
        self.check_open()?;
        if process as usize >= self.processes.len() {
            return invalid("the process has not appeared");
        }
        self.record(kind::PROCESS_ENDED, |out| {
            payload::put_process_ended(out, process, at_ns, end);
        })
    }

    /// Records that so many processes began and ended between two rounds; `at_ns` is when that was
    /// noticed, since the recording started.
    pub fn short_lives(&mut self, at_ns: u64, count: u64) -> Result<(), WriteError> {
        self.check_open()?;
        self.record(kind::SHORT_LIVES, |out| {
            payload::put_short_lives(out, at_ns, count);
        })
    }

    /// Adds a mapping that appeared, before the first round that covers it. Returns the index of
    /// the mapping in [`Trail::mappings`], which [`Writer::mapping_gone`] takes.
    pub fn mapping(&mut self, mapping: &Mapping) -> Result<usize, WriteError> {
        self.check_open()?;
        let index = self.contents().next_mapping();
        if u32::try_from(index).is_err() {
            return invalid("more than 2^32 mappings");
        }
        self.part(kind::MAPPING, |out| payload::put_mapping(out, mapping))?;
        self.contents_mut()
            .add_mapping(mapping.last_round.is_some());
        Ok(index)
    }

    /// Records that a mapping has vanished; `last_round` is the last round that covers it.
    pub fn mapping_gone(&mut self, index: usize, last_round: u32) -> Result<(), WriteError> {
        self.check_open()?;
        match self.contents().is_mapped(index) {
            Some(true) => {}
            Some(false) => return invalid("the mapping has vanished before"),
            None => return invalid("the mapping that vanishes never appeared"),
        }
        self.part(kind::MAPPING_GONE, |out| {
            payload::put_mapping_gone(out, index, last_round);
        })?;
        self.contents_mut().remove_mapping(index);
        Ok(())
    }

    /// Adds call stacks, before the first round that refers to them. Entries are numbered on from
    /// those added before.
    pub fn stacks(&mut self, stacks: &StackTable) -> Result<(), WriteError> {
        self.check_open()?;
        if let Some(what) = self.contents().counts.refuse(stacks) {
            return invalid(what);
        }
        self.part(kind::STACKS, |out| payload::put_stacks(out, stacks))?;
        self.contents_mut().add_stacks(stacks);
        Ok(())
    }

    /// Adds a round. Rounds are numbered from 0 without gaps.
    pub fn round(&mut self, round: &Round) -> Result<(), WriteError> {
        self.check_open()?;
        if round.index != self.contents().rounds {
            return invalid("the round is out of order");
        }
        let Some(next) = self.contents().rounds.checked_add(1) else {
            return invalid("more than 2^32 rounds");
        };
        let writers = round.attribution.iter().flat_map(|found| &found.writers);
        let attributed = writers.map(|writer| &writer.pages);
        for set in [&round.written, &round.newly_mapped]
            .into_iter()
            .chain(attributed)
        {
            if !fits(set) {
                return invalid("a written address at or above 2^63");
            }
        }
        let refused = round.attribution.as_ref();
        if let Some(what) =
            refused.and_then(|found| self.contents().counts.refuse_attribution(found))
        {
            return invalid(what);
        }
        self.part(kind::ROUND, |out| payload::put_round(out, round))?;
        self.contents_mut().rounds = next;
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

    /// What the selected process has so far.
    fn contents(&self) -> &Contents {
        &self.processes[self.selected as usize]
    }

    fn contents_mut(&mut self) -> &mut Contents {
        &mut self.processes[self.selected as usize]
    }

    /// Writes a record that belongs to the selected process.
    fn part(&mut self, kind: u8, put_payload: impl FnOnce(&mut Vec<u8>)) -> Result<(), WriteError> {
        match self.selected {
            0 => self.record(kind, put_payload),
            process => self.record(kind::OF_PROCESS, |out| {
                payload::put_of_process(out, process, kind);
                put_payload(out);
            }),
        }
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
            rounds: self.contents().rounds,
            source,
        }
    }
}

/// Whether a set can be written.
fn fits(set: &PageSet) -> bool {
    let end = set.ranges().last().map_or(0, |range| range.end());
    end <= payload::ADDRESS_MAX
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
