//! An ELF core file (`core(5)`) of an image, which debuggers open: x86-64, little-endian.
//!
//! Notes first, as the kernel writes them (`fs/binfmt_elf.c`): each thread's status and registers,
//! the process, the auxiliary vector, the mapped files. Then the memory, a segment for each
//! mapping. What is as a file has no bytes; debuggers read the file. Memory that is mapped several
//! times has its bytes once, and each mapping's segment leads to them.

use super::{create, write_contents};
use crate::error::{Error, Result};
use crate::format::manifest::{Manifest, Mapping, Process, Thread};
use crate::store::image::Image;
use pagetrail::{PageRange, PageSet, Permissions};
use std::os::unix::fs::FileExt;
use std::path::Path;

const NT_PRSTATUS: u32 = 1;
const NT_PRPSINFO: u32 = 3;
const NT_AUXV: u32 = 6;
const NT_FILE: u32 = 0x4649_4c45;
/// Notes from here on are Linux's own and say so.
const NT_LINUX: u32 = 0x100;

const EHDR_BYTES: u64 = 64;
const PHDR_BYTES: u64 = 56;
const SHDR_BYTES: u64 = 64;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
/// The number of program headers stands in the first section header.
const PN_XNUM: u16 = 0xffff;

/// A part of the memory.
struct Segment {
    range: PageRange,
    permissions: Permissions,
    bytes: Bytes,
}

/// Where a segment's bytes are.
#[derive(Clone, Copy)]
enum Bytes {
    /// In the core file.
    Here,
    /// There as well, as those of the segment in which this address is.
    At(u64),
    /// In the mapped file.
    Nowhere,
}

impl Image {
    /// Writes a core file, as if the process had dumped it at the instant of the checkpoint; zeros
    /// are holes.
    ///
    /// # Errors
    ///
    /// The image is not of a process; the file is there already or cannot be written; the store is
    /// damaged.
    pub fn export_core(&mut self, path: &Path) -> Result<()> {
        let manifest = self.manifest().clone();
        let Some(process) = &manifest.process else {
            let reason = "the checkpoint is of a program's own regions, not of a process";
            return Err(Error::Refused(reason.into()));
        };
        let notes = notes(&manifest, process);
        let known = self.pages();
        let segments = segments(&manifest, &known);
        let headers = segments.len() as u64 + 1;
        let sections = if headers >= PN_XNUM.into() { 1 } else { 0 };
        let notes_at = EHDR_BYTES + headers * PHDR_BYTES + sections * SHDR_BYTES;
        let page = u64::from(manifest.page_size);
        let memory_at = (notes_at + notes.len() as u64).next_multiple_of(page);

        let mut head = elf_header(headers, sections);
        program_header(
            &mut head,
            PT_NOTE,
            0,
            [notes_at, 0, notes.len() as u64, 0, 4],
        );
        let mut at = memory_at;
        let mut places = Vec::new();
        for segment in &segments {
            places.push(at);
            if let Bytes::Here = segment.bytes {
                at += segment.range.bytes();
            }
        }
        for (segment, place) in segments.iter().zip(&places) {
            let bytes = segment.range.bytes();
            let (place, in_file) = match segment.bytes {
                Bytes::Here => (*place, bytes),
                Bytes::At(address) => match place_of(address, &segments, &places) {
                    Some(place) => (place, bytes),
                    None => (*place, 0),
                },
                Bytes::Nowhere => (*place, 0),
            };
            let fields = [place, segment.range.start(), in_file, bytes, page];
            program_header(&mut head, PT_LOAD, flags(segment.permissions), fields);
        }
        if sections > 0 {
            // All zeros but the number of program headers, `sh_info`.
            let mut section = [0; SHDR_BYTES as usize];
            section[44..48].copy_from_slice(&(headers as u32).to_le_bytes());
            head.extend(section);
        }
        head.extend(notes);
        let file = create(path)?;
        let failed = || Error::io(format!("cannot write {}", path.display()));
        file.write_all_at(&head, 0).map_err(failed())?;
        for (segment, place) in segments.iter().zip(places) {
            if let Bytes::Here = segment.bytes {
                write_contents(self, &known, segment.range, &file, place)?;
            }
        }
        file.set_len(at).map_err(failed())
    }
}

