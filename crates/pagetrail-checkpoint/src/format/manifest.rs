//! A manifest: everything about a checkpoint but the contents of its pages.

use super::codec::{Compression, RAW, decompress};
use super::is_page_size;
use super::objects::{Objects, SharedMemory};
use super::state::ProcessState;
use super::wire::{Decoded, Decoder, Encoder, Malformed};
use crate::hash::Hash;
use crate::label::Label;
use crate::limits;
use crate::map::{PageMap, Run, Source};
use pagetrail::{HeldThread, PageRange, PageSet, Permissions, RegisterSet};
use std::borrow::Cow;

/// Of a manifest as it is hashed, and as the first version of the format stores it.
const MAGIC: &[u8; 8] = b"PTIMAGE\x01";
/// Of one whose bytes are compressed.
const MAGIC_COMPRESSED: &[u8; 8] = b"PTIMAGE\x02";
/// Of one whose bytes are compressed and end with fields.
const MAGIC_FIELDS: &[u8; 8] = b"PTIMAGE\x03";
/// The field that is a label.
const LABEL: u8 = 1;
/// The field that says what the process is, so that it can be started anew.
const STATE: u8 = 2;
/// The field that says which of its kernel objects have contents.
const OBJECTS: u8 = 3;
/// A compressed byte stands for at most so many (the format of LZ4 blocks).
const EXPANSION_MAX: u64 = 255;

/// Whether an object may be a manifest, by its first bytes.
pub(crate) fn is_beginning(start: &[u8]) -> bool {
    [MAGIC, MAGIC_COMPRESSED, MAGIC_FIELDS]
        .iter()
        .any(|magic| start == *magic)
}

/// Which checkpoint another one builds on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    /// Its number.
    pub number: u64,
    /// What it is: numbers may come again in another store.
    pub id: Hash,
}

/// A mapping, or a region that a program registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its addresses.
    pub range: PageRange,
    /// Its access rights.
    pub permissions: Permissions,
    /// Offset into the mapped file, in bytes.
    pub offset: u64,
    /// Major and minor number of the file's device.
    pub device: (u32, u32),
    /// Inode of the mapped file, 0 for anonymous memory.
    pub inode: u64,
    /// Path of the mapped file, the kernel's name in brackets, the program's name for it, or empty.
    pub name: String,
    /// The build ID of a mapped ELF file, empty without one.
    pub build_id: Vec<u8>,
    /// Whether its contents are in the image: what no page says anything about reads as zeros then.
    /// Otherwise only the pages that are said something about are, and the rest is as the file.
    pub saved: bool,
    /// Whether it is shared, and what others have written there since the base is not in the image.
    pub own_writes_only: bool,
}

/// A thread: its registers at the instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its name.
    pub name: String,
    /// Its ID, registers and blocked signals.
    pub held: HeldThread,
}

/// An open file descriptor, for information.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Its number.
    pub number: u32,
    /// What it leads to, as `/proc/PID/fd` says it.
    pub target: String,
    /// The position in the file, in bytes.
    pub position: u64,
    /// The flags of `open(2)`.
    pub flags: u32,
}

/// The process that an image is of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Its PID.
    pub pid: u32,
    /// When it started, in clock ticks since boot: with the PID, it tells it from others.
    pub start_ticks: u64,
    /// The executable's path.
    pub executable: String,
    /// The command line.
    pub command: Vec<String>,
    /// The auxiliary vector, as `/proc/PID/auxv` has it.
    pub auxv: Vec<u8>,
    /// Its threads, the main thread first.
    pub threads: Vec<Thread>,
    /// Its open descriptors.
    pub descriptors: Vec<Descriptor>,
    /// What it takes to start it anew; `None` unless that was asked for.
    pub state: Option<ProcessState>,
}

