//! The suite `net`: the loopback device, after NetIO and Aim9's `tcp_test` and `udp_test`.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{Done, Work, timed};

pub(crate) const ALL: &[Work] = &[
    Work::new("tcp", tcp),
    Work::new("tcp-latency", tcp_latency),
    Work::new("udp", udp),
];

/// What is lost on the way does not stop a test for ever.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Two ends of a connection.
fn connection() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let one = TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    for end in [&one, &other] {
        end.set_nodelay(true)?;
        end.set_read_timeout(Some(TIMEOUT))?;
        end.set_write_timeout(Some(TIMEOUT))?;
    }
    Ok((one, other))
}

fn tcp() -> Result<Done> {
    const PIECE: usize = 64 << 10;
    const PIECES: u64 = 2_000;
    let (mut to, mut from) = connection()?;
    let done = thread::scope(|scope| {
        let sender = scope.spawn(move || (0..PIECES).try_for_each(|_| to.write_all(&[4; PIECE])));
        let done = timed(|| {
            let mut sum = 0;
            let mut piece = vec![0; PIECE];
            for _ in 0..PIECES {
                from.read_exact(&mut piece)?;
                sum += u64::from(piece[PIECE - 1]);
            }
            Ok(sum)
        });
        drop(from);
        sender.join().ok().context("the sender has failed")??;
        done
    })?;
    done.is(4 * PIECES)
}

fn tcp_latency() -> Result<Done> {
    const TIMES: u64 = 4_000;
    let (mut own, mut other) = connection()?;
    let done = thread::scope(|scope| {
        let echo = scope.spawn(move || {
            let mut byte = [0];
            (0..TIMES).try_for_each(|_| {
                other.read_exact(&mut byte)?;
                other.write_all(&byte)
            })
        });
        let done = timed(|| {
            let mut sum = 0;
            let mut byte = [3];
            for _ in 0..TIMES {
                own.write_all(&byte)?;
                own.read_exact(&mut byte)?;
                sum += u64::from(byte[0]);
            }
            Ok(sum)
        });
        drop(own);
        echo.join().ok().context("the echo has failed")??;
        done
    })?;
    done.is(3 * TIMES)
}

fn udp() -> Result<Done> {
    const TIMES: u64 = 4_000;
    let socket = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
    let (own, other) = (socket()?, socket()?);
    own.connect(other.local_addr()?)?;
    other.connect(own.local_addr()?)?;
    own.set_read_timeout(Some(TIMEOUT))?;
    other.set_read_timeout(Some(TIMEOUT))?;
    let done = thread::scope(|scope| {
        let echo = scope.spawn(move || {
            let mut message = [0; 2048];
            (0..TIMES).try_for_each(|_| {
                let bytes = other.recv(&mut message)?;
                other.send(&message[..bytes]).map(drop)
            })
        });
        let done = timed(|| {
            let mut sum = 0;
            let mut message = [0; 2048];
            for _ in 0..TIMES {
                own.send(&[7; 1024])?;
                sum += own.recv(&mut message)? as u64;
            }
            Ok(sum)
        });
        echo.join().ok().context("the echo has failed")??;
        done
    })?;
    done.is(1024 * TIMES)
}
