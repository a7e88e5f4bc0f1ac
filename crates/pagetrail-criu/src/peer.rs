//! Who is at the other end of a connection from this machine. A port of the loopback interface is
//! open to every user, and pages hold all secrets of a program; the protocol knows no passwords.

use std::fs;
use std::net::{IpAddr, SocketAddr};

use crate::error::{Error, Result};

/// The columns of `/proc/net/tcp` that are wanted (`proc_pid_net(5)`).
const LOCAL: usize = 1;
const REMOTE: usize = 2;
const UID: usize = 7;

/// Fails when the other end of a connection, `peer` as this end (`own`) sees it, is another user's
/// program on this machine, and not root's. Programs on other machines pass: listening there was
/// asked for.
pub fn check(peer: SocketAddr, own: SocketAddr) -> Result<()> {
    let (peer, own) = (canonical(peer), canonical(own));
    if !peer.ip().is_loopback() && peer.ip() != own.ip() {
        return Ok(());
    }
    let uid = rustix::process::geteuid().as_raw();
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let owner = tables
        .iter()
        .find_map(|table| owner(&fs::read_to_string(table).unwrap_or_default(), peer, own));
    match owner {
        Some(owner) if owner == uid || owner == 0 => Ok(()),
        Some(owner) => refused(peer, format!("it belongs to user {owner}")),
        None => refused(peer, "whose it is cannot be found out".into()),
    }
}

fn refused(peer: SocketAddr, reason: String) -> Result<()> {
    Err(Error::Stranger { peer, reason })
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The user of the socket at `peer` that is connected to `own`.
fn owner(table: &str, peer: SocketAddr, own: SocketAddr) -> Option<u32> {
    let rows = table.lines().skip(1);
    let rows = rows.map(|line| line.split_whitespace().collect::<Vec<_>>());
    let is_at =
        |column: Option<&&str>, address| column.and_then(|text| parse(text)) == Some(address);
    let mut rows = rows.filter(|row| is_at(row.get(LOCAL), peer) && is_at(row.get(REMOTE), own));
    rows.next()?.get(UID)?.parse().ok()
}

/// An address of the table: words of four bytes as this machine has them, then the port.
fn parse(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut bytes = Vec::new();
    for at in (0..address.len()).step_by(8) {
        let word = u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    let ip = match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        16 => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
        _ => return None,
    };
    Some(canonical(SocketAddr::new(ip, port)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_user_is_found_in_the_table() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            0: 0100007F:24FA 0100007F:8D2C 01 00000000:00000000 00:00000000 00000000     0        0 1 1 x\n   \
            1: 0100007F:8D2C 0100007F:24FA 01 00000000:00000000 00:00000000 00000000  1000        0 2 1 x\n";
        let at = |text: &str| text.parse().unwrap();
        let (client, server) = (at("127.0.0.1:36140"), at("127.0.0.1:9466"));
        assert_eq!(owner(table, client, server), Some(1000));
        assert_eq!(owner(table, server, client), Some(0));
        assert_eq!(owner(table, at("127.0.0.1:1"), server), None);
        let mapped = "0000000000000000FFFF00000100007F:24FA";
        assert_eq!(parse(mapped), Some(server));
        let six = "00000000000000000000000001000000:24FA";
        assert_eq!(parse(six), Some(at("[::1]:9466")));
        for wrong in ["", ":", "0100007F", "0100007:1", "0100007FF:1", "é100007:1"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn own_connections_pass_and_those_that_are_gone_do_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap();
        let client = TcpStream::connect(own).unwrap();
        let peer = client.local_addr().unwrap();
        check(peer, own).unwrap();
        let nobody = SocketAddr::new(peer.ip(), 1);
        assert!(check(nobody, own).is_err());
        let far = SocketAddr::from(([192, 0, 2, 7], 1));
        check(far, own).unwrap();
    }
}
