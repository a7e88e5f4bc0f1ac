//! Filters the text of `/proc/PID/maps` and `smaps` to the program's mappings. Pure.
//!
//! The kernel's text also has the machine's mappings, and does not know the program's heap and
//! stack. In `smaps`, the counters of a mapping that is only partly the program's remain those of
//! the whole mapping.

use std::io::Write;

use pagetrail::PageRange;

use crate::memory::areas::Areas;

/// The column where the kernel puts a mapping's name.
const NAME_COLUMN: usize = 73;

/// The first line of a mapping.
struct Header<'t> {
    range: PageRange,
    permissions: &'t [u8],
    offset: u64,
    device: &'t [u8],
    inode: &'t [u8],
    name: &'t [u8],
}

impl<'t> Header<'t> {
    fn parse(line: &'t [u8]) -> Option<Self> {
        let mut rest = line.strip_suffix(b"\n").unwrap_or(line);
        let mut field = || {
            let end = rest.iter().position(|byte| *byte == b' ');
            let (field, after) = rest.split_at(end.unwrap_or(rest.len()));
            rest = after.get(1..).unwrap_or_default();
            (!field.is_empty()).then_some(field)
        };
        let (range, permissions, offset, device, inode) =
            (field()?, field()?, field()?, field()?, field()?);
        let dash = range.iter().position(|byte| *byte == b'-')?;
        Some(Self {
            range: PageRange::new(hex(&range[..dash])?, hex(&range[dash + 1..])?)?,
            permissions,
            offset: hex(offset)?,
            device,
            inode,
            name: rest.trim_ascii_start(),
        })
    }

    fn is_anonymous(&self) -> bool {
        self.inode == b"0" && self.name.is_empty()
    }

    /// Appends the line of a part of the mapping.
    fn write(&self, (part, rights): Part, names: &[(PageRange, &str)], text: &mut Vec<u8>) {
        let begins = text.len();
        let offset = match self.inode {
            b"0" => self.offset,
            _ => self.offset + (part.start() - self.range.start()),
        };
        // Writing to a vector does not fail.
        let _ = write!(text, "{:08x}-{:08x} ", part.start(), part.end());
        // The kernel's rights may be more, since memory that the program may only write or execute
        // is mapped readable for KVM.
        text.extend(rights);
        text.extend(self.permissions.last());
        let _ = write!(text, " {offset:08x} ");
        text.extend([self.device, b" ", self.inode, b" "].concat());
        let known = names.iter().find(|(range, _)| range.contains(part.start()));
        let name = match known {
            Some((_, name)) if self.is_anonymous() => name.as_bytes(),
            _ => self.name,
        };
        if !name.is_empty() {
            text.resize((text.len() + 1).max(begins + NAME_COLUMN), b' ');
            text.extend(name);
        }
        text.push(b'\n');
    }
}

fn hex(digits: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Returns the part of `text` that is the program's. Anonymous memory in one of the ranges gets
/// that name.
pub(super) fn own_part(text: &[u8], areas: &Areas, names: &[(PageRange, &str)]) -> Vec<u8> {
    let mut own = Vec::new();
    let mut lines = text.split_inclusive(|byte| *byte == b'\n').peekable();
    while let Some(line) = lines.next() {
        let Some(header) = Header::parse(line) else {
            continue;
        };
        let mut details = Vec::new();
        while let Some(detail) = lines.next_if(|line| Header::parse(line).is_none()) {
            details.push(detail);
        }
        for part in parts(&header, areas, names) {
            header.write(part, names, &mut own);
            for detail in &details {
                match detail.starts_with(b"Size:") {
                    true => {
                        let _ = writeln!(own, "Size:           {:8} kB", part.0.bytes() >> 10);
                    }
                    false => own.extend(*detail),
                }
            }
        }
    }
    own
}

/// A part of a mapping, and the program's rights to it as shown.
type Part = (PageRange, [u8; 3]);

/// The program's parts of a mapping. Neighbours with the same rights are one part, unless one has a
/// name.
fn parts(header: &Header<'_>, areas: &Areas, names: &[(PageRange, &str)]) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for (piece, allowed) in areas.pieces(header.range) {
        match parts.last_mut() {
            Some((last, rights)) if last.end() == piece.start() && *rights == allowed.shown() => {
                *last = PageRange::new(last.start(), piece.end()).unwrap_or(*last);
            }
            _ => parts.push((piece, allowed.shown())),
        }
    }
    if header.is_anonymous() {
        for (range, _) in names {
            for at in [range.start(), range.end()] {
                parts = parts.into_iter().flat_map(|part| cut(part, at)).collect();
            }
        }
    }
    parts
}

