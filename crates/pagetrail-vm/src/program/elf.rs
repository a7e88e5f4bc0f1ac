//! The headers of an ELF program, as far as they say how to load it (`elf(5)`). Pure.

/// The longest table of program headers that Linux takes.
const HEADERS_BYTES_MAX: usize = 65536;
/// The length of the file header.
pub(crate) const FILE_HEADER: usize = 64;
const SEGMENT_HEADER: usize = 56;
const TYPE_EXECUTABLE: u16 = 2;
const TYPE_SHARED: u16 = 3;
const MACHINE_X86_64: u16 = 62;
const LOAD: u32 = 1;
const INTERPRETER: u32 = 3;
/// `PT_GNU_STACK`, whose flags are those of the stack.
const STACK: u32 = 0x6474_e551;

/// The file header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elf {
    /// Whether the program may be loaded at any address.
    pub(crate) anywhere: bool,
    pub(crate) entry: u64,
    /// The offset of the program headers in the file.
    pub(crate) headers_at: u64,
    pub(crate) headers_count: u16,
}

/// A program header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    kind: u32,
    flags: u32,
    pub(crate) offset: u64,
    pub(crate) address: u64,
    pub(crate) file_bytes: u64,
    pub(crate) memory_bytes: u64,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    number(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    number(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    number(bytes, at).map(u64::from_le_bytes)
}

impl Elf {
    /// Parses a file's first bytes. Returns `None` where the file is not a program for this
    /// processor.
    pub(crate) fn parse(file: &[u8]) -> Option<Self> {
        // 64 bits, little-endian.
        let is_elf = file.get(..6)? == b"\x7fELF\x02\x01" && u16_at(file, 18)? == MACHINE_X86_64;
        let kind = u16_at(file, 16)?;
        let is_program = is_elf && matches!(kind, TYPE_EXECUTABLE | TYPE_SHARED);
        let headers_count = u16_at(file, 56)?;
        let entry_size = usize::from(u16_at(file, 54)?);
        (is_program && headers_count > 0 && entry_size == SEGMENT_HEADER).then_some(Self {
            anywhere: kind == TYPE_SHARED,
            entry: u64_at(file, 24)?,
            headers_at: u64_at(file, 32)?,
            headers_count,
        })
    }

    /// The length of all program headers.
    pub(crate) fn headers_bytes(&self) -> Option<usize> {
        let bytes = usize::from(self.headers_count) * SEGMENT_HEADER;
        (bytes <= HEADERS_BYTES_MAX).then_some(bytes)
    }
}

impl Segment {
    /// Parses the program headers.
    pub(crate) fn parse_all(headers: &[u8]) -> Vec<Self> {
        headers
            .chunks_exact(SEGMENT_HEADER)
            .filter_map(Self::parse)
            .collect()
    }

    fn parse(header: &[u8]) -> Option<Self> {
        Some(Self {
            kind: u32_at(header, 0)?,
            flags: u32_at(header, 4)?,
            offset: u64_at(header, 8)?,
            address: u64_at(header, 16)?,
            file_bytes: u64_at(header, 32)?,
            memory_bytes: u64_at(header, 40)?,
        })
    }

    /// Whether the segment is mapped.
    pub(crate) fn is_loaded(&self) -> bool {
        self.kind == LOAD && self.memory_bytes > 0
    }

    /// Whether the segment can be mapped: it ends within the program's addresses, and the file has
    /// no more of it than there is memory for (`elf_load()` in fs/binfmt_elf.c).
    pub(crate) fn is_mappable(&self) -> bool {
        let ends_below = |start: u64, bytes: u64| {
            start
                .checked_add(bytes)
                .is_some_and(|end| end <= crate::memory::USER_END)
        };
        self.file_bytes <= self.memory_bytes
            && ends_below(self.address, self.memory_bytes)
            && ends_below(self.offset, self.file_bytes)
    }

    /// Whether the segment names the interpreter (the dynamic loader).
    pub(crate) fn is_interpreter(&self) -> bool {
        self.kind == INTERPRETER
    }

    /// Whether the segment requests an executable stack.
    pub(crate) fn wants_executable_stack(&self) -> bool {
        self.kind == STACK && self.protection() & libc::PROT_EXEC as u64 != 0
    }

    /// The protection, as for `mmap(2)`.
    pub(crate) fn protection(&self) -> u64 {
        let bits = [
            (4, libc::PROT_READ),
            (2, libc::PROT_WRITE),
            (1, libc::PROT_EXEC),
        ];
        let has = bits.iter().filter(|(flag, _)| self.flags & flag != 0);
        has.map(|(_, protection)| *protection as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_headers_of_this_test() {
        let file = std::fs::read("/proc/self/exe").unwrap();
        let elf = Elf::parse(&file).unwrap();
        let start = elf.headers_at as usize;
        let segments = Segment::parse_all(&file[start..start + elf.headers_bytes().unwrap()]);
        assert_eq!(segments.len(), usize::from(elf.headers_count));
        let code = segments.iter().find(|segment| {
            segment.is_loaded()
                && (segment.address..segment.address + segment.memory_bytes).contains(&elf.entry)
        });
        assert_eq!(
            code.unwrap().protection(),
            (libc::PROT_READ | libc::PROT_EXEC) as u64
        );
        assert_eq!(
            segments
                .iter()
                .filter(|segment| segment.is_interpreter())
                .count(),
            1
        );
    }

    #[test]
    fn segments_with_impossible_lengths_are_not_mappable() {
        let segment = |offset, address, file_bytes, memory_bytes| Segment {
            kind: LOAD,
            flags: 6,
            offset,
            address,
            file_bytes,
            memory_bytes,
        };
        assert!(segment(0x1000, 0x40_0000, 0x2000, 0x3000).is_mappable());
        for wrong in [
            segment(0, 0x40_0000, 0x3001, 0x3000),
            segment(0, 0x40_0000, u64::MAX, u64::MAX),
            segment(0, 1 << 47, 0, 0x1000),
            segment(u64::MAX - 8, 0x40_0000, 16, 16),
        ] {
            assert!(!wrong.is_mappable(), "{wrong:?}");
        }
    }

    #[test]
    fn other_files_are_no_programs() {
        let file = std::fs::read("/proc/self/exe").unwrap();
        for cut in 0..FILE_HEADER {
            assert_eq!(Elf::parse(&file[..cut.min(57)]), None);
        }
        for (at, byte) in [(0, 0), (4, 1), (5, 2), (16, 1), (18, 183), (54, 0)] {
            let mut wrong = file[..FILE_HEADER].to_vec();
            wrong[at] = byte;
            assert_eq!(Elf::parse(&wrong), None, "byte {at}");
        }
        assert_eq!(Elf::parse(b"#!/bin/sh\n"), None);
    }
}
