//! The watch on *another* process, kept by a small process of its own: it has to outlive the
//! program that clears, since CRIU's pre-dump, next pre-dump and dump are three programs.
//!
//! A holder is forked by the first program that needs it, listens on an abstract Unix socket named
//! after its target, and ends when the target does, or the process for which it is held. If it is
//! killed, the watch ends with it, and all pages count as written. It answers root and its own
//! user. One request is one connection: a byte, answered by what is armed or by why not.
//!
//! Where the watch reads a log of dirty pages (`/dev/ooh`), no page tells by itself whether it was
//! written. Then each look ends a round, and the answer has all that was written since the clear.

use crate::settings;
use crate::sys::process;
use pagetrail::{
    Attached, PageRange, PageSet, Region, Target, Technique, UntrackedPolicy, Unwritable, Watch,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::AsFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::{self, Error, ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

/// What a holder can be asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Get ready, while the target still lets itself be attached to.
    Attach,
    /// Clear all bits.
    Clear,
    /// Return what is armed.
    Look,
}

/// What was armed at the last clear, which part of it is mapped shared, and which is private and no
/// file's.
#[derive(Debug, Default)]
pub(crate) struct Armed {
    pub(crate) armed: PageSet,
    pub(crate) shared: PageSet,
    pub(crate) anonymous: PageSet,
    /// What was written since, where the pages' own entries do not tell.
    pub(crate) written: Option<PageSet>,
}

/// Longer than a holder may take to attach.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Sends a request to the holder of a process; starts a holder unless the request is
/// [`Request::Look`].
pub(crate) fn ask(pid: u32, request: Request) -> io::Result<Armed> {
    let address = address(pid)?;
    let mut stream = match UnixStream::connect_addr(&address) {
        Ok(stream) => stream,
        Err(error) if request == Request::Look => return Err(error),
        Err(_) => {
            start(pid, &address)?;
            UnixStream::connect_addr(&address)?
        }
    };
    if !is_friend(&stream) {
        return Err(Error::new(
            ErrorKind::PermissionDenied,
            "its holder is another user's",
        ));
    }
    stream.set_read_timeout(Some(CALL_TIMEOUT))?;
    stream.write_all(&[request as u8])?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply)?;
    parse(&reply).unwrap_or_else(|| Err(Error::new(ErrorKind::InvalidData, "its holder has gone")))
}

/// The socket's name, which distinguishes the process from a later one with the same PID.
fn address(pid: u32) -> io::Result<SocketAddr> {
    // A name in them may be any bytes.
    let stat = std::fs::read(format!("/proc/{pid}/stat"))?;
    let stat = String::from_utf8_lossy(&stat);
    let started = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.split_whitespace().nth(19));
    let started = started.ok_or(ErrorKind::InvalidData)?;
    SocketAddr::from_abstract_name(format!("pagetrail-softdirty/{pid}/{started}"))
}

/// Whether a process may be attached to before it is traced: not a thread of another, and no
/// descendant of ours. Those a program makes itself, as CRIU does to restore them, and which no
/// other process may disturb meanwhile.
pub(crate) fn may_attach(pid: u32) -> bool {
    let own = std::process::id();
    let Some((leader, mut parent)) = family(pid) else {
        return false;
    };
    // The bound is for a tree that changes meanwhile.
    for _ in 0..1000 {
        match family(parent) {
            _ if parent == own => return false,
            Some((_, next)) => parent = next,
            None => break,
        }
    }
    leader == pid
}

/// The thread group of a process, and its parent.
fn family(pid: u32) -> Option<(u32, u32)> {
    let status = std::fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let field = |name| {
        let value = status.lines().find_map(|line| line.strip_prefix(name))?;
        value.trim().parse().ok()
    };
    Some((field("Tgid:")?, field("PPid:")?))
}

fn is_friend(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(stream)
        .is_ok_and(|peer| peer.uid.is_root() || peer.uid == own)
}

fn start(pid: u32, address: &SocketAddr) -> io::Result<()> {
    let listener = match UnixListener::bind_addr(address) {
        Ok(listener) => listener,
        // Somebody else has started it a moment ago.
        Err(error) if error.kind() == ErrorKind::AddrInUse => return Ok(()),
        Err(error) => return Err(error),
    };
    process::daemon(listener, move |listener| hold(pid, &listener))
}

