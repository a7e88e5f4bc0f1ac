//! Encodes and decodes records about processes after the first.

use super::{Decoded, Decoder, put_end, put_header, put_number, put_set};
use crate::{End, Inherited, Origin, Process, format};

mod origin {
    pub(super) const ROOT: u8 = 0;
    pub(super) const PRESENT: u8 = 1;
    pub(super) const NEW: u8 = 2;
}

pub(crate) fn put_process(out: &mut Vec<u8>, process: &Process) {
    put_number(
        out,
        process.parent.map_or(0, |parent| u64::from(parent) + 1),
    );
    out.push(match process.origin {
        Origin::Root => origin::ROOT,
        Origin::Present => origin::PRESENT,
        Origin::New => origin::NEW,
    });
    put_number(out, process.appeared_ns);
    put_header(out, &process.header);
    put_set(out, &process.inherited.pages);
    put_set(out, &process.inherited.shared);
}

/// What comes before the payload of a record of type `kind` that belongs to a process.
pub(crate) fn put_of_process(out: &mut Vec<u8>, process: u32, kind: u8) {
    put_number(out, process.into());
    out.push(kind);
}

pub(crate) fn put_process_ended(out: &mut Vec<u8>, process: u32, at_ns: u64, end: &End) {
    put_number(out, process.into());
    put_number(out, at_ns);
    put_end(out, end);
}

pub(crate) fn put_short_lives(out: &mut Vec<u8>, at_ns: u64, count: u64) {
    put_number(out, at_ns);
    put_number(out, count);
}

impl Decoder<'_> {
    /// Decodes a process; `number` is its own.
    pub(crate) fn process(&mut self, number: usize) -> Decoded<Process> {
        let parent = match self.number()?.checked_sub(1) {
            None => None,
            Some(parent) if parent < number as u64 => Some(parent as u32),
            Some(_) => return self.wrong("a parent that has not appeared"),
        };
        let origin = match self.byte()? {
            origin::ROOT => Origin::Root,
            origin::PRESENT => Origin::Present,
            origin::NEW => Origin::New,
            _ if self.is_later() => Origin::New,
            _ => return self.wrong("an unknown origin of a process"),
        };
        let appeared_ns = self.number()?;
        let header = self.header()?;
        let inherited = match self.minor >= format::MINOR_INHERITED {
            true => Inherited {
                pages: self.set()?,
                shared: self.set()?,
            },
            false => Inherited::default(),
        };
        Ok(Process {
            parent,
            origin,
            appeared_ns,
            inherited,
            header,
        })
    }

    /// Decodes to which of `count` processes a record belongs, and its type.
    pub(crate) fn of_process(&mut self, count: usize) -> Decoded<(u32, u8)> {
        let process = self.process_number(count)?;
        if process == 0 {
            return self.wrong("a record of the first process that is marked as one of another");
        }
        Ok((process, self.byte()?))
    }

    pub(crate) fn process_ended(&mut self, count: usize) -> Decoded<(u32, u64, End)> {
        Ok((self.process_number(count)?, self.number()?, self.end()?))
    }

    /// Decodes a count of short lives, and when they were noticed.
    pub(crate) fn short_lives(&mut self) -> Decoded<(u64, u64)> {
        Ok((self.number()?, self.number()?))
    }

    fn process_number(&mut self, count: usize) -> Decoded<u32> {
        let process = self.number_u32()?;
        match (process as usize) < count {
            true => Ok(process),
            false => self.wrong("a process that has not appeared"),
        }
    }
}
