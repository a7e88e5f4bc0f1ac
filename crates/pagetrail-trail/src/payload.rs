//! Encodes and decodes the payload of a record: numbers, strings, sets and the parts of a trail.
//!
//! Decoding accepts hostile bytes: every length is checked against the bytes that are left, nothing
//! overflows, and memory is allocated only for data that is there. `docs/trail-format.md` gives
//! every byte.

use pagetrail::{AccessKind, PageRange, PageSet};

mod overhead;
mod processes;
mod stacks;

pub(crate) use processes::{put_of_process, put_process, put_process_ended, put_short_lives};
pub(crate) use stacks::{Counts, put_stacks};

use crate::{End, Event, Header, Mapping, Predicted, Round, SharedMemory, SubpageWrites, format};

/// Longer strings are cut when they are written and refused when they are read.
pub(crate) const STRING_BYTES_MAX: usize = 1 << 16;

/// Addresses in sets end here, so that a gap and its flag fit into 64 bits. Linux programs end at
/// 2^57.
pub(crate) const ADDRESS_MAX: u64 = 1 << 63;

mod event {
    pub(super) const EXEC: u8 = 1;
    pub(super) const CHILDREN: u8 = 2;
    pub(super) const NOTE: u8 = 3;
}

mod end {
    pub(super) const EXITED: u8 = 1;
    pub(super) const KILLED: u8 = 2;
    pub(super) const GONE: u8 = 3;
    pub(super) const DETACHED: u8 = 4;
}

pub(crate) fn put_header(out: &mut Vec<u8>, header: &Header) {
    put_number(out, header.pid.into());
    put_number(out, header.page_size);
    put_number(out, header.interval_ms);
    put_number(out, header.started_unix_ms);
    put_number(out, header.attach_stopped_ns);
    put_string(out, &header.technique);
    put_string(out, &header.reason);
    put_number(out, header.command.len() as u64);
    for argument in &header.command {
        put_string(out, argument);
    }
}

pub(crate) fn put_mapping(out: &mut Vec<u8>, mapping: &Mapping) {
    put_number(out, mapping.range.start());
    put_number(out, mapping.range.bytes());
    put_number(out, mapping.first_round.into());
    put_number(
        out,
        mapping.last_round.map_or(0, |last| u64::from(last) + 1),
    );
    put_string(out, &mapping.name);
    put_string(out, &mapping.permissions);
    out.push(mapping.untracked.is_some().into());
    if let Some(why) = &mapping.untracked {
        put_string(out, why);
    }
    out.push(mapping.shared.is_some().into());
    if let Some(shared) = &mapping.shared {
        put_number(out, shared.device.0.into());
        put_number(out, shared.device.1.into());
        put_number(out, shared.inode);
        put_number(out, shared.offset);
    }
}

pub(crate) fn put_mapping_gone(out: &mut Vec<u8>, index: usize, last_round: u32) {
    put_number(out, index as u64);
    put_number(out, last_round.into());
}

pub(crate) fn put_round(out: &mut Vec<u8>, round: &Round) {
    put_number(out, round.start_ns);
    put_number(out, round.duration_ns);
    put_number(out, round.collect_ns);
    put_number(out, round.stopped_ns);
    out.push(round.faults.is_some().into());
    if let Some(faults) = round.faults {
        put_number(out, faults);
    }
    put_set(out, &round.written);
    put_set(out, &round.newly_mapped);
    put_number(out, round.events.len() as u64);
    let mut body = Vec::new();
    for event in &round.events {
        body.clear();
        out.push(match event {
            Event::Exec(command) => {
                put_string(&mut body, command);
                event::EXEC
            }
            Event::Children(count) => {
                put_number(&mut body, (*count).into());
                event::CHILDREN
            }
            Event::Note(text) => {
                put_string(&mut body, text);
                event::NOTE
            }
        });
        put_number(out, body.len() as u64);
        out.extend_from_slice(&body);
    }
    out.push((round.access_kind == AccessKind::Accesses).into());
    put_number(out, round.blind_ns);
    out.push(round.predicted.is_some().into());
    if let Some(predicted) = &round.predicted {
        put_number(out, predicted.pages);
        put_number(out, predicted.faults_avoided);
        put_number(out, predicted.false_positives);
        put_number(out, predicted.memory_bytes);
    }
    out.push(round.subpages.is_some().into());
    if let Some(subpages) = &round.subpages {
        put_number(out, subpages.subpages_per_page.into());
        put_set(out, &subpages.aliases);
        put_set(out, &subpages.dirty);
    }
    out.push(round.attribution.is_some().into());
    if let Some(attribution) = &round.attribution {
        stacks::put_attribution(out, attribution);
    }
    out.push(round.overhead.is_some().into());
    if let Some(overhead) = &round.overhead {
        overhead::put_overhead(out, overhead);
    }
}

