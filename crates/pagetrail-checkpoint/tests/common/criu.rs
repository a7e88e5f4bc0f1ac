//! A client of CRIU's page-server protocol, as `criu/page-xfer.c` writes it, and the memory that it
//! dumps: the oracle for what the store gives back.

#![allow(dead_code, reason = "each test uses its part")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;

pub(crate) const PAGE: u64 = 4096;

pub(crate) const HOLE: u32 = 2;
pub(crate) const OPEN: u32 = 4;
pub(crate) const PARENT: u32 = 5;
pub(crate) const ADD: u32 = 6;
pub(crate) const GET: u32 = 7;
pub(crate) const CLOSE: u32 = 0x1023;
pub(crate) const FORCE_CLOSE: u32 = 0x1024;

pub(crate) const IN_PARENT: u32 = 1;
pub(crate) const LAZY: u32 = 2;
pub(crate) const PRESENT: u32 = 4;

/// What CRIU 4.1 sends and, where the counts are long, what CRIU 4.2 sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client<S> {
    pub(crate) stream: S,
    pub(crate) long: bool,
}

pub(crate) fn process(pid: u32) -> u64 {
    u64::from(pid) << 8 | 1
}

pub(crate) fn shared(id: u64) -> u64 {
    id << 8 | 2
}

pub(crate) fn request(long: bool, command: u32, pages: u64, address: u64, whose: u64) -> Vec<u8> {
    let mut bytes = command.to_ne_bytes().to_vec();
    if long {
        bytes.extend([0; 4]);
        bytes.extend(pages.to_ne_bytes());
    } else {
        bytes.extend((pages as u32).to_ne_bytes());
    }
    bytes.extend(address.to_ne_bytes());
    bytes.extend(whose.to_ne_bytes());
    bytes
}

impl<S: Read + Write> Client<S> {
    pub(crate) fn send(&mut self, command: u32, pages: u64, at: u64, whose: u64) -> io::Result<()> {
        let bytes = request(self.long, command, pages, at, whose);
        self.stream.write_all(&bytes)
    }

    fn number(&mut self) -> io::Result<i32> {
        let mut bytes = [0; 4];
        self.stream.read_exact(&mut bytes)?;
        Ok(i32::from_ne_bytes(bytes))
    }

    pub(crate) fn open(&mut self, whose: u64) -> io::Result<bool> {
        self.send(OPEN, 0, 0, whose)?;
        let mut byte = [0];
        self.stream.read_exact(&mut byte)?;
        Ok(byte[0] != 0)
    }

    pub(crate) fn has_parent(&mut self, whose: u64) -> io::Result<bool> {
        self.send(PARENT, 0, 0, whose)?;
        Ok(self.number()? != 0)
    }

    pub(crate) fn close(&mut self) -> io::Result<i32> {
        self.send(CLOSE, 0, 0, 0)?;
        self.number()
    }