/// Memory as segments, ascending. Of a mapping that is as its file but for some pages, those have
/// bytes.
fn segments(manifest: &Manifest, known: &PageSet) -> Vec<Segment> {
    let mut segments = Vec::new();
    for mapping in manifest.process_mappings() {
        // The kernel's own pages, which nobody can map anywhere else.
        if mapping.name.starts_with("[vvar") || mapping.name == "[vsyscall]" {
            continue;
        }
        let whole = PageSet::from_iter([mapping.range]);
        let with_bytes = match mapping.saved {
            true => whole.clone(),
            false => whole.intersection(known),
        };
        let without = whole.difference(&with_bytes);
        let elsewhere = match same_memory(manifest, mapping) {
            Some(address) => Bytes::At(address),
            None => Bytes::Nowhere,
        };
        for (ranges, bytes) in [(&with_bytes, Bytes::Here), (&without, elsewhere)] {
            segments.extend(ranges.ranges().iter().map(|range| Segment {
                range: *range,
                permissions: mapping.permissions,
                bytes,
            }));
        }
    }
    segments.sort_by_key(|segment| segment.range);
    segments
}

/// For a mapping of memory that the image has as another, saved mapping's: where that begins there.
fn same_memory(manifest: &Manifest, mapping: &Mapping) -> Option<u64> {
    if mapping.saved || mapping.inode == 0 || !mapping.permissions.shared {
        return None;
    }
    let file = |mapping: &Mapping| (mapping.device, mapping.inode);
    let same = manifest.process_mappings().find(|other| {
        let behind = other.offset + other.range.bytes();
        other.saved
            && other.permissions.shared
            && file(other) == file(mapping)
            && other.offset <= mapping.offset
            && mapping.offset + mapping.range.bytes() <= behind
    })?;
    Some(same.range.start() + (mapping.offset - same.offset))
}

/// Where in the core file the bytes of an address are.
fn place_of(address: u64, segments: &[Segment], places: &[u64]) -> Option<u64> {
    let index = segments
        .iter()
        .position(|segment| segment.range.contains(address))?;
    Some(places[index] + (address - segments[index].range.start()))
}

fn flags(permissions: Permissions) -> u32 {
    let bits = [
        (permissions.execute, 1),
        (permissions.write, 2),
        (permissions.read, 4),
    ];
    bits.iter()
        .filter(|(set, _)| *set)
        .map(|(_, bit)| bit)
        .sum()
}

fn elf_header(headers: u64, sections: u64) -> Vec<u8> {
    let mut out = b"\x7fELF\x02\x01\x01".to_vec();
    out.resize(16, 0);
    out.extend(4u16.to_le_bytes()); // ET_CORE
    out.extend(62u16.to_le_bytes()); // EM_X86_64
    out.extend(1u32.to_le_bytes());
    out.extend(0u64.to_le_bytes());
    out.extend(EHDR_BYTES.to_le_bytes());
    let sections_at = if sections > 0 {
        EHDR_BYTES + headers * PHDR_BYTES
    } else {
        0
    };
    out.extend(sections_at.to_le_bytes());
    out.extend(0u32.to_le_bytes());
    let count = u16::try_from(headers).unwrap_or(PN_XNUM);
    for half in [
        EHDR_BYTES as u16,
        PHDR_BYTES as u16,
        count,
        SHDR_BYTES as u16,
        sections as u16,
        0,
    ] {
        out.extend(half.to_le_bytes());
    }
    out
}

