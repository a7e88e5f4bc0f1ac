//! [`Listener`]: a socket at which a process waits for connections.

use super::state::truth;
use super::wire::{Decoded, Decoder, Encoder, Malformed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// A socket of `listen(2)`, of a kind that has streams or packets in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Where it listens.
    pub address: ListenerAddress,
    /// `SOCK_STREAM` or `SOCK_SEQPACKET`.
    pub kind: u32,
    /// How many connections may wait.
    pub backlog: u32,
    /// `SO_REUSEADDR` of `socket(7)`.
    pub reuse_address: bool,
    /// `SO_REUSEPORT`.
    pub reuse_port: bool,
}

/// Where a socket listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenerAddress {
    /// A path in the file system (`unix(7)`).
    Path {
        /// The path, absolute.
        path: String,
        /// The access rights of the file.
        mode: u32,
        /// Its user and group.
        owner: (u32, u32),
    },
    /// A name that is no file's, without the zero byte before it.
    Abstract(Vec<u8>),
    /// An address and a port of TCP.
    Internet {
        /// Both.
        address: SocketAddr,
        /// `IPV6_V6ONLY` of `ipv6(7)`.
        only_v6: bool,
    },
}

impl std::fmt::Display for ListenerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Path { path, .. } => path.fmt(f),
            Self::Abstract(name) => write!(f, "@{}", String::from_utf8_lossy(name)),
            Self::Internet { address, .. } => address.fmt(f),
        }
    }
}

const PATH: u8 = 1;
const ABSTRACT: u8 = 2;
const VERSION_4: u8 = 4;
const VERSION_6: u8 = 6;

impl Listener {
    pub(super) fn encode(&self, out: &mut Encoder) {
        out.u32(self.kind);
        out.u32(self.backlog);
        out.u8(self.reuse_address.into());
        out.u8(self.reuse_port.into());
        match &self.address {
            ListenerAddress::Path { path, mode, owner } => {
                out.u8(PATH);
                out.text(path);
                out.u32(*mode);
                out.u32(owner.0);
                out.u32(owner.1);
            }
            ListenerAddress::Abstract(name) => {
                out.u8(ABSTRACT);
                out.bytes(name);
            }
            ListenerAddress::Internet { address, only_v6 } => {
                match address {
                    SocketAddr::V4(address) => {
                        out.u8(VERSION_4);
                        out.bytes(&address.ip().octets());
                    }
                    SocketAddr::V6(address) => {
                        out.u8(VERSION_6);
                        out.bytes(&address.ip().octets());
                        out.u32(address.flowinfo());
                        out.u32(address.scope_id());
                    }
                }
                out.u32(address.port().into());
                out.u8((*only_v6).into());
            }
        }
    }

    pub(super) fn decode(input: &mut Decoder<'_>) -> Decoded<Self> {
        Ok(Self {
            kind: input.u32()?,
            backlog: input.u32()?,
            reuse_address: truth(input)?,
            reuse_port: truth(input)?,
            address: match input.u8()? {
                PATH => ListenerAddress::Path {
                    path: input.text()?,
                    mode: input.u32()?,
                    owner: (input.u32()?, input.u32()?),
                },
                ABSTRACT => ListenerAddress::Abstract(input.bytes()?.to_vec()),
                VERSION_4 => {
                    let ip = Ipv4Addr::from(octets::<4>(input)?);
                    internet(input, |port| SocketAddrV4::new(ip, port).into())?
                }
                VERSION_6 => {
                    let ip = Ipv6Addr::from(octets::<16>(input)?);
                    let (flow, scope) = (input.u32()?, input.u32()?);
                    internet(input, |port| {
                        SocketAddrV6::new(ip, port, flow, scope).into()
                    })?
                }
                _ => return Err(Malformed("a socket at an address of an unknown kind")),
            },
        })
    }
}

fn octets<const COUNT: usize>(input: &mut Decoder<'_>) -> Decoded<[u8; COUNT]> {
    let bytes = input.bytes()?.try_into();
    bytes.map_err(|_| Malformed("an internet address of the wrong length"))
}

fn internet(
    input: &mut Decoder<'_>,
    address: impl Fn(u16) -> SocketAddr,
) -> Decoded<ListenerAddress> {
    let port = u16::try_from(input.u32()?).map_err(|_| Malformed("an impossible port"))?;
    Ok(ListenerAddress::Internet {
        address: address(port),
        only_v6: truth(input)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: ListenerAddress) -> Listener {
        Listener {
            address,
            kind: 1,
            backlog: 511,
            reuse_address: true,
            reuse_port: false,
        }
    }

    #[test]
    fn listeners_come_back_and_what_is_none_is_refused() {
        let internet = |text: &str| ListenerAddress::Internet {
            address: text.parse().unwrap(),
            only_v6: true,
        };
        let path = ListenerAddress::Path {
            path: "/run/some.sock".into(),
            mode: 0o755,
            owner: (3, 4),
        };
        let other = ListenerAddress::Abstract(b"a\0b".to_vec());
        for address in [path, other, internet("1.2.3.4:80"), internet("[::1]:6379")] {
            let listener = at(address);
            let mut out = Encoder::default();
            listener.encode(&mut out);
            let mut input = Decoder(&out.0);
            assert_eq!(Listener::decode(&mut input), Ok(listener));
            assert_eq!(input.end(), Ok(()));
            for length in 0..out.0.len() {
                assert!(Listener::decode(&mut Decoder(&out.0[..length])).is_err());
            }
        }
    }
}