pub(crate) fn put_end(out: &mut Vec<u8>, end: &End) {
    let (kind, value) = match *end {
        End::Exited(code) => (end::EXITED, code),
        End::Killed(signal) => (end::KILLED, signal),
        End::Gone => (end::GONE, 0),
        End::Detached => (end::DETACHED, 0),
    };
    out.push(kind);
    out.extend_from_slice(&value.to_le_bytes());
}

/// LEB128: seven bits a byte, the lowest first, the top bit set on all bytes but the last.
fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    let mut length = text.len().min(STRING_BYTES_MAX);
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    put_number(out, length as u64);
    out.extend_from_slice(&text.as_bytes()[..length]);
}

/// In the largest unit that divides all addresses, so that whole and part pages cost the same. A
/// range is its distance from the one before and, in the lowest bit, whether it is longer than one
/// unit.
fn put_set(out: &mut Vec<u8>, set: &PageSet) {
    let bits = set
        .ranges()
        .iter()
        .fold(0, |bits, range| bits | range.start() | range.end());
    let shift = if bits == 0 { 0 } else { bits.trailing_zeros() };
    out.push(shift as u8);
    put_number(out, set.ranges().len() as u64);
    let mut free = 0;
    for range in set.ranges() {
        let gap = (range.start() >> shift) - free;
        let length = range.bytes() >> shift;
        put_number(out, gap << 1 | u64::from(length > 1));
        if length > 1 {
            put_number(out, length - 2);
        }
        // Ranges never touch: the next one begins at least one unit after this end.
        free = (range.end() >> shift) + 1;
    }
}

/// An invalid field of a payload and its position.
#[derive(Debug)]
pub(crate) struct Wrong {
    pub(crate) position: usize,
    pub(crate) what: &'static str,
}

/// Decodes a payload from its beginning.
pub(crate) struct Decoder<'a> {
    bytes: &'a [u8],
    position: usize,
    /// The minor version that wrote the payload. A later version may have fields that this one does
    /// not know.
    minor: u16,
}

type Decoded<T> = Result<T, Wrong>;

impl<'a> Decoder<'a> {
    pub(crate) fn new(bytes: &'a [u8], minor: u16) -> Self {
        Self {
            bytes,
            position: 0,
            minor,
        }
    }

    fn is_later(&self) -> bool {
        self.minor > format::MINOR
    }

    /// Checks that all bytes were decoded. A later version may have added fields at the end.
    pub(crate) fn finish(self) -> Decoded<()> {
        if self.left() == 0 || self.is_later() {
            Ok(())
        } else {
            self.wrong("more bytes in the record than its fields need")
        }
    }

    pub(crate) fn header(&mut self) -> Decoded<Header> {
        let pid = self.number_u32()?;
        let page_size = self.number()?;
        if !page_size.is_power_of_two() {
            return self.wrong("the page size is not a power of two");
        }
        let interval_ms = self.number()?;
        let started_unix_ms = self.number()?;
        let attach_stopped_ns = self.number()?;
        let technique = self.string()?;
        let reason = self.string()?;
        let arguments = self.count()?;
        // An empty string takes 24 bytes of memory for one of file: let the vector grow with what
        // is there.
        let mut command = Vec::new();
        for _ in 0..arguments {
            command.push(self.string()?);
        }
        Ok(Header {
            command,
            pid,
            page_size,
            technique,
            reason,
            interval_ms,
            started_unix_ms,
            attach_stopped_ns,
        })
    }

