//! Threads with their registers, as bytes between the guest and those that hold it.

use std::io::Read;

use pagetrail::{HeldThread, RegisterSet};

use crate::error::{Error, Result};

/// The most threads in a message: the kernel's most PIDs.
const THREADS_MAX: u64 = 1 << 22;
/// The most sets of registers of a thread, and the most bytes of one.
const SETS_MAX: u64 = 16;
const SET_BYTES_MAX: u64 = 1 << 16;

/// Adds threads to a message.
pub(crate) fn encode(threads: &[HeldThread], message: &mut Vec<u8>) {
    let word = |word: u64, message: &mut Vec<u8>| message.extend(word.to_le_bytes());
    word(threads.len() as u64, message);
    for thread in threads {
        word(thread.tid.into(), message);
        word(thread.blocked_signals, message);
        word(thread.registers.len() as u64, message);
        for set in &thread.registers {
            word(set.note.into(), message);
            word(set.bytes.len() as u64, message);
            message.extend(&set.bytes);
        }
    }
}

/// Reads threads from a message.
pub(crate) fn decode(message: &mut impl Read) -> Result<Vec<HeldThread>> {
    let count = word_up_to(message, THREADS_MAX)?;
    (0..count).map(|_| thread(message)).collect()
}

fn thread(message: &mut impl Read) -> Result<HeldThread> {
    let tid = word_up_to(message, u32::MAX.into())? as u32;
    let blocked_signals = word(message)?;
    let count = word_up_to(message, SETS_MAX)?;
    let set = |_| {
        let note = word_up_to(message, u32::MAX.into())? as u32;
        let mut bytes = vec![0; word_up_to(message, SET_BYTES_MAX)? as usize];
        read(message, &mut bytes)?;
        Ok(RegisterSet { note, bytes })
    };
    Ok(HeldThread {
        tid,
        registers: (0..count).map(set).collect::<Result<_>>()?,
        blocked_signals,
    })
}

fn word_up_to(message: &mut impl Read, max: u64) -> Result<u64> {
    let word = word(message)?;
    (word <= max).then_some(word).ok_or(Error::MalformedRound)
}

fn word(message: &mut impl Read) -> Result<u64> {
    let mut bytes = [0; 8];
    read(message, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn read(message: &mut impl Read, into: &mut [u8]) -> Result<()> {
    let read = message.read_exact(into);
    read.map_err(Error::system("read registers"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_arrive_as_they_were_sent() {
        let set = |note, bytes| RegisterSet { note, bytes };
        let threads = [
            HeldThread {
                tid: 7,
                registers: vec![set(1, vec![3; 216]), set(0x202, vec![5; 832])],
                blocked_signals: u64::MAX,
            },
            HeldThread {
                tid: u32::MAX,
                registers: Vec::new(),
                blocked_signals: 0,
            },
        ];
        let mut message = Vec::new();
        encode(&threads, &mut message);
        assert_eq!(decode(&mut &message[..]).unwrap(), threads);
        for length in [0, 8, 100, message.len() - 1] {
            assert!(decode(&mut &message[..length]).is_err());
        }
        message[16 + 8] = 17;
        assert!(matches!(
            decode(&mut &message[..]),
            Err(Error::MalformedRound)
        ));
    }
}