    /// Asks for pages; gives those that came.
    pub(crate) fn get(&mut self, pid: u32, at: u64, pages: u64) -> io::Result<Vec<u8>> {
        self.send(GET, pages, at, pid.into())?;
        let mut answer = request(self.long, 0, 0, 0, 0);
        self.stream.read_exact(&mut answer)?;
        let expected = |given| {
            let command = PRESENT << 16 | ADD;
            request(self.long, command, given, at, pid.into())
        };
        let given = (1..=pages).find(|given| expected(*given) == answer);
        let given = given.unwrap_or_else(|| panic!("{pages} asked for, {answer:?}"));
        let mut bytes = vec![0; (given * PAGE) as usize];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Dumps memory: what is dirty, or all where there is no parent.
    pub(crate) fn dump(&mut self, memory: &mut Memory) -> io::Result<i32> {
        self.dump_part(memory, true)
    }

    /// A dump, or a pre-dump, which leaves shared memory out and yet forgets its writes.
    pub(crate) fn dump_part(&mut self, memory: &mut Memory, is_last: bool) -> io::Result<i32> {
        for (whose, pages) in memory.of_part(is_last) {
            let has_parent = self.open(whose)?;
            for (flags, numbers) in entries(&pages, has_parent) {
                let count = numbers.len() as u64;
                self.send(flags << 16 | ADD, count, numbers[0] * PAGE, whose)?;
                if flags & PRESENT != 0 {
                    for number in &numbers {
                        self.stream.write_all(&pages[number].bytes)?;
                    }
                }
            }
        }
        self.close()
    }
}

type Space = BTreeMap<u64, Page>;

/// Pages that follow each other and have the same flags, by number.
fn entries(pages: &Space, has_parent: bool) -> Vec<(u32, Vec<u64>)> {
    let flags_of = |number: &u64| {
        let page = &pages[number];
        match (has_parent && !page.dirty, page.lazy) {
            (true, _) => IN_PARENT,
            (false, true) => PRESENT | LAZY,
            (false, false) => PRESENT,
        }
    };
    let numbers: Vec<u64> = pages.keys().copied().collect();
    let parts = numbers.chunk_by(|a, b| a + 1 == *b && flags_of(a) == flags_of(b));
    parts
        .map(|part| (flags_of(&part[0]), part.to_vec()))
        .collect()
}

/// Appends a message of protocol buffers that holds numbers, after its length.
fn message(out: &mut Vec<u8>, numbers: &[(u8, u64)]) {
    let mut body = Vec::new();
    for (field, value) in numbers {
        body.push(field << 3);
        let mut value = *value;
        while value >= 0x80 {
            body.push(value as u8 | 0x80);
            value >>= 7;
        }
        body.push(value as u8);
    }
    out.extend((body.len() as u32).to_le_bytes());
    out.extend(body);
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) bytes: Vec<u8>,
    pub(crate) lazy: bool,
    pub(crate) dirty: bool,
}

/// The pages of each space, by number.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) spaces: BTreeMap<u64, Space>,
}

impl Memory {
    /// What it is once it has been dumped.
    pub(crate) fn cleaned(mut self) -> Self {
        let pages = self.spaces.values_mut().flat_map(BTreeMap::values_mut);
        pages.for_each(|page| page.dirty = false);
        self
    }

    /// What a dump is of, or a pre-dump, which leaves shared memory out; its writes are forgotten.
    fn of_part(&mut self, is_last: bool) -> BTreeMap<u64, Space> {
        let mut part = self.spaces.clone();
        part.retain(|whose, _| is_last || whose & 2 == 0);
        let pages = self.spaces.values_mut().flat_map(BTreeMap::values_mut);
        pages.for_each(|page| page.dirty = false);
        part
    }

    /// Leaves a dump, or a pre-dump, in image files, as `criu/page-xfer.c` writes them. `known` has
    /// the spaces of the part before, and then those of this one. Old CRIU counts pages in another
    /// field.
    pub(crate) fn write_files(
        &mut self,
        directory: &Path,
        is_last: bool,
        known: &mut BTreeSet<u64>,
        is_old: bool,
    ) {
        let part = self.of_part(is_last);
        for ((whose, pages), pages_id) in part.iter().zip(1..) {
            let (mut image, mut bytes) =
                (vec![0x19, 0x43, 0x56, 0x54, 0x25, 0x40, 0x08, 0x56], vec![]);
            message(&mut image, &[(1, pages_id)]);
            for (flags, numbers) in entries(pages, known.contains(whose)) {
                let (at, count) = (numbers[0] * PAGE, numbers.len() as u64);
                match is_old {
                    true => message(&mut image, &[(1, at), (2, count), (4, flags.into())]),
                    false => message(
                        &mut image,
                        &[(1, at), (2, 1), (4, flags.into()), (5, count)],
                    ),
                }
                if flags & PRESENT != 0 {
                    bytes.extend(
                        numbers
                            .iter()
                            .flat_map(|number| pages[number].bytes.clone()),
                    );
                }
            }
            let name = match whose & 2 {
                0 => format!("pagemap-{}.img", whose >> 8),
                _ => format!("pagemap-shmem-{}.img", whose >> 8),
            };
            fs::write(directory.join(name), image).unwrap();
            fs::write(directory.join(format!("pages-{pages_id}.img")), bytes).unwrap();
        }
        *known = part.into_keys().collect();
    }