/// `fields`: offset, address, bytes in the file, bytes in memory, alignment.
fn program_header(out: &mut Vec<u8>, kind: u32, flags: u32, fields: [u64; 5]) {
    let [offset, address, in_file, in_memory, align] = fields;
    out.extend(kind.to_le_bytes());
    out.extend(flags.to_le_bytes());
    for field in [offset, address, 0, in_file, in_memory, align] {
        out.extend(field.to_le_bytes());
    }
}

fn notes(manifest: &Manifest, process: &Process) -> Vec<u8> {
    let mut out = Vec::new();
    let of_process = |out: &mut Vec<u8>| {
        note(out, NT_PRPSINFO, &information(process));
        note(out, NT_AUXV, &process.auxv);
        note(out, NT_FILE, &files(manifest));
    };
    if process.threads.is_empty() {
        of_process(&mut out);
    }
    for (at, thread) in process.threads.iter().enumerate() {
        note(&mut out, NT_PRSTATUS, &status(thread));
        if at == 0 {
            of_process(&mut out);
        }
        for set in thread
            .held
            .registers
            .iter()
            .filter(|set| set.note != NT_PRSTATUS)
        {
            note(&mut out, set.note, &set.bytes);
        }
    }
    out
}

fn note(out: &mut Vec<u8>, kind: u32, contents: &[u8]) {
    let name: &[u8] = if kind >= NT_LINUX && kind != NT_FILE {
        b"LINUX\0"
    } else {
        b"CORE\0"
    };
    out.extend((name.len() as u32).to_le_bytes());
    out.extend((contents.len() as u32).to_le_bytes());
    out.extend(kind.to_le_bytes());
    for bytes in [name, contents] {
        out.extend(bytes);
        out.resize(out.len().next_multiple_of(4), 0);
    }
}

/// `struct elf_prstatus`: no signal, the blocked ones, the thread, its general registers.
fn status(thread: &Thread) -> Vec<u8> {
    let mut out = vec![0; 336];
    out[24..32].copy_from_slice(&thread.held.blocked_signals.to_le_bytes());
    out[32..36].copy_from_slice(&thread.held.tid.to_le_bytes());
    let general = thread
        .held
        .registers
        .iter()
        .find(|set| set.note == NT_PRSTATUS);
    if let Some(set) = general.filter(|set| set.bytes.len() == 216) {
        out[112..328].copy_from_slice(&set.bytes);
    }
    let has_float = thread.held.registers.iter().any(|set| set.note == 2);
    out[328] = has_float.into();
    out
}

/// `struct elf_prpsinfo`: the process, its name and arguments as far as they fit.
fn information(process: &Process) -> Vec<u8> {
    let mut out = vec![0; 136];
    out[1] = b'S';
    out[24..28].copy_from_slice(&process.pid.to_le_bytes());
    let name = process.threads.first().map_or("", |thread| &thread.name);
    let mut put = |at: usize, room: usize, text: &str| {
        // The last byte stays zero.
        let count = text.len().min(room - 1);
        out[at..at + count].copy_from_slice(&text.as_bytes()[..count]);
    };
    put(40, 16, name);
    put(56, 80, &process.command.join(" "));
    out
}

/// The mapped files: how many, the unit of offsets, each one's addresses and offset, then the
/// names.
fn files(manifest: &Manifest) -> Vec<u8> {
    let page = u64::from(manifest.page_size);
    let is_file = |mapping: &&Mapping| mapping.inode != 0 && mapping.name.starts_with('/');
    let mapped: Vec<_> = manifest.process_mappings().filter(is_file).collect();
    let mut out = Vec::new();
    let mut put = |value: u64| out.extend(value.to_le_bytes());
    put(mapped.len() as u64);
    put(page);
    for mapping in &mapped {
        put(mapping.range.start());
        put(mapping.range.end());
        put(mapping.offset / page);
    }
    for mapping in &mapped {
        out.extend(mapping.name.as_bytes());
        out.push(0);
    }
    out
}