    pub(crate) fn mapping(&mut self) -> Decoded<Mapping> {
        let start = self.number()?;
        let bytes = self.number()?;
        let range = start
            .checked_add(bytes)
            .and_then(|end| PageRange::new(start, end));
        let Some(range) = range else {
            return self.wrong("a mapping that is empty or ends after the last address");
        };
        let first_round = self.number_u32()?;
        let last_round = match self.number()?.checked_sub(1) {
            None => None,
            Some(last) => match u32::try_from(last) {
                Ok(last) => Some(last),
                Err(_) => return self.wrong("a number of a round that does not fit into 32 bits"),
            },
        };
        Ok(Mapping {
            range,
            name: self.string()?,
            permissions: self.string()?,
            untracked: if self.flag()? {
                Some(self.string()?)
            } else {
                None
            },
            shared: match self.minor >= format::MINOR_SHARED && self.flag()? {
                true => Some(SharedMemory {
                    device: (self.number_u32()?, self.number_u32()?),
                    inode: self.number()?,
                    offset: self.number()?,
                }),
                false => None,
            },
            first_round,
            last_round,
        })
    }

    pub(crate) fn mapping_gone(&mut self) -> Decoded<(usize, u32)> {
        Ok((self.number_u32()? as usize, self.number_u32()?))
    }

    pub(crate) fn round(&mut self, index: u32, known: Counts) -> Decoded<Round> {
        let mut round = Round {
            index,
            start_ns: self.number()?,
            duration_ns: self.number()?,
            collect_ns: self.number()?,
            stopped_ns: self.number()?,
            faults: if self.flag()? {
                Some(self.number()?)
            } else {
                None
            },
            written: self.set()?,
            newly_mapped: self.set()?,
            events: self.events()?,
            ..Round::default()
        };
        if self.minor >= format::MINOR_ACCESS_KIND {
            if self.flag()? {
                round.access_kind = AccessKind::Accesses;
            }
            round.blind_ns = self.number()?;
        }
        if self.minor >= format::MINOR_PREDICTED && self.flag()? {
            round.predicted = Some(Predicted {
                pages: self.number()?,
                faults_avoided: self.number()?,
                false_positives: self.number()?,
                memory_bytes: self.number()?,
            });
        }
        if self.minor >= format::MINOR_SUBPAGES && self.flag()? {
            let subpages_per_page = self.number_u32()?;
            if !subpages_per_page.is_power_of_two() {
                return self.wrong("the number of sub-pages in a page is not a power of two");
            }
            round.subpages = Some(SubpageWrites {
                subpages_per_page,
                aliases: self.set()?,
                dirty: self.set()?,
            });
        }
        if self.minor >= format::MINOR_STACKS && self.flag()? {
            round.attribution = Some(self.attribution(known)?);
        }
        if self.minor >= format::MINOR_OVERHEAD && self.flag()? {
            round.overhead = Some(self.overhead()?);
        }
        Ok(round)
    }

    pub(crate) fn end(&mut self) -> Decoded<End> {
        let kind = self.byte()?;
        let value = self.take(4)?;
        let value = i32::from_le_bytes([value[0], value[1], value[2], value[3]]);
        match kind {
            end::EXITED => Ok(End::Exited(value)),
            end::KILLED => Ok(End::Killed(value)),
            end::GONE => Ok(End::Gone),
            end::DETACHED => Ok(End::Detached),
            _ if self.is_later() => Ok(End::Gone),
            _ => self.wrong("an unknown kind of end"),
        }
    }

