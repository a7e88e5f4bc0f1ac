//! The heap and the code of HotSpot's Java machine, by the table that it exports for debuggers
//! (`gHotSpotVMStructs`, `src/hotspot/share/runtime/vmStructs.hpp`). ZGC and Shenandoah list no
//! heap of this form.

use std::path::Path;

use object::read::{Object, ObjectSymbol, ReadCache};
use pagetrail::{PageRange, Region};

use super::memory::Memory;
use crate::elf::{Elf, open};
use crate::timeout::{TIMEOUT, within};

/// Bytes of an entry of the table.
const ENTRY_BYTES: u64 = 48;
const ENTRIES_MAX: u64 = 16 << 10;

/// What the table says.
#[derive(Debug, Default)]
pub(super) struct Java {
    heap: Option<PageRange>,
    code: Option<PageRange>,
}

/// Places of fields, as the table has them.
#[derive(Debug, Default)]
struct Fields {
    /// Of `Universe::_collectedHeap`.
    heap: Option<u64>,
    /// Of `_reserved` in `CollectedHeap`, and of `_start` and `_word_size` in `MemRegion`.
    reserved: Option<u64>,
    start: Option<u64>,
    words: Option<u64>,
    /// Of `CodeCache::_low_bound` and `_high_bound`.
    code_start: Option<u64>,
    code_end: Option<u64>,
}

impl Java {
    /// Reads the table of the machine in a process; `None` if it has none, or no heap yet.
    pub(super) fn find(pid: u32, regions: &[Region], memory: &impl Memory) -> Option<Self> {
        let library = regions
            .iter()
            .find(|region| region.name.ends_with("/libjvm.so"))?;
        let inside = format!("/proc/{pid}/root{}", library.name);
        let path = Path::new(&inside);
        let first = Elf::read(path)?.address(library.offset)?;
        let symbol = symbol(path, b"gHotSpotVMStructs")?;
        let table = library.range.start().wrapping_sub(first);
        let fields = Fields::read(memory.word(table.wrapping_add(symbol))?, memory)?;
        let java = fields.follow(memory);
        // While the machine starts, the table is there and the heap is not.
        java.heap.is_some().then_some(java)
    }

    /// What lies in a range.
    pub(super) fn name(&self, range: PageRange) -> Option<&'static str> {
        let holds = |whole: Option<PageRange>| {
            whole.is_some_and(|w| w.start() <= range.start() && range.end() <= w.end())
        };
        match () {
            () if holds(self.heap) => Some("[java heap]"),
            () if holds(self.code) => Some("[java code]"),
            () => None,
        }
    }
}

impl Fields {
    fn read(table: u64, memory: &impl Memory) -> Option<Self> {
        let mut fields = Self::default();
        for index in 0..ENTRIES_MAX {
            let at = table.checked_add(index * ENTRY_BYTES)?;
            let [kind, field, _, _, offset, address] = memory.words(at)?;
            if kind == 0 {
                break;
            }
            let (kind, field) = (text(kind, memory)?, text(field, memory)?);
            match (kind.as_str(), field.as_str()) {
                ("Universe", "_collectedHeap") => fields.heap = Some(address),
                ("CollectedHeap", "_reserved") => fields.reserved = Some(offset),
                ("MemRegion", "_start") => fields.start = Some(offset),
                ("MemRegion", "_word_size") => fields.words = Some(offset),
                ("CodeCache", "_low_bound") => fields.code_start = Some(address),
                ("CodeCache", "_high_bound") => fields.code_end = Some(address),
                _ => {}
            }
        }
        Some(fields)
    }

    fn follow(&self, memory: &impl Memory) -> Java {
        let heap = || {
            let heap = memory.word(self.heap?)?;
            let reserved = heap.checked_add(self.reserved?)?;
            let start = memory.word(reserved.checked_add(self.start?)?)?;
            let words = memory.word(reserved.checked_add(self.words?)?)?;
            PageRange::new(start, start.checked_add(words.checked_mul(8)?)?)
        };
        let code = || PageRange::new(memory.word(self.code_start?)?, memory.word(self.code_end?)?);
        Java {
            heap: heap(),
            code: code(),
        }
    }
}

/// A short text that ends with a zero; what is longer, or no text, is empty.
fn text(at: u64, memory: &impl Memory) -> Option<String> {
    let [a, b] = memory.words(at)?;
    let bytes: Vec<u8> = [a, b].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(0);
    Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

/// The address of an exported symbol, as the file has it.
fn symbol(path: &Path, name: &'static [u8]) -> Option<u64> {
    let own = path.to_owned();
    within(path, TIMEOUT, move || {
        let cache = ReadCache::new(open(&own)?.0);
        let object = object::File::parse(&cache).ok()?;
        let symbol = object
            .dynamic_symbols()
            .find(|symbol| symbol.name_bytes() == Ok(name))?;
        Some(symbol.address())
    })
}
