//! The suite `ipc`: pipes, sockets and shared memory, after Aim9's.

use std::io::{Read, Write, pipe};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::thread;

use anyhow::{Context, Result, ensure};

use super::{Done, Work, timed};
use crate::sys::child::Child;
use crate::sys::mapping::Mapping;

pub(crate) const ALL: &[Work] = &[
    Work::new("pipe", ping_pong),
    Work::new("pipe-copy", copy),
    Work::new("stream", stream),
    Work::new("datagram", datagram),
    Work::new("shared-memory", shared_memory),
];

/// Two processes wait for each other.
fn ping_pong() -> Result<Done> {
    const TIMES: u64 = 5_000;
    let (mut child_reads, mut to_child) = pipe()?;
    let (mut from_child, mut child_writes) = pipe()?;
    let child = Child::start(|| {
        let mut byte = [0];
        for _ in 0..TIMES {
            let passed = child_reads.read_exact(&mut byte);
            if passed.and_then(|()| child_writes.write_all(&byte)).is_err() {
                return 1;
            }
        }
        0
    })?;
    // A child that fails is noticed, not waited for.
    drop((child_reads, child_writes));
    let done = timed(|| {
        let mut sum = 0;
        let mut byte = [3];
        for _ in 0..TIMES {
            to_child.write_all(&byte)?;
            from_child.read_exact(&mut byte)?;
            sum += u64::from(byte[0]);
        }
        Ok(sum)
    })?;
    ensure!(child.wait()? == 0, "the child has failed");
    done.is(3 * TIMES)
}

const PIECE: usize = 64 << 10;
const PIECES: u64 = 1_600;

/// A thread sends, this one receives; gives the sum of each piece's first byte.
fn transfer(mut to: impl Write + Send, mut from: impl Read) -> Result<Done> {
    let done = thread::scope(|scope| {
        let sender = scope.spawn(move || (0..PIECES).try_for_each(|_| to.write_all(&[5; PIECE])));
        let done = timed(|| {
            let mut sum = 0;
            let mut piece = vec![0; PIECE];
            for _ in 0..PIECES {
                from.read_exact(&mut piece)?;
                sum += u64::from(piece[0]);
            }
            Ok(sum)
        });
        // So that the sender ends, too, where this has failed.
        drop(from);
        sender.join().ok().context("the sender has failed")??;
        done
    })?;
    done.is(5 * PIECES)
}

fn copy() -> Result<Done> {
    let (from, to) = pipe()?;
    transfer(to, from)
}

fn stream() -> Result<Done> {
    let (from, to) = UnixStream::pair()?;
    transfer(to, from)
}

fn datagram() -> Result<Done> {
    const MESSAGES: u64 = 30_000;
    let (from, to) = UnixDatagram::pair()?;
    let done = thread::scope(|scope| {
        let sender =
            scope.spawn(move || (0..MESSAGES).try_for_each(|_| to.send(&[2; 512]).map(drop)));
        let done = timed(|| {
            let mut bytes = 0;
            for _ in 0..MESSAGES {
                bytes += from.recv(&mut [0; 1024])? as u64;
            }
            Ok(bytes)
        });
        drop(from);
        sender.join().ok().context("the sender has failed")??;
        done
    })?;
    done.is(512 * MESSAGES)
}

/// A child fills shared memory, this process empties it, in turns.
fn shared_memory() -> Result<Done> {
    const TURNS: u64 = 1_500;
    let mut memory = Mapping::shared(PIECE)?;
    let (mut child_reads, mut to_child) = pipe()?;
    let (mut from_child, mut child_writes) = pipe()?;
    let mut byte = [0];
    let child = Child::start(|| {
        let mut byte = [0];
        for turn in 0..TURNS {
            if child_reads.read_exact(&mut byte).is_err() {
                return 1;
            }
            memory.bytes_mut().fill(turn as u8);
            if child_writes.write_all(&byte).is_err() {
                return 1;
            }
        }
        0
    })?;
    drop((child_reads, child_writes));
    let mut own = vec![0; PIECE];
    let done = timed(|| {
        let mut right = 0;
        for turn in 0..TURNS {
            to_child.write_all(&byte)?;
            from_child.read_exact(&mut byte)?;
            own.copy_from_slice(memory.bytes_mut());
            right += u64::from(own[0] == turn as u8 && own[PIECE - 1] == turn as u8);
        }
        Ok(right)
    })?;
    ensure!(child.wait()? == 0, "the child has failed");
    done.is(TURNS)
}
