//! The numbers that BTF gives functions (Documentation/bpf/btf.rst): what a program names the
//! function by that it is attached to. Pure: bytes of the kernel's tables in, numbers out.

use std::collections::HashMap;

/// The start of a table: `struct btf_header`.
const MAGIC: u16 = 0xeb9f;
const HEADER_BYTES: usize = 24;
/// Kinds of types, from `linux/btf.h`.
mod kind {
    pub(super) const INT: u32 = 1;
    pub(super) const ARRAY: u32 = 3;
    pub(super) const STRUCT: u32 = 4;
    pub(super) const UNION: u32 = 5;
    pub(super) const ENUM: u32 = 6;
    pub(super) const FUNC: u32 = 12;
    pub(super) const FUNC_PROTO: u32 = 13;
    pub(super) const VAR: u32 = 14;
    pub(super) const DATASEC: u32 = 15;
    pub(super) const DECL_TAG: u32 = 17;
    pub(super) const ENUM64: u32 = 19;
}

/// A table: of the kernel, or of a module, which goes on where the kernel's ends.
#[derive(Debug)]
pub(crate) struct Table<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// The number of the first type, and where the first string begins.
    first: u32,
    strings_before: usize,
}

impl<'a> Table<'a> {
    /// The kernel's table; none if it is not one.
    pub(crate) fn kernel(bytes: &'a [u8]) -> Option<Self> {
        Self::after(bytes, 1, 0)
    }

    /// A module's table, on that of the kernel, which has so many types.
    pub(crate) fn module(bytes: &'a [u8], kernel: &Self, types: u32) -> Option<Self> {
        Self::after(bytes, types + 1, kernel.strings.len())
    }

    fn after(bytes: &'a [u8], first: u32, strings_before: usize) -> Option<Self> {
        let word = |at: usize| number(bytes, at);
        if bytes.get(..2)? != MAGIC.to_le_bytes() {
            return None;
        }
        let header = word(4)? as usize;
        if header < HEADER_BYTES {
            return None;
        }
        let part = |offset: u32, length: u32| {
            let from = header.checked_add(offset as usize)?;
            bytes.get(from..from.checked_add(length as usize)?)
        };
        Some(Self {
            types: part(word(8)?, word(12)?)?,
            strings: part(word(16)?, word(20)?)?,
            first,
            strings_before,
        })
    }

    /// How many types it has, and the numbers of those of `names` that are functions.
    pub(crate) fn functions(&self, names: &[&str]) -> Option<(u32, HashMap<String, u32>)> {
        let (mut at, mut id) = (0, self.first);
        let mut found = HashMap::new();
        while at < self.types.len() {
            let (name, info) = (number(self.types, at)?, number(self.types, at + 4)?);
            let (kind, entries) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
            if kind == kind::FUNC
                && let Some(name) = self.string(name as usize)
                && let Some(name) = names.iter().find(|other| other.as_bytes() == name)
            {
                found.insert((*name).to_owned(), id);
            }
            at += 12 + more_bytes(kind, entries);
            id += 1;
        }
        Some((id - self.first, found))
    }

    fn string(&self, at: usize) -> Option<&'a [u8]> {
        let rest = self.strings.get(at.checked_sub(self.strings_before)?..)?;
        rest.split(|byte| *byte == 0).next()
    }
}

/// What follows the twelve bytes of every type.
fn more_bytes(kind: u32, entries: usize) -> usize {
    match kind {
        kind::INT | kind::VAR | kind::DECL_TAG => 4,
        kind::ARRAY => 12,
        kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => 12 * entries,
        kind::ENUM | kind::FUNC_PROTO => 8 * entries,
        _ => 0,
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    bytes.try_into().ok().map(u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table of types (name, kind, entries, bytes that follow) and strings.
    fn table(types: &[(u32, u32, u32, usize)], strings: &[u8]) -> Vec<u8> {
        let mut section = Vec::new();
        for (name, kind, entries, more) in types {
            section.extend(name.to_le_bytes());
            section.extend((kind << 24 | entries).to_le_bytes());
            section.extend([0; 4]);
            section.extend(vec![0xff; *more]);
        }
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        let length = section.len() as u32;
        for word in [24, 0, length, length, strings.len() as u32] {
            bytes.extend(u32::to_le_bytes(word));
        }
        [bytes, section, strings.to_vec()].concat()
    }

    #[test]
    fn finds_functions_of_the_kernel_and_of_a_module() {
        let kernel = table(
            &[(0, 1, 0, 4), (1, 4, 2, 24), (5, 12, 0, 0), (0, 13, 3, 24)],
            b"\0str\0first\0",
        );
        let module = table(&[(11, 12, 0, 0), (5, 12, 0, 0)], b"second\0");
        let kernel = Table::kernel(&kernel).expect("a table");
        let (types, found) = kernel.functions(&["first", "str"]).expect("whole");
        assert_eq!((types, found.len(), found["first"]), (4, 1, 3));
        let module = Table::module(&module, &kernel, types).expect("a table");
        let (_, found) = module.functions(&["second", "first"]).expect("whole");
        assert_eq!((found.len(), found["second"]), (1, 5));
    }

    #[test]
    fn what_is_cut_off_is_no_table_and_no_panic() {
        let whole = table(&[(0, 1, 0, 4), (1, 12, 0, 0)], b"\0f\0");
        for length in 0..whole.len() {
            if let Some(table) = Table::kernel(&whole[..length]) {
                table.functions(&["f"]);
            }
        }
        let mut wrong = whole.clone();
        wrong[12..16].fill(0xff);
        assert!(Table::kernel(&wrong).is_none());
    }
}