    fn events(&mut self) -> Decoded<Vec<Event>> {
        let count = self.count()?;
        let mut events = Vec::new();
        for _ in 0..count {
            let kind = self.byte()?;
            let length = self.count()?;
            let begin = self.position;
            let mut body = Decoder::new(self.take(length)?, self.minor);
            let event = match kind {
                event::EXEC => body.string().map(Event::Exec),
                event::CHILDREN => body.number_u32().map(Event::Children),
                event::NOTE => body.string().map(Event::Note),
                _ if self.is_later() => continue,
                _ => body.wrong("an unknown kind of event"),
            };
            let event = event.and_then(|event| body.finish().map(|()| event));
            events.push(event.map_err(|wrong| Wrong {
                position: begin + wrong.position,
                ..wrong
            })?);
        }
        Ok(events)
    }

    fn set(&mut self) -> Decoded<PageSet> {
        let shift = self.byte()?;
        if shift >= 64 {
            return self.wrong("a unit of addresses beyond 64 bits");
        }
        let end_max = ADDRESS_MAX >> shift;
        let count = self.count()?;
        let mut set = PageSet::new();
        let mut free = 0_u64;
        for _ in 0..count {
            let gap = self.number()?;
            let length = if gap & 1 == 0 {
                Some(1)
            } else {
                self.number()?.checked_add(2)
            };
            let start = free.checked_add(gap >> 1);
            let end = start
                .zip(length)
                .and_then(|(start, length)| start.checked_add(length))
                .filter(|end| *end <= end_max);
            let (Some(start), Some(end)) = (start, end) else {
                return self.wrong("a range that ends after the last address");
            };
            if let Some(range) = PageRange::new(start << shift, end << shift) {
                set.insert(range);
            }
            free = end + 1;
        }
        Ok(set)
    }

    fn string(&mut self) -> Decoded<String> {
        let length = self.count()?;
        if length > STRING_BYTES_MAX {
            return self.wrong("a string longer than 65536 bytes");
        }
        match std::str::from_utf8(self.take(length)?) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => self.wrong("a string that is no UTF-8"),
        }
    }

    fn flag(&mut self) -> Decoded<bool> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => self.wrong("a flag that is neither 0 nor 1"),
        }
    }

    /// A number of things that take at least one byte each, so that there cannot be more than
    /// bytes.
    fn count(&mut self) -> Decoded<usize> {
        let count = self.number()?;
        match usize::try_from(count) {
            Ok(count) if count <= self.left() => Ok(count),
            _ => self.wrong("a count beyond the end of its record"),
        }
    }

    fn number_u32(&mut self) -> Decoded<u32> {
        match u32::try_from(self.number()?) {
            Ok(number) => Ok(number),
            Err(_) => self.wrong("a number that does not fit into 32 bits"),
        }
    }

    fn number(&mut self) -> Decoded<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        self.wrong("a number that does not fit into 64 bits")
    }

    fn byte(&mut self) -> Decoded<u8> {
        Ok(self.take(1)?[0])
    }

    fn take(&mut self, length: usize) -> Decoded<&'a [u8]> {
        match self.bytes.get(self.position..self.position + length) {
            Some(bytes) => {
                self.position += length;
                Ok(bytes)
            }
            None => self.wrong("a field beyond the end of its record"),
        }
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.position
    }

    fn wrong<T>(&self, what: &'static str) -> Decoded<T> {
        Err(Wrong {
            position: self.position,
            what,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_all_lengths_come_back_and_longer_ones_are_wrong() {
        for bits in 0..64 {
            for number in [(1 << bits) - 1, 1 << bits, u64::MAX >> bits] {
                let mut bytes = Vec::new();
                put_number(&mut bytes, number);
                assert_eq!(
                    Decoder::new(&bytes, format::MINOR).number().unwrap(),
                    number
                );
                let cut = Decoder::new(&bytes[..bytes.len() - 1], format::MINOR).number();
                assert_eq!(cut.unwrap_err().position, bytes.len() - 1);
            }
        }
        for tenth in [2, 0x7f, 0x80, 0x81] {
            let mut bytes = [0xff; 11];
            bytes[9] = tenth;
            assert!(Decoder::new(&bytes, format::MINOR).number().is_err());
        }
    }
}
