//! Kernel objects with contents: shared memory, made before it is mapped; pipes and socket pairs
//! within the process, with the bytes that nobody has read.

use crate::error::{Error, Result};
use crate::remote::Remote;
use pagetrail::{PageRange, PageSet};
use pagetrail_checkpoint::{
    Credentials, FileKind, Image, Mapping, OpenFile, PairedSocket, ProcessState, SharedMemory,
};
use rustix::fd::OwnedFd;
use rustix::fs::{Gid, Mode, SealFlags, Uid, fchmod, fchown, fcntl_add_seals, ftruncate};
use rustix::io::{Errno, pwrite};
use rustix::net::sockopt;
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, getegid, geteuid, pidfd_getfd, pidfd_open,
};

/// `MFD_ALLOW_SEALING` and, since Linux 6.3, `MFD_EXEC` of `memfd_create(2)`.
const ALLOW_SEALING: u64 = 2;
const EXECUTABLE: u64 = 0x10;
/// How much is copied at a time, in bytes.
const CHUNK_BYTES: u64 = 4 << 20;
/// How many bytes of a list's data a write takes.
const WRITE_BYTES: usize = 1 << 15;

/// A mapping of shared memory that lies in no file: which of `all` it is.
pub(crate) fn of_mapping<'a>(
    all: &'a [SharedMemory],
    mapping: &Mapping,
) -> Option<(usize, &'a SharedMemory)> {
    let key = (mapping.device, mapping.inode);
    let mut all = all.iter().enumerate();
    all.find(|(_, memory)| mapping.inode != 0 && (memory.device, memory.inode) == key)
}

/// Shared memory of the new process, by descriptors that are closed in the end.
#[derive(Debug, Default)]
pub(crate) struct Shared(Vec<Made>);

#[derive(Debug)]
struct Made {
    /// The number in the new process.
    number: u32,
    mode: Mode,
    /// The seals that wait.
    seals: SealFlags,
}

/// Access rights with which the new process can open its shared memory: they may have been taken
/// away after it had been opened.
const OPENABLE: u32 = 0o600;

impl Shared {
    /// Makes all of it, with its contents.
    pub(crate) fn make(remote: &Remote, image: &mut Image, state: &ProcessState) -> Result<Self> {
        let mut made = Vec::new();
        let mut free = (3..).filter(|number| state.files.iter().all(|f| f.number != *number));
        for memory in &state.objects.memory {
            let what = format!("make shared memory {}", memory.name);
            let created = create(remote, &what, memory)?;
            let number = free.next().unwrap_or(u32::MAX);
            move_to(remote, &what, created, number)?;
            let own = taken(remote.pid, number).map_err(Error::step(&what))?;
            ftruncate(&own, memory.bytes).map_err(Error::step(&what))?;
            fill(image, memory, &own)?;
            let mode = Mode::from_raw_mode(memory.mode);
            // A seal may forbid to change who may execute it later.
            fchmod(&own, mode | Mode::from_raw_mode(OPENABLE)).map_err(Error::step(&what))?;
            let seals = SealFlags::from_bits_retain(memory.seals);
            // One of memory that can be written later only by mappings of before comes after these.
            let waits =
                seals.contains(SealFlags::FUTURE_WRITE) && !seals.contains(SealFlags::WRITE);
            if !waits {
                seal(&own, seals).map_err(Error::step(&what))?;
            }
            let seals = if waits { seals } else { SealFlags::empty() };
            made.push(Made {
                number,
                mode,
                seals,
            });
        }
        Ok(Self(made))
    }

    /// A path by which the new process opens such memory.
    pub(crate) fn path(&self, index: usize) -> Option<String> {
        let made = self.0.get(index)?;
        Some(format!("/proc/self/fd/{}", made.number))
    }

