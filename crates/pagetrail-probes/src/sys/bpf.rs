//! `bpf(2)`: maps, programs, and what they are attached to.
//!
//! # Safety
//!
//! The kernel reads `union bpf_attr`, whose size is passed, and through the addresses in it; each
//! function names buffers that live until the call has returned. Where the kernel writes, the
//! buffer has the length that the attributes state, or that the map's description says.

use std::ffi::CStr;

use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::Errno;

/// Commands: `enum bpf_cmd`.
mod command {
    pub(super) const MAP_CREATE: i32 = 0;
    pub(super) const MAP_LOOKUP: i32 = 1;
    pub(super) const MAP_UPDATE: i32 = 2;
    pub(super) const MAP_DELETE: i32 = 3;
    pub(super) const MAP_NEXT_KEY: i32 = 4;
    pub(super) const PROG_LOAD: i32 = 5;
    pub(super) const PROG_TEST_RUN: i32 = 10;
    pub(super) const BTF_FD_BY_ID: i32 = 19;
    pub(super) const OBJECT_INFO: i32 = 15;
    pub(super) const RAW_TRACEPOINT_OPEN: i32 = 17;
    pub(super) const BTF_NEXT_ID: i32 = 23;
}

/// The kernel checks the name of the licence of programs that call functions for GPL programs
/// alone; these call none.
const LICENCE: &CStr = c"Dual MIT/GPL";
/// Bytes of the attributes that are passed; all commands here have fewer.
const ATTRIBUTE_BYTES: usize = 128;
/// `recursion_misses` in `struct bpf_prog_info`.
const MISSES_AT: usize = 208;

/// `union bpf_attr`, by offsets.
struct Attributes([u64; ATTRIBUTE_BYTES / 8]);

impl Attributes {
    fn new() -> Self {
        Self([0; ATTRIBUTE_BYTES / 8])
    }

    fn u32(mut self, at: usize, value: u32) -> Self {
        let shift = if at.is_multiple_of(8) { 0 } else { 32 };
        self.0[at / 8] |= u64::from(value) << shift;
        self
    }

    fn u64(mut self, at: usize, value: u64) -> Self {
        self.0[at / 8] = value;
        self
    }

    fn get_u32(&self, at: usize) -> u32 {
        let shift = if at.is_multiple_of(8) { 0 } else { 32 };
        (self.0[at / 8] >> shift) as u32
    }
}

/// Makes the call.
///
/// # Safety
///
/// All addresses in the attributes are of buffers as the command demands them.
unsafe fn call(command: i32, attributes: &mut Attributes) -> Result<i64, Errno> {
    let bytes = ATTRIBUTE_BYTES;
    // SAFETY: the attributes have so many bytes; what they point to is the caller's promise.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.0.as_mut_ptr(), bytes) };
    match result {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
        result => Ok(result),
    }
}

fn owned(descriptor: i64) -> OwnedFd {
    // SAFETY: the kernel has just returned this descriptor, which nobody else has.
    unsafe { OwnedFd::from_raw_fd(descriptor as i32) }
}

/// Kinds of maps: `enum bpf_map_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Hash = 1,
    PercpuHash = 5,
    PercpuArray = 6,
}

/// A map: keys and values of fixed sizes, values once per processor in those kinds.
#[derive(Debug)]
pub(crate) struct Map {
    descriptor: OwnedFd,
    key_bytes: usize,
    /// Bytes of the value as the kernel reads and writes it: on all processors.
    value_bytes: usize,
}

impl Map {
    pub(crate) fn create(
        kind: Kind,
        key_bytes: usize,
        value_bytes: usize,
        entries: u32,
        cpus: usize,
    ) -> Result<Self, Errno> {
        let mut attributes = Attributes::new()
            .u32(0, kind as u32)
            .u32(4, key_bytes as u32)
            .u32(8, value_bytes as u32)
            .u32(12, entries);
        // SAFETY: this command has no address.
        let descriptor = unsafe { call(command::MAP_CREATE, &mut attributes) }?;
        Ok(Self {
            descriptor: owned(descriptor),
            key_bytes,
            value_bytes: match kind {
                Kind::Hash => value_bytes,
                _ => value_bytes.next_multiple_of(8) * cpus,
            },
        })
    }

    pub(crate) fn number(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }

