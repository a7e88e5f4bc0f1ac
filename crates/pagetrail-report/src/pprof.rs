//! The call stacks as a profile for `pprof` and what reads its format (Grafana, Parca, speedscope).
//!
//! The format is a protocol buffer, `profile.proto` of github.com/google/pprof; of it only what
//! stacks with one value need is written, uncompressed, as the format allows.

use std::collections::HashMap;
use std::io::{self, Write};

use super::words::printable;
use super::writers::Writers;

/// Numbers of the fields of `Profile`.
mod profile {
    pub(super) const SAMPLE_TYPE: u64 = 1;
    pub(super) const SAMPLE: u64 = 2;
    pub(super) const LOCATION: u64 = 4;
    pub(super) const FUNCTION: u64 = 5;
    pub(super) const STRING: u64 = 6;
    pub(super) const TIME_NANOS: u64 = 9;
    pub(super) const DURATION_NANOS: u64 = 10;
}

/// Writes the profile of a recording that began at a time.
pub(super) fn write(
    writers: &Writers,
    started_unix_ms: u64,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut strings = Strings::default();
    strings.number("");
    let mut bytes = Vec::new();
    let mut kind = Vec::new();
    put_number(&mut kind, 1, strings.number("dirty pages"));
    put_number(&mut kind, 2, strings.number("count"));
    put_bytes(&mut bytes, profile::SAMPLE_TYPE, &kind);
    let key = strings.number("thread");
    let mut locations = HashMap::new();
    for (stack, pages) in &writers.stacks {
        let Some((thread, functions)) = stack.split_first() else {
            continue;
        };
        let mut sample = Vec::new();
        // Innermost first.
        for name in functions.iter().rev() {
            let next = locations.len() as u64 + 1;
            let id = *locations.entry(name.as_str()).or_insert(next);
            put_number(&mut sample, 1, id);
        }
        put_number(&mut sample, 2, (*pages).min(i64::MAX as u64));
        let mut label = Vec::new();
        put_number(&mut label, 1, key);
        put_number(&mut label, 2, strings.number(&printable(thread)));
        put_bytes(&mut sample, 3, &label);
        put_bytes(&mut bytes, profile::SAMPLE, &sample);
    }
    let mut locations: Vec<_> = locations.into_iter().map(|(name, id)| (id, name)).collect();
    locations.sort_unstable();
    for (id, name) in locations {
        let mut line = Vec::new();
        put_number(&mut line, 1, id);
        let mut location = Vec::new();
        put_number(&mut location, 1, id);
        put_bytes(&mut location, 4, &line);
        put_bytes(&mut bytes, profile::LOCATION, &location);
        let name = strings.number(&printable(name));
        let mut function = Vec::new();
        put_number(&mut function, 1, id);
        put_number(&mut function, 2, name);
        put_number(&mut function, 3, name);
        put_bytes(&mut bytes, profile::FUNCTION, &function);
    }
    for string in &strings.all {
        put_bytes(&mut bytes, profile::STRING, string.as_bytes());
    }
    let started_ns = started_unix_ms.saturating_mul(1_000_000);
    put_number(
        &mut bytes,
        profile::TIME_NANOS,
        started_ns.min(i64::MAX as u64),
    );
    put_number(
        &mut bytes,
        profile::DURATION_NANOS,
        (writers.seconds * 1e9) as u64,
    );
    out.write_all(&bytes)
}

/// The strings of a profile, each once; the first is empty.
#[derive(Default)]
struct Strings {
    all: Vec<String>,
    numbers: HashMap<String, u64>,
}

impl Strings {
    fn number(&mut self, text: &str) -> u64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.all.len() as u64;
        self.all.push(text.into());
        self.numbers.insert(text.into(), number);
        number
    }
}

/// A field with a number: wire type 0.
fn put_number(out: &mut Vec<u8>, field: u64, number: u64) {
    put_varint(out, field << 3);
    put_varint(out, number);
}

/// A field with a string or a message: wire type 2.
fn put_bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    put_varint(out, field << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    /// Fields of a message: numbers with their value, or their bytes.
    fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, &[u8])> {
        fn varint(bytes: &mut &[u8]) -> u64 {
            let mut number = 0;
            for shift in (0..64).step_by(7) {
                let byte = bytes[0];
                *bytes = &bytes[1..];
                number |= u64::from(byte & 0x7f) << shift;
                if byte < 0x80 {
                    break;
                }
            }
            number
        }
        let mut all = Vec::new();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes);
            let number = varint(&mut bytes);
            match tag & 7 {
                0 => all.push((tag >> 3, number, &[][..])),
                _ => {
                    let (content, rest) = bytes.split_at(number as usize);
                    all.push((tag >> 3, 0, content));
                    bytes = rest;
                }
            }
        }
        all
    }

    #[test]
    fn a_recording_comes_back() {
        let writers = Writers::of(&testing::program_with_stacks(2)).expect("sampled");
        let mut out = Vec::new();
        write(&writers, 5, &mut out).expect("a Vec takes all");
        let profile = fields(&out);
        let strings: Vec<_> = profile
            .iter()
            .filter(|field| field.0 == profile::STRING)
            .map(|field| std::str::from_utf8(field.2).expect("UTF-8"))
            .collect();
        assert_eq!(strings[0], "");
        let names: HashMap<u64, &str> = profile
            .iter()
            .filter(|field| field.0 == profile::FUNCTION)
            .map(|field| {
                let function = fields(field.2);
                (function[0].1, strings[function[1].1 as usize])
            })
            .collect();
        let samples: Vec<_> = profile
            .iter()
            .filter(|field| field.0 == profile::SAMPLE)
            .map(|field| {
                let sample = fields(field.2);
                let ids = sample.iter().filter(|field| field.0 == 1);
                let stack: Vec<_> = ids.map(|field| names[&field.1]).collect();
                let value = sample.iter().find(|field| field.0 == 2).expect("a value").1;
                (stack.join("<"), value)
            })
            .collect();
        assert_eq!(
            samples,
            [
                ("[kernel]<start".to_owned(), 2),
                ("recurse<recurse<start".to_owned(), 12)
            ]
        );
        let time = profile.iter().find(|field| field.0 == profile::TIME_NANOS);
        assert_eq!(time.expect("a time").1, 5_000_000);
    }
}