/// What a holder has of its target.
enum Hold {
    Nothing,
    Attached(Box<Attached>),
    Watching(Box<Watch>),
    /// By a log; with what was written since the last clear.
    Logging(Box<Watch>, PageSet),
}

/// The holder's life.
fn hold(pid: u32, listener: &UnixListener) {
    // It ends with each of these.
    let mut ends = Vec::new();
    for pid in [Some(pid), settings::held_for()].into_iter().flatten() {
        let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let Some(Ok(end)) = process.map(|pid| pidfd_open(pid, PidfdFlags::empty())) else {
            return;
        };
        ends.push(end);
    }
    let mut hold = Hold::Nothing;
    loop {
        let mut fds = vec![PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
        let ended = ends.iter().map(AsFd::as_fd);
        fds.extend(ended.map(|end| PollFd::from_borrowed_fd(end, PollFlags::IN)));
        let polled = poll(&mut fds, None);
        if polled.is_err() || fds[1..].iter().any(|end| !end.revents().is_empty()) {
            return;
        }
        if let Ok((stream, _)) = listener.accept() {
            // A client that does not wait for its answer is its own affair.
            let _ = serve(pid, &mut hold, stream);
        }
        if matches!(hold, Hold::Nothing) {
            return;
        }
    }
}

fn serve(pid: u32, hold: &mut Hold, mut stream: UnixStream) -> io::Result<()> {
    if !is_friend(&stream) {
        return Ok(());
    }
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.set_write_timeout(Some(Duration::from_secs(1)))?;
    let mut request = [0];
    stream.read_exact(&mut request)?;
    let before = std::mem::replace(hold, Hold::Nothing);
    let outcome = match request[0] {
        byte if byte == Request::Attach as u8 => attached(pid, before),
        byte if byte == Request::Clear as u8 => cleared(pid, before),
        _ => looked(before),
    };
    let reply = match outcome {
        Ok(now) => {
            *hold = now;
            answer(hold)
        }
        // Without a watch everything counts as written.
        Err(error) => [b"E", error.to_string().as_bytes()].concat(),
    };
    stream.write_all(&reply)
}

fn attached(pid: u32, before: Hold) -> pagetrail::Result<Hold> {
    match before {
        Hold::Nothing => {
            let builder = |technique| -> pagetrail::Result<_> {
                Ok(Watch::builder()
                    .target(Target::process(pid)?)
                    .technique(technique)
                    .unwritable(Unwritable::Always)
                    .untracked(UntrackedPolicy::Report))
            };
            if let Some(log) = settings::log_technique() {
                match builder(log)?.start() {
                    Ok(watch) => {
                        settings::log(format_args!("process {pid} is answered by {log}"));
                        return Ok(Hold::Logging(Box::new(watch), PageSet::new()));
                    }
                    Err(error) => settings::log(format_args!("not by {log}: {error}")),
                }
            }
            let attached = builder(Technique::PagemapScan)?.attach()?;
            Ok(Hold::Attached(Box::new(attached)))
        }
        other => Ok(other),
    }
}

/// Ends a round of a log, so that all that was written until now is known.
fn looked(before: Hold) -> pagetrail::Result<Hold> {
    match before {
        Hold::Logging(mut watch, mut written) => {
            let round = watch.collect()?;
            written.union_with(round.dirty());
            round.commit();
            Ok(Hold::Logging(watch, written))
        }
        other => Ok(other),
    }
}

fn cleared(pid: u32, before: Hold) -> pagetrail::Result<Hold> {
    match attached(pid, before)? {
        Hold::Watching(mut watch) => {
            watch.collect()?.commit();
            Ok(Hold::Watching(watch))
        }
        Hold::Logging(mut watch, _) => {
            watch.collect()?.commit();
            Ok(Hold::Logging(watch, PageSet::new()))
        }
        Hold::Attached(attached) => attached
            .start()
            .map(|watch| Hold::Watching(Box::new(watch))),
        Hold::Nothing => Ok(Hold::Nothing),
    }
}

/// What a watch has armed.
pub(crate) fn armed_by(watch: &Watch) -> Armed {
    let untracked = watch
        .untracked()
        .iter()
        .map(|untracked| untracked.region.range);
    let untracked: PageSet = untracked.collect();
    // As the watch chooses them, with `Unwritable::Always`.
    let watched = watch.regions().iter().filter(|region| {
        region.permissions.write || (!region.permissions.shared && region.is_trackable())
    });
    let all: PageSet = watched.clone().map(|region| region.range).collect();
    let part = |wanted: fn(&Region) -> bool| -> PageSet {
        let regions = watched.clone().filter(|region| wanted(region));
        regions.map(|region| region.range).collect()
    };
    let armed = all.difference(&untracked);
    Armed {
        shared: part(|region| region.permissions.shared).intersection(&armed),
        anonymous: part(|region| !region.permissions.shared && region.inode == 0)
            .intersection(&armed),
        armed,
        written: None,
    }
}

/// `K`, or `L` with what was written; the numbers of armed, shared and anonymous ranges, and the
/// ranges: armed, shared, anonymous, written.
fn answer(hold: &Hold) -> Vec<u8> {
    let sets = match hold {
        Hold::Watching(watch) => armed_by(watch),
        Hold::Logging(watch, written) => Armed {
            written: Some(written.clone()),
            ..armed_by(watch)
        },
        Hold::Nothing | Hold::Attached(_) => Armed::default(),
    };
    let mut reply = vec![if sets.written.is_some() { b'L' } else { b'K' }];
    for counted in [&sets.armed, &sets.shared, &sets.anonymous] {
        reply.extend((counted.ranges().len() as u64).to_ne_bytes());
    }
    let written = sets.written.unwrap_or_default();
    let sets = [sets.armed, sets.shared, sets.anonymous, written];
    for range in sets.iter().flat_map(PageSet::ranges) {
        reply.extend(range.start().to_ne_bytes());
        reply.extend(range.end().to_ne_bytes());
    }
    reply
}

fn parse(reply: &[u8]) -> Option<io::Result<Armed>> {
    let (kind, rest) = reply.split_first()?;
    if *kind == b'E' {
        return Some(Err(Error::other(
            String::from_utf8_lossy(rest).into_owned(),
        )));
    }
    let (armed, rest) = rest.split_first_chunk::<8>()?;
    let (shared, rest) = rest.split_first_chunk::<8>()?;
    let (anonymous, rest) = rest.split_first_chunk::<8>()?;
    let number = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).ok();
    let ranges = rest.chunks_exact(16);
    let ranges = ranges.map(|range| PageRange::new(number(&range[..8])?, number(&range[8..])?));
    let ranges: Vec<PageRange> = ranges.collect::<Option<_>>()?;
    let (armed, rest) = ranges.split_at_checked(u64::from_ne_bytes(*armed) as usize)?;
    let (shared, rest) = rest.split_at_checked(u64::from_ne_bytes(*shared) as usize)?;
    let (anonymous, written) = rest.split_at_checked(u64::from_ne_bytes(*anonymous) as usize)?;
    let set = |ranges: &[PageRange]| ranges.iter().copied().collect();
    Some(Ok(Armed {
        armed: set(armed),
        shared: set(shared),
        anonymous: set(anonymous),
        written: (*kind == b'L').then(|| set(written)),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_survive_the_socket() {
        let empty = parse(&answer(&Hold::Nothing)).unwrap().unwrap();
        assert!(empty.armed.is_empty() && empty.shared.is_empty());
        let mut reply = vec![b'L'];
        for number in [1_u64, 1, 1, 0x1000, 0x6000, 0x2000, 0x3000, 0x3000, 0x6000] {
            reply.extend(number.to_ne_bytes());
        }
        for number in [0x4000_u64, 0x5000] {
            reply.extend(number.to_ne_bytes());
        }
        let sets = parse(&reply).unwrap().unwrap();
        let bytes = [&sets.armed, &sets.shared, &sets.anonymous].map(PageSet::bytes);
        assert_eq!(bytes, [0x5000, 0x1000, 0x3000]);
        assert_eq!(sets.written.unwrap().bytes(), 0x1000);
        assert!(parse(b"").is_none() && parse(b"K123").is_none());
        assert!(parse(b"Eno such process").unwrap().is_err());
        reply[1] = 9;
        assert!(parse(&reply).is_none(), "more ranges promised than sent");
    }
}