    /// Sets a value, of as many bytes as the map has for a key.
    pub(crate) fn set(&self, key: &[u8], value: &[u8]) -> Result<(), Errno> {
        assert_eq!((key.len(), value.len()), (self.key_bytes, self.value_bytes));
        let mut attributes = Attributes::new()
            .u32(0, self.number() as u32)
            .u64(8, key.as_ptr() as u64)
            .u64(16, value.as_ptr() as u64);
        // SAFETY: key and value have the lengths that the kernel reads.
        unsafe { call(command::MAP_UPDATE, &mut attributes) }.map(drop)
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Vec<u8>, Errno> {
        assert_eq!(key.len(), self.key_bytes);
        let mut value = vec![0; self.value_bytes];
        let mut attributes = Attributes::new()
            .u32(0, self.number() as u32)
            .u64(8, key.as_ptr() as u64)
            .u64(16, value.as_mut_ptr() as u64);
        // SAFETY: the key has the length that the kernel reads, and the value has room for what it
        // writes.
        unsafe { call(command::MAP_LOOKUP, &mut attributes) }?;
        Ok(value)
    }

    /// Takes a key out, if it is there.
    pub(crate) fn remove(&self, key: &[u8]) {
        assert_eq!(key.len(), self.key_bytes);
        let mut attributes = Attributes::new()
            .u32(0, self.number() as u32)
            .u64(8, key.as_ptr() as u64);
        // SAFETY: the key has the length that the kernel reads.
        let _ = unsafe { call(command::MAP_DELETE, &mut attributes) };
    }

    /// All keys.
    pub(crate) fn keys(&self) -> Vec<Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        loop {
            let mut next = vec![0; self.key_bytes];
            let before = keys.last().map_or(0, |key| key.as_ptr() as u64);
            let mut attributes = Attributes::new()
                .u32(0, self.number() as u32)
                .u64(8, before)
                .u64(16, next.as_mut_ptr() as u64);
            // SAFETY: both are keys of the map's length; no key before it is address 0.
            match unsafe { call(command::MAP_NEXT_KEY, &mut attributes) } {
                Ok(_) => keys.push(next),
                Err(_) => return keys,
            }
        }
    }
}

/// What a program is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place<'a> {
    /// A tracepoint's record, by a perf event.
    Tracepoint,
    /// Nothing: it is run on request.
    Request,
    /// Before a function: its number, and the module that has it.
    Entry(u32, Option<BorrowedFd<'a>>),
    /// After a function.
    Exit(u32, Option<BorrowedFd<'a>>),
}

/// A program that the kernel has accepted.
#[derive(Debug)]
pub(crate) struct Program(OwnedFd);

impl Program {
    pub(crate) fn load(code: &[[u8; 8]], place: Place<'_>) -> Result<Self, Errno> {
        let (kind, attached) = match place {
            Place::Tracepoint => (5, None),
            Place::Request => (17, None),
            Place::Entry(function, module) => (26, Some((24, function, module))),
            Place::Exit(function, module) => (26, Some((25, function, module))),
        };
        let mut attributes = Attributes::new()
            .u32(0, kind)
            .u32(4, code.len() as u32)
            .u64(8, code.as_ptr() as u64)
            .u64(16, LICENCE.as_ptr() as u64);
        if let Some((what, function, module)) = attached {
            let module = module.map_or(0, |module| module.as_raw_fd() as u32);
            attributes = attributes.u32(68, what).u32(108, function).u32(112, module);
        }
        // SAFETY: `code` has so many instructions of eight bytes, and the licence ends with 0.
        let descriptor = unsafe { call(command::PROG_LOAD, &mut attributes) }?;
        Ok(Self(owned(descriptor)))
    }

    /// Attaches it to its function, for as long as the descriptor lives.
    pub(crate) fn attach(&self) -> Result<OwnedFd, Errno> {
        let mut attributes = Attributes::new().u32(8, self.0.as_raw_fd() as u32);
        // SAFETY: this command has no address for a program that knows its function.
        unsafe { call(command::RAW_TRACEPOINT_OPEN, &mut attributes) }.map(owned)
    }

    /// Runs it now, on this thread; gives the low half of its result.
    pub(crate) fn run(&self) -> Result<u32, Errno> {
        let mut attributes = Attributes::new().u32(0, self.0.as_raw_fd() as u32);
        // SAFETY: there are no buffers.
        unsafe { call(command::PROG_TEST_RUN, &mut attributes) }?;
        Ok(attributes.get_u32(4))
    }

    /// How often it was not run because it was running already; none before Linux 5.12.
    pub(crate) fn misses(&self) -> Option<u64> {
        let mut info = [0u64; 32];
        object_info(self.0.as_raw_fd(), &mut info).ok()?;
        Some(info[MISSES_AT / 8])
    }

    pub(crate) fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

fn object_info(descriptor: i32, info: &mut [u64]) -> Result<(), Errno> {
    let mut attributes = Attributes::new()
        .u32(0, descriptor as u32)
        .u32(4, size_of_val(info) as u32)
        .u64(8, info.as_mut_ptr() as u64);
    // SAFETY: `info` has the length that the attributes state. Addresses in it that the kernel
    // would write to are 0, with a length of 0, or those of the caller's buffers.
    unsafe { call(command::OBJECT_INFO, &mut attributes) }.map(drop)
}

/// The type table of a module, as a descriptor.
pub(crate) fn table_of(module: &str) -> Result<OwnedFd, Errno> {
    let mut id = 0;
    loop {
        let mut attributes = Attributes::new().u32(0, id);
        // SAFETY: this command has no address.
        unsafe { call(command::BTF_NEXT_ID, &mut attributes) }?;
        id = attributes.get_u32(4);
        let mut attributes = Attributes::new().u32(0, id);
        // SAFETY: this command has no address.
        let Ok(descriptor) = (unsafe { call(command::BTF_FD_BY_ID, &mut attributes) }) else {
            // It has gone meanwhile.
            continue;
        };
        let descriptor = owned(descriptor);
        let mut name = [0u8; 64];
        // `struct bpf_btf_info`: the name's address, and its length.
        let mut info = [0, 0, name.as_mut_ptr() as u64, name.len() as u64];
        object_info(descriptor.as_raw_fd(), &mut info)?;
        let end = name
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(name.len());
        if &name[..end] == module.as_bytes() {
            return Ok(descriptor);
        }
    }
}
