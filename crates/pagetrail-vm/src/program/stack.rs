//! The first stack of a program: arguments, environment and auxiliary vector, as in the x86-64 ABI.
//! Pure.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::calls::own;

/// Entries of the auxiliary vector (`getauxval(3)`).
pub(crate) mod aux {
    pub(crate) const NULL: u64 = 0;
    pub(crate) const HEADERS: u64 = 3;
    pub(crate) const HEADER_COUNT: u64 = 5;
    pub(crate) const BASE: u64 = 7;
    pub(crate) const ENTRY: u64 = 9;
    pub(crate) const PLATFORM: u64 = 15;
    pub(crate) const RANDOM: u64 = 25;
    pub(crate) const HWCAP2: u64 = 26;
    pub(crate) const RSEQ_SIZE: u64 = 27;
    pub(crate) const RSEQ_ALIGN: u64 = 28;
    pub(crate) const EXECUTED_FILE: u64 = 31;
    pub(crate) const VDSO: u64 = 33;
}

/// `MONITOR` in ring 3, in `AT_HWCAP2`.
const HWCAP2_RING3MWAIT: u64 = 1;

/// The contents of a first stack.
#[derive(Debug)]
pub(crate) struct Contents<'a> {
    pub(crate) arguments: &'a [OsString],
    pub(crate) environment: &'a [OsString],
    /// The path of the file that was loaded.
    pub(crate) path: &'a OsStr,
    pub(crate) random: [u8; 16],
    /// The entries of the auxiliary vector whose values are numbers.
    pub(crate) auxiliary: Vec<(u64, u64)>,
}

/// This process's auxiliary vector, without what the machine does not support and what is different
/// for each program.
pub(crate) fn inherited(own: &[u8]) -> Vec<(u64, u64)> {
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    let pairs = own
        .chunks_exact(16)
        .map(|pair| (word(&pair[..8]), word(&pair[8..])));
    let withheld = [
        aux::NULL,
        aux::HEADERS,
        aux::HEADER_COUNT,
        aux::BASE,
        aux::ENTRY,
        aux::PLATFORM,
        aux::RANDOM,
        aux::RSEQ_SIZE,
        aux::RSEQ_ALIGN,
        aux::EXECUTED_FILE,
        aux::VDSO,
    ];
    pairs
        .filter(|(kind, _)| !withheld.contains(kind))
        .map(|(kind, value)| match kind {
            aux::HWCAP2 => (kind, value & !HWCAP2_RING3MWAIT),
            _ => (kind, value),
        })
        .collect()
}

/// The address of the program headers of this process's own file, by its auxiliary vector; 0 if
/// that has none.
pub(crate) fn own_headers(own: &[u8]) -> u64 {
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    let mut pairs = own.chunks_exact(16);
    let found = pairs.find(|pair| word(&pair[..8]) == aux::HEADERS);
    found.map_or(0, |pair| word(&pair[8..]))
}

/// Builds a stack that ends at `top`. Returns the stack pointer, and the bytes from there on.
pub(crate) fn build(top: u64, contents: &Contents<'_>) -> (u64, Vec<u8>) {
    let mut texts = Vec::new();
    let mut offsets = Vec::new();
    let fixed = [contents.path, OsStr::new("x86_64")];
    let words = contents.arguments.iter().chain(contents.environment);
    for text in words.map(OsString::as_os_str).chain(fixed) {
        offsets.push(texts.len() as u64);
        texts.extend(text.as_bytes());
        texts.push(0);
    }
    let random = texts.len() as u64;
    texts.extend(contents.random);
    let count = contents.arguments.len();
    // argc, two lists with a terminator each, and the vector with its terminator and the entries
    // that are added here.
    let words = 1 + offsets.len() - fixed.len() + 2 + (contents.auxiliary.len() + 5) * 2;
    let texts_at = (top - 16 - texts.len() as u64) & !15;
    let pointer = (texts_at - words as u64 * 8) & !15;
    let address = |offset: &u64| texts_at + offset;

    let mut stack: Vec<u64> = vec![count as u64];
    let (arguments, rest) = offsets.split_at(count);
    let (environment, fixed) = rest.split_at(contents.environment.len());
    stack.extend(arguments.iter().map(address));
    stack.push(0);
    stack.extend(environment.iter().map(address));
    stack.push(0);
    let added = [
        (own::AUXILIARY, own::VERSION),
        (aux::EXECUTED_FILE, address(&fixed[0])),
        (aux::PLATFORM, address(&fixed[1])),
        (aux::RANDOM, address(&random)),
        (aux::NULL, 0),
    ];
    let auxiliary = contents.auxiliary.iter().chain(&added);
    stack.extend(auxiliary.flat_map(|(kind, value)| [*kind, *value]));

    let mut bytes: Vec<u8> = stack.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.resize((texts_at - pointer) as usize, 0);
    bytes.extend(texts);
    (pointer, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_finds_what_it_was_given() {
        let top = 0x7000_0000;
        let contents = Contents {
            arguments: &["prog".into(), "-x".into()],
            environment: &["A=1".into()],
            path: OsStr::new("/bin/prog"),
            random: [7; 16],
            auxiliary: vec![(aux::ENTRY, 0x40_1000)],
        };
        let (pointer, bytes) = build(top, &contents);
        assert_eq!(pointer % 16, 0);
        assert!(pointer + bytes.len() as u64 <= top);
        let word = |n: usize| u64::from_le_bytes(bytes[n * 8..n * 8 + 8].try_into().unwrap());
        let text = |at: u64| {
            let from = &bytes[(at - pointer) as usize..];
            std::str::from_utf8(from.split(|byte| *byte == 0).next().unwrap()).unwrap()
        };
        assert_eq!(word(0), 2);
        assert_eq!([text(word(1)), text(word(2))], ["prog", "-x"]);
        assert_eq!((word(3), text(word(4)), word(5)), (0, "A=1", 0));
        assert_eq!((word(6), word(7)), (aux::ENTRY, 0x40_1000));
        assert_eq!((word(8), word(9)), (own::AUXILIARY, own::VERSION));
        assert_eq!(
            (word(10), text(word(11))),
            (aux::EXECUTED_FILE, "/bin/prog")
        );
        assert_eq!((word(12), text(word(13))), (aux::PLATFORM, "x86_64"));
        assert_eq!(word(14), aux::RANDOM);
        let random = (word(15) - pointer) as usize;
        assert_eq!(bytes[random..random + 16], [7; 16]);
        assert_eq!(word(16), aux::NULL);
    }

    #[test]
    fn what_is_inherited_is_not_about_us() {
        let own = std::fs::read("/proc/self/auxv").unwrap();
        let inherited = inherited(&own);
        assert!(
            inherited
                .iter()
                .any(|(kind, value)| (*kind, *value) == (6, 4096)),
            "AT_PAGESZ"
        );
        assert!(
            inherited
                .iter()
                .all(|(kind, _)| *kind != aux::VDSO && *kind != aux::ENTRY)
        );
    }
}