    /// Gives what is opened and mapped by now its owner, access rights and last seals, and closes
    /// the descriptors.
    pub(crate) fn end(self, remote: &Remote, owner: &Owner) -> Result<()> {
        let mut list = remote.list(remote.main);
        let what = "finish shared memory";
        for made in self.0 {
            let own = taken(remote.pid, made.number).map_err(Error::step(what))?;
            owner.take(&own);
            fchmod(&own, made.mode).map_err(Error::step(what))?;
            seal(&own, made.seals).map_err(Error::step("seal shared memory"))?;
            list.call("close a descriptor", libc::SYS_close, &[made.number.into()])?;
        }
        list.run()
    }
}

/// Who owns shared memory and pipes: whom the process is for files, as far as it can be restored.
pub(crate) struct Owner(Option<(Uid, Gid)>);

impl Owner {
    /// Of a process that has the credentials of this one so far.
    pub(crate) fn of(then: &Credentials) -> Self {
        let ([.., user], [.., group]) = (then.users, then.groups);
        let is_ours = (user, group) == (geteuid().as_raw(), getegid().as_raw());
        // `-1` would mean no change.
        let is_one = user != u32::MAX && group != u32::MAX;
        Self((is_one && !is_ours).then(|| (Uid::from_raw(user), Gid::from_raw(group))))
    }

    /// Makes an object its own. Who may not do that may not restore its credentials either, which
    /// is said there.
    pub(crate) fn take(&self, object: &OwnedFd) {
        if let Some((user, group)) = self.0 {
            let _ = fchown(object, Some(user), Some(group));
        }
    }

    /// Makes what a number leads to in the new process its own.
    pub(crate) fn take_number(&self, remote: &Remote, number: u32) -> Result<()> {
        if self.0.is_some() {
            let what = format!("give descriptor {number} to its user");
            self.take(&taken(remote.pid, number).map_err(Error::step(what))?);
        }
        Ok(())
    }
}

fn seal(memory: &OwnedFd, seals: SealFlags) -> rustix::io::Result<()> {
    match seals.is_empty() {
        true => Ok(()),
        false => fcntl_add_seals(memory, seals),
    }
}

/// Makes empty memory; gives the number of its descriptor.
fn create(remote: &Remote, what: &str, memory: &SharedMemory) -> Result<u64> {
    let name = memory.name.strip_prefix("/memfd:");
    let name = name.and_then(|name| name.strip_suffix(" (deleted)"));
    // Anonymous memory has no descriptor, so another name is seen in `maps` alone.
    let mut name = name.unwrap_or("anonymous").as_bytes().to_vec();
    name.push(0);
    let make = |flags: u64| {
        let arguments = [name.as_slice().into(), flags.into()];
        remote.call(remote.main, what, libc::SYS_memfd_create, &arguments)
    };
    match make(ALLOW_SEALING | EXECUTABLE) {
        Err(Error::Step { cause, .. }) if cause.raw_os_error() == Some(libc::EINVAL) => {
            make(ALLOW_SEALING)
        }
        other => other,
    }
}

/// How many descriptors the process must be allowed while it is being restored: those that it had,
/// those of its shared memory, and a few of the moment ([`lift_ends`]).
pub(crate) fn descriptors_needed(state: &ProcessState) -> u64 {
    let highest = state.files.iter().map(|file| u64::from(file.number)).max();
    highest.unwrap_or(0) + state.objects.memory.len() as u64 + OF_THE_MOMENT
}

/// More descriptors than are open besides at any time.
const OF_THE_MOMENT: u64 = 16;

/// Gives a descriptor of the new process a number.
pub(crate) fn move_to(remote: &Remote, what: &str, from: u64, number: u32) -> Result<()> {
    if from == u64::from(number) {
        return Ok(());
    }
    let mut list = remote.list(remote.main);
    let flags = libc::O_CLOEXEC;
    list.call(
        what,
        libc::SYS_dup3,
        &[from.into(), number.into(), flags.into()],
    )?;
    list.call(what, libc::SYS_close, &[from.into()])?;
    list.run()
}