/// What taking a checkpoint took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// How long the process stood still, in nanoseconds.
    pub pause_ns: u64,
    /// How long all of it took, up to the publication, in nanoseconds.
    pub total_ns: u64,
    /// Rounds of copying while the process ran.
    pub rounds: u32,
    /// Pages copied from it.
    pub copied_pages: u64,
    /// Pages copied while the process stood still.
    pub stopped_pages: u64,
    /// Pages whose contents were new to the store.
    pub stored_pages: u64,
    /// Bytes written to the store.
    pub stored_bytes: u64,
}

/// A checkpoint's description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Its number in the store, ascending by time.
    pub number: u64,
    /// What it is; stays when it is rewritten as a base.
    pub id: Hash,
    /// The checkpoint that it is an increment over; `None` for a base.
    pub parent: Option<Parent>,
    /// The name that its user gave it.
    pub label: Option<Label>,
    /// When it was taken, in nanoseconds since 1970.
    pub taken_unix_ns: u64,
    /// Size of its pages, in bytes.
    pub page_size: u32,
    /// The process; `None` for regions that a program registered.
    pub process: Option<Process>,
    /// The mappings, ascending.
    pub mappings: Vec<Mapping>,
    /// What it took.
    pub cost: Cost,
    /// How long the manifest itself is in the store, in bytes.
    pub manifest_bytes: u64,
    pub(crate) packs: Vec<Hash>,
    /// What differs from the parent.
    pub(crate) map: PageMap,
}

impl Manifest {
    /// The addresses that the image has contents of.
    pub(crate) fn addresses(&self) -> PageSet {
        self.mappings.iter().map(|mapping| mapping.range).collect()
    }

    /// Pages that this checkpoint says something about, rather than its parents.
    pub fn changed_pages(&self) -> u64 {
        self.map.pages()
    }

    /// Bytes in mappings whose contents are in the image.
    pub fn saved_bytes(&self) -> u64 {
        let saved = self.mappings.iter().filter(|mapping| mapping.saved);
        saved.map(|mapping| mapping.range.bytes()).sum()
    }

    /// The mappings of the process: others have contents of [`SharedMemory`].
    pub fn process_mappings(&self) -> impl Iterator<Item = &Mapping> {
        let by_criu = self.is_by_criu();
        let mappings = self.mappings.iter();
        mappings.filter(move |mapping| by_criu || !SharedMemory::has(mapping.range))
    }

    /// What it takes to start the process anew.
    pub fn state(&self) -> Option<&ProcessState> {
        self.process.as_ref()?.state.as_ref()
    }

    /// The bytes, and the id where there is none yet.
    pub(crate) fn seal(&mut self) -> Vec<u8> {
        if self.id == Hash::default() {
            self.id = Hash::of(&self.encode());
        }
        let body = self.encode();
        let body = &body[MAGIC.len()..];
        let mut compressed = Vec::new();
        let codec = Compression::Lz4.compress(body, &mut compressed);
        let magic = match (&self.label, self.state()) {
            (None, None) => MAGIC_COMPRESSED,
            _ => MAGIC_FIELDS,
        };
        let mut out = Encoder(magic.to_vec());
        out.u8(codec);
        out.number(body.len() as u64);
        let mut bytes = out.0;
        match codec {
            RAW => bytes.extend_from_slice(body),
            _ => bytes.extend_from_slice(&compressed),
        }
        let hash = Hash::of(&bytes);
        bytes.extend(hash.0);
        self.manifest_bytes = bytes.len() as u64;
        bytes
    }