/// Splits a part at an address within it.
fn cut((range, rights): Part, at: u64) -> impl Iterator<Item = Part> {
    let at = at.clamp(range.start(), range.end());
    let below = PageRange::new(range.start(), at);
    let both = below.into_iter().chain(PageRange::new(at, range.end()));
    both.map(move |range| (range, rights))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::areas::Allowed;

    const MAPS: &str = "\
00400000-00500000 r-xp 00001000 fe:01 77                                 /bin/some program
00500000-00520000 rw-p 00000000 00:00 0\x20
7f0000000000-7f0000030000 rw-p 00000000 00:00 0                          [anon:x]
7fff00000000-7fff00100000 rw-p 00000000 00:00 0                          [stack]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";

    const R_X: u64 = (libc::PROT_READ | libc::PROT_EXEC) as u64;
    const RW: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    const W: u64 = libc::PROT_WRITE as u64;

    fn areas(ranges: &[(u64, u64, u64)]) -> Areas {
        let mut areas = Areas::default();
        for (start, end, protection) in ranges {
            let range = PageRange::new(*start, *end).unwrap();
            areas.insert(range, Allowed::from_protection(*protection));
        }
        areas
    }

    fn text(maps: &str, of: &[(u64, u64, u64)]) -> String {
        let heap = PageRange::new(0x51_0000, 0x51_8000).unwrap();
        let own = own_part(maps.as_bytes(), &areas(of), &[(heap, "[heap]")]);
        String::from_utf8(own).unwrap()
    }

    #[test]
    fn mappings_are_cut_to_what_is_the_programs() {
        let own = text(
            MAPS,
            &[
                (0x48_0000, 0x50_0000, R_X),
                (0x50_0000, 0x51_0000, RW),
                (0x51_0000, 0x51_8000, RW),
                (0x7f00_0001_0000, 0x7f00_0001_8000, RW),
                (0x7f00_0001_8000, 0x7f00_0002_0000, W),
            ],
        );
        let expected = "\
00480000-00500000 r-xp 00081000 fe:01 77                                 /bin/some program
00500000-00510000 rw-p 00000000 00:00 0\x20
00510000-00518000 rw-p 00000000 00:00 0                                  [heap]
7f0000010000-7f0000018000 rw-p 00000000 00:00 0                          [anon:x]
7f0000018000-7f0000020000 -w-p 00000000 00:00 0                          [anon:x]
";
        assert_eq!(own, expected);
    }

    #[test]
    fn what_is_all_the_programs_stays_as_it_is() {
        assert_eq!(text(MAPS, &[]), "");
        let whole = [
            (0x40_0000, 0x50_0000, R_X),
            (0x7f00_0000_0000, 0x7f00_0003_0000, RW),
        ];
        let lines: Vec<&str> = MAPS.split_inclusive('\n').collect();
        assert_eq!(text(MAPS, &whole), [lines[0], lines[2]].concat());
    }

    #[test]
    fn details_go_with_their_mapping() {
        let smaps = "\
00500000-00510000 rw-p 00000000 00:00 0\x20
Size:                 64 kB
Rss:                   8 kB
VmFlags: rd wr mr mw me ac\x20
7fff00000000-7fff00100000 rw-p 00000000 00:00 0                          [stack]
Size:               1024 kB
VmFlags: rd wr
";
        let expected = "\
00500000-00508000 rw-p 00000000 00:00 0\x20
Size:                 32 kB
Rss:                   8 kB
VmFlags: rd wr mr mw me ac\x20
";
        assert_eq!(text(smaps, &[(0x50_0000, 0x50_8000, RW)]), expected);
    }

    #[test]
    fn the_kernels_own_text_is_understood() {
        let maps = std::fs::read("/proc/self/maps").unwrap();
        let lines = maps.split_inclusive(|byte| *byte == b'\n');
        // Only addresses that programs can have.
        let lines: Vec<&[u8]> = lines
            .filter(|line| !line.starts_with(b"ffffffffff"))
            .collect();
        let mut all = Areas::default();
        for header in lines.iter().filter_map(|line| Header::parse(line)) {
            let letters = header.permissions.iter().zip([1, 2, 4]);
            let protection = letters.filter(|(letter, _)| **letter != b'-');
            let protection = protection.map(|(_, bit)| bit).sum();
            all.insert(header.range, Allowed::from_protection(protection));
        }
        let own = own_part(&maps, &all, &[]);
        assert_eq!(
            String::from_utf8_lossy(&own),
            String::from_utf8_lossy(&lines.concat())
        );
    }
}