/// This process's descriptor of what a number is in the new one.
fn taken(pid: u32, number: u32) -> Result<OwnedFd, Errno> {
    let pid = Pid::from_raw(pid as i32).ok_or(Errno::SRCH)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    pidfd_getfd(&process, number as i32, PidfdGetfdFlags::empty())
}

/// Writes the contents: those that a mapping shows, and those that none does.
fn fill(image: &mut Image, memory: &SharedMemory, own: &OwnedFd) -> Result<()> {
    let manifest = image.manifest();
    let page_size = u64::from(manifest.page_size);
    let mappings = manifest.process_mappings();
    let shows = mappings.filter(|mapping| {
        let key = (mapping.device, mapping.inode);
        mapping.permissions.shared && key == (memory.device, memory.inode)
    });
    let mut places: Vec<(PageRange, u64)> = shows
        .map(|mapping| (mapping.range, mapping.offset))
        .collect();
    places.extend(memory.range(page_size).map(|range| (range, 0)));
    let known = image.pages();
    let mut buffer = Vec::new();
    for (range, offset) in places {
        let pages = known.intersection(&PageSet::from_iter([range]));
        for chunk in crate::space::chunks(&pages, CHUNK_BYTES) {
            buffer.resize(chunk.bytes() as usize, 0);
            image.read(chunk, &mut buffer)?;
            let at = (chunk.start() - range.start()).checked_add(offset);
            let at = at.filter(|at| *at < memory.bytes);
            let Some(at) = at else { continue };
            let length = buffer.len().min((memory.bytes - at) as usize);
            write_all(own, &buffer[..length], at)
                .map_err(Error::step(format!("fill shared memory {}", memory.name)))?;
        }
    }
    Ok(())
}

fn write_all(to: &OwnedFd, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let count = pwrite(to, bytes, at)?;
        if count == 0 {
            return Err(Errno::IO);
        }
        at += count as u64;
        bytes = &bytes[count..];
    }
    Ok(())
}

/// Makes the pairs of sockets, each end at all numbers that lead to it.
pub(crate) fn open_sockets(remote: &Remote, state: &ProcessState) -> Result<()> {
    let what = "make a pair of sockets";
    let sockets = &state.objects.sockets;
    for (index, socket) in sockets.iter().enumerate() {
        let is_made = |before: &PairedSocket| before.inode == socket.peer;
        if sockets[..index].iter().any(is_made) {
            continue;
        }
        let peer = sockets.iter().find(|peer| is_made(peer));
        let peer = peer.filter(|peer| peer.peer == socket.inode && peer.kind == socket.kind);
        if peer.is_none() && socket.peer != 0 {
            let reason = "the checkpoint contradicts itself about pairs of sockets";
            return Err(Error::refused(reason));
        }
        let room = [0u8; 8];
        let arguments = [
            libc::AF_UNIX.into(),
            socket.kind.into(),
            0u64.into(),
            room.as_slice().into(),
        ];
        remote.call(remote.main, what, libc::SYS_socketpair, &arguments)?;
        let [end, other] = lift_ends(remote, what, &state.files)?;
        // Each receives what its peer has sent. One whose peer is closed gets no number, and is
        // closed.
        send_unread(remote, other as u32, &socket.unread)?;
        if let Some(peer) = peer {
            send_unread(remote, end as u32, &peer.unread)?;
        }
        place_end(remote, what, end, files_of(state, Some(socket)))?;
        place_end(remote, what, other, files_of(state, peer))?;
        for file in files_of(state, Some(socket)).chain(files_of(state, peer)) {
            let flags = file.flags as i32 & libc::O_NONBLOCK;
            let arguments = [file.number.into(), libc::F_SETFL.into(), flags.into()];
            remote.call(remote.main, what, libc::SYS_fcntl, &arguments)?;
        }
    }
    Ok(())
}

/// The descriptors that lead to a socket.
fn files_of<'a>(
    state: &'a ProcessState,
    socket: Option<&PairedSocket>,
) -> impl Iterator<Item = &'a OpenFile> {
    let kind = socket.map(|socket| FileKind::Socket {
        inode: socket.inode,
    });
    let files = state.files.iter();
    files.filter(move |file| Some(&file.kind) == kind.as_ref())
}