    /// Something happens to it.
    pub(crate) fn change(&mut self, random: &mut fastrand::Rng) {
        let known = [process(77), process(4096), shared(0), shared(1 << 40)];
        for _ in 0..random.u32(1..60) {
            let whose = known[random.usize(0..known.len())];
            let space = self.spaces.entry(whose).or_default();
            let number = random.u64(0..64) + if whose & 2 == 0 { 0x40_0000 } else { 0 };
            if random.u32(0..6) == 0 {
                space.remove(&number);
                continue;
            }
            let fill = random.u8(0..9);
            let mut bytes = vec![fill; PAGE as usize];
            if random.bool() && fill > 0 {
                random.fill(&mut bytes[..64]);
            }
            let lazy = whose & 2 == 0 && random.bool();
            // Lazy or not is known again of pages that are sent only.
            space.insert(
                number,
                Page {
                    bytes,
                    lazy,
                    dirty: true,
                },
            );
        }
        if random.u32(0..8) == 0 {
            self.spaces.remove(&known[random.usize(0..known.len())]);
        }
        if self.spaces.is_empty() {
            self.spaces.insert(process(77), BTreeMap::new());
        }
    }

    /// Compares it with image files in a directory.
    pub(crate) fn check_files(&self, directory: &Path, lazy: bool) {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(directory).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let Some(id) = name.strip_prefix("pagemap-") else {
                continue;
            };
            let id = id.strip_suffix(".img").unwrap();
            let whose = match id.strip_prefix("shmem-") {
                Some(id) => shared(id.parse().unwrap()),
                None => process(id.parse().unwrap()),
            };
            found.insert(whose, read_files(directory, &name, lazy));
        }
        let keys: Vec<_> = found.keys().collect();
        assert_eq!(keys, self.spaces.keys().collect::<Vec<_>>());
        for (whose, pages) in &self.spaces {
            let found = &found[whose];
            assert_eq!(found.len(), pages.len());
            for ((number, page), (at, (flags, bytes))) in pages.iter().zip(found) {
                assert_eq!(number, at);
                assert_eq!(flags & LAZY != 0, page.lazy);
                match lazy && page.lazy {
                    true => assert!(bytes.is_none()),
                    false => assert!(bytes.as_ref() == Some(&page.bytes), "page {number:#x}"),
                }
            }
        }
    }
}

type Pages = BTreeMap<u64, (u32, Option<Vec<u8>>)>;

/// Reads a pagemap and its pages, by the rules of `criu/pagemap.c`.
fn read_files(directory: &Path, name: &str, lazy: bool) -> Pages {
    let image = fs::read(directory.join(name)).unwrap();
    let mut rest = &image[..];
    let mut take = |count: usize| {
        let (head, behind) = rest.split_at(count);
        rest = behind;
        head.to_vec()
    };
    assert_eq!(take(8), [0x19, 0x43, 0x56, 0x54, 0x25, 0x40, 0x08, 0x56]);
    let mut left = image.len() - 8;
    let mut messages = Vec::new();
    while left > 0 {
        let length = u32::from_le_bytes(take(4).try_into().unwrap()) as usize;
        messages.push(fields(&take(length)));
        left -= 4 + length;
    }
    let pages_id = messages.remove(0)[&1];
    let pages = fs::read(directory.join(format!("pages-{pages_id}.img"))).unwrap();
    let (mut found, mut at) = (Pages::new(), 0);
    let mut end = 0;
    for entry in messages {
        let (address, count, flags) = (entry[&1], entry[&2], entry[&4] as u32);
        assert!(address >= end && count > 0);
        end = address + count * PAGE;
        for number in address / PAGE..address / PAGE + count {
            let bytes = (flags & PRESENT != 0).then(|| {
                at += PAGE as usize;
                pages[at - PAGE as usize..at].to_vec()
            });
            assert!(lazy || bytes.is_some());
            found.insert(number, (flags, bytes));
        }
    }
    assert_eq!(at, pages.len());
    found
}

/// The numbers of a message of protocol buffers, by their fields.
fn fields(mut message: &[u8]) -> BTreeMap<u8, u64> {
    let mut found = BTreeMap::new();
    while let Some((key, rest)) = message.split_first() {
        assert_eq!(key & 7, 0);
        message = rest;
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = message.split_first().unwrap();
            message = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        found.insert(key >> 3, value);
    }
    found
}