    /// Bytes that the checkpoint took in the store: its new pages, and the manifest.
    pub fn bytes_in_store(&self) -> u64 {
        self.cost.stored_bytes + self.manifest_bytes
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Encoder(MAGIC.to_vec());
        out.u64(self.number);
        out.hash(&self.id);
        out.option(self.parent.as_ref(), |out, parent| {
            out.u64(parent.number);
            out.hash(&parent.id);
        });
        out.u64(self.taken_unix_ns);
        out.u32(self.page_size);
        out.option(self.process.as_ref(), process);
        out.list(&self.mappings, mapping);
        let cost = &self.cost;
        for value in [
            cost.pause_ns,
            cost.total_ns,
            cost.rounds.into(),
            cost.copied_pages,
            cost.stopped_pages,
            cost.stored_pages,
            cost.stored_bytes,
        ] {
            out.number(value);
        }
        out.list(&self.packs, Encoder::hash);
        let mut at = 0;
        let page_size = u64::from(self.page_size);
        out.list(self.map.runs(), |out, run| {
            out.number((run.start - at) / page_size);
            out.number(run.pages);
            match run.source {
                Source::Zero => out.number(ZERO),
                Source::Absent => out.number(ABSENT),
                Source::Stored { pack, page } => {
                    out.number(u64::from(pack) + FIRST_PACK);
                    out.number(page.into());
                }
            }
            at = run.start + run.pages * page_size;
        });
        let mut fields = Vec::new();
        if let Some(label) = &self.label {
            fields.push((LABEL, label.as_str().as_bytes().to_vec()));
        }
        if let Some(state) = self.state() {
            let mut bytes = Encoder(Vec::new());
            state.encode(&mut bytes);
            fields.push((STATE, bytes.0));
            if !state.objects.is_empty() {
                let mut bytes = Encoder(Vec::new());
                state.objects.encode(&mut bytes);
                fields.push((OBJECTS, bytes.0));
            }
        }
        if !fields.is_empty() {
            out.list(&fields, |out, (kind, bytes)| {
                out.u8(*kind);
                out.bytes(bytes);
            });
        }
        out.0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Decoded<Self> {
        let manifest_bytes = bytes.len() as u64;
        let Some((bytes, hash)) = bytes.split_last_chunk::<{ Hash::BYTES }>() else {
            return Err(Malformed("it is too short"));
        };
        if Hash::of(bytes).0 != *hash {
            return Err(Malformed("it has changed"));
        }
        let mut input = Decoder(bytes);
        let magic = input.take(MAGIC.len())?;
        let body = match magic {
            magic if magic == MAGIC => Cow::Borrowed(input.0),
            magic if magic == MAGIC_COMPRESSED || magic == MAGIC_FIELDS => {
                let (codec, length) = (input.u8()?, input.number()?);
                let most = (input.0.len() as u64).saturating_mul(EXPANSION_MAX);
                if length > most.min(limits::bytes_at_once()) {
                    return Err(Malformed("it is impossibly long"));
                }
                let mut body = vec![0; length as usize];
                decompress(codec, input.0, &mut body)?;
                Cow::Owned(body)
            }
            _ => return Err(Malformed("it does not begin as a manifest")),
        };
        let mut manifest = Self::decode_body(&body, magic == MAGIC_FIELDS)?;
        manifest.manifest_bytes = manifest_bytes;
        Ok(manifest)
    }

    /// Without what keeps everything else from being reached by damage.
    fn decode_body(bytes: &[u8], has_fields: bool) -> Decoded<Self> {
        let mut input = Decoder(bytes);
        let number = input.u64()?;
        let id = input.hash()?;
        let parent = input.option(|input| {
            Ok(Parent {
                number: input.u64()?,
                id: input.hash()?,
            })
        })?;
        if parent.is_some_and(|parent| parent.number >= number) {
            return Err(Malformed("its parent is not older"));
        }
        let taken_unix_ns = input.u64()?;
        let page_size = input.u32()?;
        if !is_page_size(page_size) {
            return Err(Malformed("an impossible size of pages"));
        }
        let mut process = input.option(decode_process)?;
        let mappings = input.list(|input| decode_mapping(input, page_size.into()))?;
        if !mappings.is_sorted_by(|a, b| a.range.end() <= b.range.start()) {
            return Err(Malformed("its mappings overlap"));
        }
        let cost = Cost {
            pause_ns: input.number()?,
            total_ns: input.number()?,
            rounds: input.number_u32()?,
            copied_pages: input.number()?,
            stopped_pages: input.number()?,
            stored_pages: input.number()?,
            stored_bytes: input.number()?,
        };
        let packs = input.list(Decoder::hash)?;
        let map = decode_map(&mut input, page_size.into(), packs.len())?;
        let mut label = None;
        for field in match has_fields {
            true => input.list(decode_field)?,
            false => Vec::new(),
        } {
            match field {
                Field::Label(new) if label.is_none() => label = Some(new),
                Field::State(new) => match &mut process {
                    Some(process) if process.state.is_none() => process.state = Some(*new),
                    Some(_) => return Err(Malformed("it has two states")),
                    None => return Err(Malformed("the state of no process")),
                },
                Field::Label(_) => return Err(Malformed("it has two labels")),
                Field::Objects(new) => match process.as_mut().and_then(|p| p.state.as_mut()) {
                    Some(state) if state.objects.is_empty() => state.objects = new,
                    Some(_) => return Err(Malformed("it has its kernel objects twice")),
                    None => return Err(Malformed("the kernel objects of no state")),
                },
            }
        }
        input.end()?;
        let manifest = Self {
            number,
            id,
            parent,
            label,
            taken_unix_ns,
            page_size,
            process,
            mappings,
            cost,
            manifest_bytes: 0,
            packs,
            map,
        };
        let addresses = manifest.addresses();
        if !manifest.map.addresses().difference(&addresses).is_empty() {
            return Err(Malformed("a page outside all mappings"));
        }
        Ok(manifest)
    }
}

/// The fields at the end: a tag and bytes each. A reader that does not know one cannot know what it
/// changes.
/// What a manifest may say besides.
enum Field {
    Label(Label),
    State(Box<ProcessState>),
    Objects(Objects),
}

fn decode_field(input: &mut Decoder<'_>) -> Decoded<Field> {
    let kind = input.u8()?;
    let mut bytes = Decoder(input.bytes()?);
    match kind {
        LABEL => {
            let text = std::str::from_utf8(bytes.0).ok();
            let label = text.and_then(Label::parse);
            label
                .map(Field::Label)
                .ok_or(Malformed("its label is none"))
        }
        STATE => {
            let state = ProcessState::decode(&mut bytes)?;
            bytes.end()?;
            Ok(Field::State(Box::new(state)))
        }
        OBJECTS => {
            let objects = Objects::decode(&mut bytes)?;
            bytes.end()?;
            Ok(Field::Objects(objects))
        }
        _ => Err(Malformed("it has a field of a later version")),
    }
}

/// What a run says instead of a pack.
const ZERO: u64 = 0;
const ABSENT: u64 = 1;
const FIRST_PACK: u64 = 2;

fn decode_map(input: &mut Decoder<'_>, page_size: u64, packs: usize) -> Decoded<PageMap> {
    let mut map = PageMap::new(page_size);
    let mut at = 0u64;
    let runs = input.list(|input| {
        let too_far = || Malformed("a page beyond all addresses");
        let gap = input.number()?.checked_mul(page_size).ok_or(too_far())?;
        let start = at.checked_add(gap).ok_or(too_far())?;
        let pages = input.number()?;
        let bytes = pages.checked_mul(page_size).ok_or(too_far())?;
        at = start.checked_add(bytes).ok_or(too_far())?;
        let source = match input.number()? {
            ZERO => Source::Zero,
            ABSENT => Source::Absent,
            pack if pack - FIRST_PACK < packs as u64 => {
                let page = input.number_u32()?;
                if u64::from(page) + pages > u64::from(u32::MAX) {
                    return Err(Malformed("more pages than a pack has"));
                }
                Source::Stored {
                    pack: (pack - FIRST_PACK) as u32,
                    page,
                }
            }
            _ => return Err(Malformed("a pack that it does not name")),
        };
        if pages == 0 {
            return Err(Malformed("a run of no pages"));
        }
        Ok(Run {
            start,
            pages,
            source,
        })
    })?;
    runs.into_iter().for_each(|run| map.push(run));
    Ok(map)
}

fn process(out: &mut Encoder, process: &Process) {
    out.u32(process.pid);
    out.u64(process.start_ticks);
    out.text(&process.executable);
    out.list(&process.command, |out, word| out.text(word));
    out.bytes(&process.auxv);
    out.list(&process.threads, |out, thread| {
        out.u32(thread.held.tid);
        out.text(&thread.name);
        out.u64(thread.held.blocked_signals);
        out.list(&thread.held.registers, |out, set| {
            out.u32(set.note);
            out.bytes(&set.bytes);
        });
    });
    out.list(&process.descriptors, |out, descriptor| {
        out.u32(descriptor.number);
        out.text(&descriptor.target);
        out.u64(descriptor.position);
        out.u32(descriptor.flags);
    });
}

fn decode_process(input: &mut Decoder<'_>) -> Decoded<Process> {
    Ok(Process {
        pid: input.u32()?,
        start_ticks: input.u64()?,
        executable: input.text()?,
        command: input.list(Decoder::text)?,
        auxv: input.bytes()?.to_vec(),
        threads: input.list(|input| {
            let tid = input.u32()?;
            let name = input.text()?;
            let blocked_signals = input.u64()?;
            let registers = input.list(|input| {
                Ok(RegisterSet {
                    note: input.u32()?,
                    bytes: input.bytes()?.to_vec(),
                })
            })?;
            let held = HeldThread {
                tid,
                registers,
                blocked_signals,
            };
            Ok(Thread { name, held })
        })?,
        descriptors: input.list(|input| {
            Ok(Descriptor {
                number: input.u32()?,
                target: input.text()?,
                position: input.u64()?,
                flags: input.u32()?,
            })
        })?,
        state: None,
    })
}

const READ: u8 = 1;
const WRITE: u8 = 2;
const EXECUTE: u8 = 4;
const SHARED: u8 = 8;
const SAVED: u8 = 16;
const OWN_WRITES_ONLY: u8 = 32;

fn mapping(out: &mut Encoder, mapping: &Mapping) {
    out.u64(mapping.range.start());
    out.u64(mapping.range.end());
    let permissions = mapping.permissions;
    let flags = [
        (permissions.read, READ),
        (permissions.write, WRITE),
        (permissions.execute, EXECUTE),
        (permissions.shared, SHARED),
        (mapping.saved, SAVED),
        (mapping.own_writes_only, OWN_WRITES_ONLY),
    ];
    let set = flags.iter().filter(|(set, _)| *set);
    out.u8(set.fold(0, |all, (_, flag)| all | flag));
    out.u64(mapping.offset);
    out.u32(mapping.device.0);
    out.u32(mapping.device.1);
    out.u64(mapping.inode);
    out.text(&mapping.name);
    out.bytes(&mapping.build_id);
}

fn decode_mapping(input: &mut Decoder<'_>, page_size: u64) -> Decoded<Mapping> {
    let (start, end) = (input.u64()?, input.u64()?);
    let range = PageRange::new(start, end)
        .filter(|_| start % page_size == 0 && end % page_size == 0)
        .ok_or(Malformed("an impossible mapping"))?;
    let flags = input.u8()?;
    if flags & !(READ | WRITE | EXECUTE | SHARED | SAVED | OWN_WRITES_ONLY) != 0 {
        return Err(Malformed("a mapping of an unknown kind"));
    }
    let is = |flag| flags & flag != 0;
    Ok(Mapping {
        range,
        permissions: Permissions {
            read: is(READ),
            write: is(WRITE),
            execute: is(EXECUTE),
            shared: is(SHARED),
        },
        saved: is(SAVED),
        own_writes_only: is(OWN_WRITES_ONLY),
        offset: input.u64()?,
        device: (input.u32()?, input.u32()?),
        inode: input.u64()?,
        name: input.text()?,
        build_id: input.bytes()?.to_vec(),
    })
}