/// Moves both ends of what was just made, which lie in the data of the list, out of the way of all
/// numbers that are wanted: one may have the other's.
pub(crate) fn lift_ends(remote: &Remote, what: &str, wanted: &[OpenFile]) -> Result<[u64; 2]> {
    let ends: [[u8; 4]; 2] = remote.read_data()?;
    let above = wanted.iter().map(|file| file.number.saturating_add(1));
    let above = above.max().unwrap_or(0);
    let mut lifted = [0; 2];
    for (end, lifted) in ends.map(u32::from_ne_bytes).into_iter().zip(&mut lifted) {
        let arguments = [end.into(), libc::F_DUPFD.into(), above.into()];
        *lifted = remote.call(remote.main, what, libc::SYS_fcntl, &arguments)?;
        remote.call(remote.main, what, libc::SYS_close, &[end.into()])?;
    }
    Ok(lifted)
}

/// Gives an end the numbers of `files`, and takes its own away.
pub(crate) fn place_end<'a>(
    remote: &Remote,
    what: &str,
    end: u64,
    files: impl Iterator<Item = &'a OpenFile>,
) -> Result<()> {
    let mut list = remote.list(remote.main);
    for file in files {
        let flags = file.flags as i32 & libc::O_CLOEXEC;
        let arguments = [end.into(), file.number.into(), flags.into()];
        list.call(what, libc::SYS_dup3, &arguments)?;
    }
    list.call(what, libc::SYS_close, &[end.into()])?;
    list.run()
}

/// Sends bytes that nobody has received yet. The socket may have had a larger buffer, which it gets
/// for that.
fn send_unread(remote: &Remote, number: u32, unread: &[u8]) -> Result<()> {
    if unread.is_empty() {
        return Ok(());
    }
    let what = format!("write the unread bytes of descriptor {number}");
    let own = taken(remote.pid, number).map_err(Error::step(&what))?;
    let before = sockopt::socket_send_buffer_size(&own).map_err(Error::step(&what))?;
    // What the kernel needs besides the bytes counts, too.
    let wanted = unread.len().saturating_mul(4).min(SEND_BUFFER_MAX);
    let is_larger = wanted > before;
    if is_larger && sockopt::set_socket_send_buffer_size_force(&own, wanted).is_err() {
        // As much as it may have without CAP_NET_ADMIN.
        sockopt::set_socket_send_buffer_size(&own, wanted).map_err(Error::step(&what))?;
    }
    write_unread(remote, number, unread)?;
    if is_larger {
        // The kernel doubles what it is asked for.
        sockopt::set_socket_send_buffer_size(&own, before / 2).map_err(Error::step(&what))?;
    }
    Ok(())
}

/// The most that may be asked for as a socket's buffer (`sock_setsockopt` in `net/core/sock.c`).
const SEND_BUFFER_MAX: usize = (i32::MAX / 2) as usize;

/// Writes bytes that nobody has read yet, without waiting for anybody to read.
pub(crate) fn write_unread(remote: &Remote, number: u32, unread: &[u8]) -> Result<()> {
    let what = format!("write the unread bytes of descriptor {number}");
    let own = match unread.is_empty() {
        true => return Ok(()),
        false => taken(remote.pid, number).map_err(Error::step(&what))?,
    };
    let before = rustix::fs::fcntl_getfl(&own).map_err(Error::step(&what))?;
    let waits_not = before | rustix::fs::OFlags::NONBLOCK;
    rustix::fs::fcntl_setfl(&own, waits_not).map_err(Error::step(&what))?;
    for mut part in unread.chunks(WRITE_BYTES) {
        while !part.is_empty() {
            let count = rustix::io::write(&own, part).map_err(Error::step(&what))?;
            part = &part[count..];
        }
    }
    rustix::fs::fcntl_setfl(&own, before).map_err(Error::step(&what))
}
