//! [`Symbolizer`]: names of functions, with those inlined into them, for the frames of a recording.
//!
//! A name is taken only from a file with the build ID of the one that ran (where there is none, of
//! the same length), or from its separate debug information. Without such a file a frame has no
//! name, but its module and its offset there.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use addr2line::{Loader, demangle_auto};
use object::read::{Object, ObjectSymbol, ReadCache, SymbolKind};
use pagetrail_trail::{Frame, Module, StackTable};

use crate::elf::{Elf, open};
use crate::timeout::within;

/// Where distributions put separate debug information.
const DEBUG_DIRECTORY: &str = "/usr/lib/debug/.build-id";
/// A symbol without a size ends at the next one, but not farther than this.
const UNSIZED_BYTES_MAX: u64 = 4096;
/// How long the symbols of a file may take: there may be hundreds of megabytes of them, and nobody
/// waits for anything else.
const TIMEOUT_OF_SYMBOLS: Duration = Duration::from_secs(60);
/// Functions inlined at one place that are listed.
const INLINED_MAX: usize = 64;

/// A function at a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Function {
    /// The demangled name; `None` if it is not known.
    pub name: Option<String>,
    /// Path of the file that holds the code, the kernel's name in brackets, `[jit]` for code that
    /// was made while the program ran, or `[unknown]`.
    pub module: String,
    /// Source file and line, where the file's debug information has them.
    pub place: Option<(String, u32)>,
    /// Whether it was inlined into the next function.
    pub is_inlined: bool,
}

impl Function {
    /// The name, or the file's name in brackets if that is all that is known.
    pub fn label(&self) -> String {
        match &self.name {
            Some(name) => name.clone(),
            None => format!("[{}]", self.module_name()),
        }
    }

    /// The file's name without its directories.
    pub fn module_name(&self) -> &str {
        let name = self.module.rsplit('/').next().unwrap_or_default();
        name.trim_start_matches('[').trim_end_matches(']')
    }
}

/// Finds names, file by file as they are asked for.
pub struct Symbolizer<'a> {
    table: &'a StackTable,
    modules: HashMap<u32, Names>,
    frames: HashMap<u32, Vec<Function>>,
}

/// Where the names of a module come from.
struct Names {
    /// Of the file that ran: to convert offsets to addresses.
    elf: Option<Elf>,
    /// Debug information, and the path of its file; `None` once that did not answer.
    debug: Option<(PathBuf, Loader)>,
    /// Start, end and name, by start.
    symbols: Vec<(u64, u64, String)>,
}

impl<'a> Symbolizer<'a> {
    /// Makes a symbolizer for the frames of a table.
    pub fn new(table: &'a StackTable) -> Self {
        Self {
            table,
            modules: HashMap::new(),
            frames: HashMap::new(),
        }
    }

    /// The functions at a frame: those inlined there first, innermost first; at least one.
    pub fn frame(&mut self, number: u32) -> &[Function] {
        if !self.frames.contains_key(&number) {
            let functions = self.find(number);
            self.frames.insert(number, functions);
        }
        &self.frames[&number]
    }

    /// Paths of the files that were looked into and have no names for their code: missing,
    /// different from those that ran, or stripped.
    pub fn nameless(&self) -> Vec<&str> {
        let nameless = self.modules.iter().filter(|(_, names)| !names.has_any());
        let mut paths: Vec<_> = nameless
            .filter_map(|(module, _)| self.table.modules.get(*module as usize))
            .map(|module| module.name.as_str())
            .collect();
        paths.sort_unstable();
        paths.dedup();
        paths
    }

    fn find(&mut self, number: u32) -> Vec<Function> {
        let frame = self.table.frames.get(number as usize);
        let module = frame.and_then(|frame| Some((frame, frame.module?)));
        let module = module.and_then(|(_, n)| Some((n, self.table.modules.get(n as usize)?)));
        let Some((frame, (index, module))) = frame.zip(module) else {
            return vec![unnamed("[unknown]")];
        };
        if !frame.function.is_empty() || module.name.is_empty() || module.file_bytes == 0 {
            return vec![without_file(frame, module)];
        }
        let names = self
            .modules
            .entry(index)
            .or_insert_with(|| Names::read(module));
        names.functions(frame.address, &module.name)
    }
}

