//! [`AgentAddress`] and [`ListenAddress`]: where an agent is reached, and where it listens.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, de};

/// Where the agent of a guest is, from its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentAddress {
    /// A port of the machine of this number, by vsock.
    Vsock {
        /// The guest's number.
        cid: u32,
        /// The port.
        port: u32,
    },
    /// A socket in the file system, as monitors make it for a serial port of the guest.
    Unix(PathBuf),
    /// An address and a port.
    Tcp(SocketAddr),
}

/// Where an agent waits for its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// A port for the host, by vsock.
    Vsock {
        /// The port.
        port: u32,
    },
    /// A socket in the file system.
    Unix(PathBuf),
    /// An address and a port.
    Tcp(SocketAddr),
    /// A serial port, as `/dev/virtio-ports/NAME`.
    Device(PathBuf),
}

impl FromStr for AgentAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            "an agent is at vsock:CID:PORT, as vsock:3:9466, unix:/an/absolute/path or ADDRESS:PORT"
                .to_owned()
        };
        if let Some(rest) = text.strip_prefix("vsock:") {
            let (cid, port) = rest.split_once(':').ok_or_else(wrong)?;
            let (cid, port) = (cid.parse().ok(), port.parse().ok());
            let (Some(cid), Some(port)) = (cid, port) else {
                return Err(wrong());
            };
            return Ok(Self::Vsock { cid, port });
        }
        match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            Some(_) => Err(wrong()),
            None => text.parse().map(Self::Tcp).map_err(|_| wrong()),
        }
    }
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            "an agent listens at vsock:PORT, unix:/an/absolute/path, ADDRESS:PORT or a serial port, \
             as /dev/virtio-ports/NAME"
                .to_owned()
        };
        if let Some(port) = text.strip_prefix("vsock:") {
            let port = port.parse().map_err(|_| wrong())?;
            return Ok(Self::Vsock { port });
        }
        match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            Some(_) => Err(wrong()),
            None if text.starts_with("/dev/") => Ok(Self::Device(text.into())),
            None => text.parse().map(Self::Tcp).map_err(|_| wrong()),
        }
    }
}

impl fmt::Display for AgentAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vsock { cid, port } => write!(f, "vsock:{cid}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => address.fmt(f),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vsock { port } => write!(f, "vsock:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => address.fmt(f),
            Self::Device(path) => path.display().fmt(f),
        }
    }
}

impl<'de> Deserialize<'de> for AgentAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in ["vsock:3:9466", "unix:/run/a.sock", "127.0.0.1:9466"] {
            let address: AgentAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
        for text in [
            "vsock:9466",
            "unix:/run/a.sock",
            "[::1]:9466",
            "/dev/virtio-ports/a",
        ] {
            let address: ListenAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
        for wrong in [
            "",
            "vsock:",
            "vsock:3",
            "vsock:x:1",
            "unix:a",
            "host",
            "/dev/a",
        ] {
            assert!(wrong.parse::<AgentAddress>().is_err(), "{wrong}");
        }
        for wrong in ["", "vsock:", "vsock:3:4", "unix:a", "host", "/tmp/a"] {
            assert!(wrong.parse::<ListenAddress>().is_err(), "{wrong}");
        }
    }

    /// The families of sockets that an agent is reached by.
    fn families(address: &AgentAddress) -> &'static [&'static str] {
        match address {
            AgentAddress::Vsock { .. } => &["AF_VSOCK"],
            AgentAddress::Unix(_) => &["AF_UNIX"],
            AgentAddress::Tcp(_) => &["AF_INET", "AF_INET6"],
        }
    }

    #[test]
    fn the_unit_for_systemd_lets_agents_be_reached() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let unit = root.join("docs/examples/pagetrail-tier.service");
        let unit = std::fs::read_to_string(unit).unwrap();
        let setting = "RestrictAddressFamilies=";
        let allowed = unit.lines().find_map(|line| line.strip_prefix(setting));
        let allowed: Vec<&str> = allowed.unwrap().split_whitespace().collect();
        for address in ["vsock:3:9466", "unix:/run/a.sock", "127.0.0.1:9466"] {
            for family in families(&address.parse().unwrap()) {
                assert!(allowed.contains(family), "{address}: {allowed:?}");
            }
        }
    }
}
