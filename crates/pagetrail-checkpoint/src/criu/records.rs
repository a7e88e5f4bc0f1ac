//! What is read of CRIU's own image files: how long a dump froze its processes (`stats.proto`),
//! which regular files they have open (`fdinfo.proto`, `regfile.proto`), and which addresses their
//! sockets have (`sk-inet.proto`, `sk-unix.proto`). Pure, and bounded by the bytes that are there.

use super::protobuf::{Value, fields, messages};
use std::fmt;
use std::ops::ControlFlow;
use std::time::Duration;

/// Fields of `stats_entry` and `dump_stats_entry`.
const STATS_DUMP: u64 = 1;
const DUMP_FROZEN_US: u64 = 2;
/// Fields of `file_entry` and `reg_file_entry`.
const FILE_REGULAR: u64 = 3;
const REGULAR_NAME: u64 = 6;
const REGULAR_SIZE: u64 = 8;
const REGULAR_EXTERNAL: u64 = 9;
/// Fields of `file_entry`, `inet_sk_entry` and `unix_sk_entry`.
const FILE_INET: u64 = 4;
const FILE_UNIX: u64 = 16;
const INET_PROTOCOL: u64 = 5;
const INET_PORT: u64 = 7;
const UNIX_STATE: u64 = 4;
const UNIX_NAME: u64 = 11;

/// `IPPROTO_TCP`, and `TCP_LISTEN`, which CRIU uses of Unix sockets as well.
const TCP: u64 = 6;
const LISTENING: u64 = 10;

/// An address of a socket that one process at a time can have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum SocketAddress {
    /// A port of TCP, of this machine or of a connection.
    Tcp(u16),
    /// A port of another protocol over IP.
    Udp(u16),
    /// The path of a Unix socket that takes connections.
    Path(String),
    /// The name of one that has no path.
    Abstract(String),
}

impl fmt::Display for SocketAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(port) => write!(f, "TCP port {port}"),
            Self::Udp(port) => write!(f, "UDP port {port}"),
            Self::Path(path) => write!(f, "the socket {path}"),
            Self::Abstract(name) => write!(f, "the abstract socket {name}"),
        }
    }
}

/// A regular file that a dumped process has open or mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegularFile {
    /// Its path.
    pub name: String,
    /// Its length at the time, which CRIU wants again.
    pub bytes: Option<u64>,
}

/// How long a dump froze its processes, by its `stats-dump`.
pub fn frozen(stats: &[u8]) -> Option<Duration> {
    let mut found = None;
    messages(stats, |message| {
        let read = fields(message, |at, value| {
            if let (STATS_DUMP, Value::Bytes(dump)) = (at, value) {
                let _ = fields(dump, |at, value| {
                    if let (DUMP_FROZEN_US, Value::Number(us)) = (at, value) {
                        found = Some(Duration::from_micros(us));
                    }
                });
            }
        });
        read.map_or(ControlFlow::Break(()), ControlFlow::Continue)
    })?;
    found
}

/// The regular files of a dump, by its `files.img`, but for those that are handed over from
/// outside; `None` if it cannot be read.
pub fn regular_files(files: &[u8]) -> Option<Vec<RegularFile>> {
    let mut found = Vec::new();
    messages(files, |message| {
        let mut regular = None;
        let read = fields(message, |at, value| {
            if let (FILE_REGULAR, Value::Bytes(entry)) = (at, value) {
                regular = Some(entry);
            }
        });
        let read = read.and_then(|()| match regular {
            Some(entry) => regular_file(entry).map(|file| found.extend(file)),
            None => Some(()),
        });
        read.map_or(ControlFlow::Break(()), ControlFlow::Continue)
    })?;
    Some(found)
}

/// The addresses of a dump's sockets, by its `files.img`, each once; `None` if it cannot be read.
pub fn socket_addresses(files: &[u8]) -> Option<Vec<SocketAddress>> {
    let mut found = Vec::new();
    messages(files, |message| {
        let mut sockets = Vec::new();
        let read = fields(message, |at, value| {
            if let (FILE_INET | FILE_UNIX, Value::Bytes(entry)) = (at, value) {
                sockets.push((at, entry));
            }
        });
        for (at, entry) in sockets {
            let address = match at {
                FILE_INET => inet_address(entry),
                _ => unix_address(entry),
            };
            found.extend(address);
        }
        read.map_or(ControlFlow::Break(()), ControlFlow::Continue)
    })?;
    found.sort();
    found.dedup();
    Some(found)
}

fn inet_address(entry: &[u8]) -> Option<SocketAddress> {
    let (mut protocol, mut port) = (0, 0);
    fields(entry, |at, value| match (at, value) {
        (INET_PROTOCOL, Value::Number(number)) => protocol = number,
        (INET_PORT, Value::Number(number)) => port = number,
        _ => {}
    })?;
    let port = u16::try_from(port).ok().filter(|port| *port != 0)?;
    Some(match protocol {
        TCP => SocketAddress::Tcp(port),
        _ => SocketAddress::Udp(port),
    })
}