impl Names {
    fn read(module: &Module) -> Self {
        let path = Path::new(&module.name);
        let elf = Elf::read(path).filter(|elf| match module.build_id.is_empty() {
            true => elf.build_id.is_empty() && elf.file_bytes == module.file_bytes,
            false => elf.build_id == module.build_id,
        });
        let debug = debug_file(&module.build_id)
            .filter(|path| Elf::read(path).is_some_and(|elf| elf.build_id == module.build_id));
        let from = debug.or_else(|| elf.is_some().then(|| path.into()));
        let mut symbols = Vec::new();
        let files = [from.as_deref(), elf.is_some().then_some(path)];
        for file in files.into_iter().flatten() {
            let own = file.to_owned();
            let found = within(file, TIMEOUT_OF_SYMBOLS, move || read_symbols(&own));
            symbols.append(&mut found.unwrap_or_default());
        }
        // Of several names of one place, the first whose end is known.
        symbols.sort_by(|a, b| (a.0, Reverse(a.1), &a.2).cmp(&(b.0, Reverse(b.1), &b.2)));
        symbols.dedup_by_key(|symbol| symbol.0);
        end_unsized(&mut symbols);
        Self {
            // Without the file itself, its separate debug information has the same addresses, but
            // may have other offsets.
            debug: elf.is_some().then_some(from).flatten().and_then(|path| {
                let own = path.clone();
                let load = move || Loader::new(&own).ok();
                Some((path.clone(), within(&path, TIMEOUT_OF_SYMBOLS, load)?))
            }),
            elf,
            symbols,
        }
    }

    fn has_any(&self) -> bool {
        self.elf.is_some() && !self.symbols.is_empty()
    }

    fn functions(&mut self, offset: u64, module: &str) -> Vec<Function> {
        let address = self.elf.as_ref().and_then(|elf| elf.address(offset));
        let Some(address) = address else {
            return vec![unnamed(module)];
        };
        let mut functions = self.by_debug_information(address, module);
        if functions.is_empty() {
            functions.push(Function {
                name: self.symbol(address).map(demangle),
                ..unnamed(module)
            });
        }
        functions
    }

    /// The file is mapped, and files that it names are opened, when an address is looked up: so
    /// each look is bounded in time.
    fn by_debug_information(&mut self, address: u64, module: &str) -> Vec<Function> {
        let Some((path, loader)) = self.debug.take() else {
            return Vec::new();
        };
        let module = module.to_owned();
        let looked = within(&path, TIMEOUT_OF_SYMBOLS, move || {
            let functions = functions_at(&loader, address, &module);
            Some((loader, functions))
        });
        let Some((loader, functions)) = looked else {
            return Vec::new();
        };
        self.debug = Some((path, loader));
        functions
    }

    fn symbol(&self, address: u64) -> Option<&str> {
        let after = self
            .symbols
            .partition_point(|(start, ..)| *start <= address);
        let (_, end, name) = self.symbols.get(after.checked_sub(1)?)?;
        (address < *end).then_some(name)
    }
}

/// The functions that debug information has at an address, innermost first; none if it has none.
fn functions_at(loader: &Loader, address: u64, module: &str) -> Vec<Function> {
    let mut functions: Vec<Function> = Vec::new();
    let Ok(mut frames) = loader.find_frames(address) else {
        return functions;
    };
    while let Ok(Some(frame)) = frames.next() {
        let Some(function) = frame.function else {
            break;
        };
        let Ok(name) = function.demangle() else { break };
        if let Some(inner) = functions.last_mut() {
            inner.is_inlined = true;
        }
        let place = frame
            .location
            .and_then(|location| Some((location.file?.to_owned(), location.line.unwrap_or(0))));
        functions.push(Function {
            name: Some(name.into_owned()),
            place,
            ..unnamed(module)
        });
        if functions.len() == INLINED_MAX {
            break;
        }
    }
    functions
}

/// Reads the functions that a file's symbol tables list, with sizes: the nearest symbol before an
/// address may be of another function, where a table is stripped.
fn read_symbols(path: &Path) -> Option<Vec<(u64, u64, String)>> {
    let cache = ReadCache::new(open(path)?.0);
    let object = object::File::parse(&cache).ok()?;
    let mut symbols = Vec::new();
    for symbol in object.symbols().chain(object.dynamic_symbols()) {
        let is_function = symbol.kind() == SymbolKind::Text && symbol.is_definition();
        if let (true, Ok(name), Some(end)) = (
            is_function,
            symbol.name(),
            symbol.address().checked_add(symbol.size()),
        ) && !name.is_empty()
        {
            symbols.push((symbol.address(), end, name.to_owned()));
        }
    }
    Some(symbols)
}

fn end_unsized(symbols: &mut [(u64, u64, String)]) {
    for index in 0..symbols.len() {
        let next = symbols.get(index + 1).map_or(u64::MAX, |next| next.0);
        let (start, end, _) = &mut symbols[index];
        if start == end {
            *end = next.min(start.saturating_add(UNSIZED_BYTES_MAX));
        }
    }
}

fn demangle(name: &str) -> String {
    demangle_auto(name.into(), None).into_owned()
}

fn debug_file(build_id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = build_id.split_first()?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(format!("{DEBUG_DIRECTORY}/{first:02x}/{rest}.debug").into())
}

fn unnamed(module: &str) -> Function {
    Function {
        module: module.into(),
        ..Function::default()
    }
}

/// Code in no file: of a JIT compiler, or the kernel's in the process.
fn without_file(frame: &Frame, module: &Module) -> Function {
    let is_kernels = module.name.starts_with('[');
    Function {
        name: (!frame.function.is_empty()).then(|| frame.function.clone()),
        ..unnamed(match is_kernels {
            true => &module.name,
            false => "[jit]",
        })
    }
}