fn unix_address(entry: &[u8]) -> Option<SocketAddress> {
    let (mut state, mut name) = (0, &b""[..]);
    fields(entry, |at, value| match (at, value) {
        (UNIX_STATE, Value::Number(number)) => state = number,
        (UNIX_NAME, Value::Bytes(bytes)) => name = bytes,
        _ => {}
    })?;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    match name {
        _ if state != LISTENING => None,
        [] => None,
        [0, rest @ ..] => Some(SocketAddress::Abstract(text(rest))),
        path => Some(SocketAddress::Path(text(
            path.strip_suffix(b"\0").unwrap_or(path),
        ))),
    }
}

/// A regular file; `Some(None)` of one that is handed over from outside.
fn regular_file(entry: &[u8]) -> Option<Option<RegularFile>> {
    let (mut name, mut bytes, mut external) = (None, None, false);
    fields(entry, |at, value| match (at, value) {
        (REGULAR_NAME, Value::Bytes(text)) => name = std::str::from_utf8(text).ok(),
        (REGULAR_SIZE, Value::Number(size)) => bytes = Some(size),
        (REGULAR_EXTERNAL, Value::Number(is)) => external = is != 0,
        _ => {}
    })?;
    let name = name?.to_owned();
    Some((!external).then_some(RegularFile { name, bytes }))
}

#[cfg(test)]
mod tests {
    use super::super::protobuf::HEAD_BYTES;
    use super::*;

    /// A field of bytes, or of a number below 128.
    fn of(at: u8, value: &[u8]) -> Vec<u8> {
        [&[at << 3 | 2, value.len() as u8], value].concat()
    }

    fn image(messages: &[Vec<u8>]) -> Vec<u8> {
        let mut image = vec![0; HEAD_BYTES];
        for message in messages {
            image.extend((message.len() as u32).to_le_bytes());
            image.extend(message);
        }
        image
    }

    fn files() -> Vec<u8> {
        let name = of(6, b"/a b");
        let plain = [&[8, 1][..], &name, &[8 << 3, 0x85, 1]].concat();
        let unsized_file = of(6, b"/c");
        let external = [&name[..], &[9 << 3, 1]].concat();
        image(&[
            [&[8, 1, 16, 7][..], &of(3, &plain)].concat(),
            [&[8, 2, 16, 8][..], &of(9, b"x")].concat(),
            of(3, &unsized_file),
            of(3, &external),
        ])
    }

    #[test]
    fn what_is_wanted_is_found() {
        let expected = [("/a b", Some(133)), ("/c", None)].map(|(name, bytes)| RegularFile {
            name: name.into(),
            bytes,
        });
        assert_eq!(regular_files(&files()).unwrap(), expected);
        let dump = [8, 9, 16, 0xac, 0x02];
        let stats = image(&[of(1, &dump)]);
        assert_eq!(frozen(&stats), Some(Duration::from_micros(300)));
        assert_eq!(frozen(&image(&[])), None);
    }

    #[test]
    fn sockets_are_found_by_their_addresses() {
        let socket = |at: u8, entry: &[u8]| {
            let key = if at < 16 {
                vec![at << 3 | 2]
            } else {
                vec![0x82, 1]
            };
            [&[8, 1, 16, 7][..], &key, &[entry.len() as u8], entry].concat()
        };
        let listening = |name: &[u8]| [&[4 << 3, 10][..], &of(11, name)].concat();
        let image = image(&[
            socket(4, &[5 << 3, 6, 6 << 3, 10, 7 << 3, 0x90, 0x4e]),
            socket(4, &[5 << 3, 6, 7 << 3, 0x90, 0x4e]),
            socket(4, &[5 << 3, 17, 7 << 3, 53]),
            socket(4, &[5 << 3, 6, 7 << 3, 0]),
            socket(16, &listening(b"/run/x\0")),
            socket(16, &listening(b"\0y")),
            socket(16, &of(11, b"/not/listening")),
        ]);
        let found = socket_addresses(&image).unwrap();
        let expected = [
            SocketAddress::Tcp(10000),
            SocketAddress::Udp(53),
            SocketAddress::Path("/run/x".into()),
            SocketAddress::Abstract("y".into()),
        ];
        assert_eq!(found, expected);
        for at in HEAD_BYTES..image.len() {
            for bit in 0..8 {
                let mut wrong = image.clone();
                wrong[at] ^= 1 << bit;
                let _ = socket_addresses(&wrong);
            }
        }
    }

    #[test]
    fn damage_is_no_panic() {
        let whole = files();
        for length in 0..whole.len() {
            let _ = regular_files(&whole[..length]);
            let _ = frozen(&whole[..length]);
        }
        for at in HEAD_BYTES..whole.len() {
            for bit in 0..8 {
                let mut wrong = whole.clone();
                wrong[at] ^= 1 << bit;
                let _ = regular_files(&wrong);
                let _ = frozen(&wrong);
            }
        }
        assert_eq!(regular_files(b""), None);
    }
}
