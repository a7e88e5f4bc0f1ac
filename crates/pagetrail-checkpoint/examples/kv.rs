//! A key-value store in memory that survives `kill -9`, with what was set in the last interval lost
//! at most.
//!
//! Usage: `kv DIRECTORY [INTERVAL_MS]`, then lines on standard input: `set KEY VALUE`, `get KEY`,
//! `count`. Each answer is a line. Its table is plain memory; keeping it costs two lines of code.

#![allow(clippy::print_stdout, reason = "it answers")]

use pagetrail_checkpoint::Checkpointer;
use std::error::Error;
use std::io::{BufRead, stdin};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

const SLOTS: usize = 1 << 16;
const SLOT_BYTES: usize = 256;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments
        .next()
        .ok_or("usage: kv DIRECTORY [INTERVAL_MS]")?;
    let interval = Duration::from_millis(arguments.next().map_or(Ok(100), |ms| ms.parse())?);
    let mut kept = Checkpointer::builder(Path::new(&directory))
        .region("table", SLOTS * SLOT_BYTES)
        .start()?;
    match kept.restored() {
        Some(number) => println!("restored checkpoint {number}"),
        None => println!("empty"),
    }
    let (lines, line) = channel();
    std::thread::spawn(move || {
        for line in stdin().lock().lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                break;
            }
        }
    });
    let mut due = Instant::now() + interval;
    loop {
        match line.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Ok(line) => println!("{}", answer(kept.region_mut("table"), &line)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if Instant::now() >= due {
            kept.checkpoint()?;
            kept.prune(3)?;
            due = Instant::now() + interval;
        }
    }
    kept.checkpoint()?;
    Ok(())
}

fn answer(table: &mut [u8], line: &str) -> String {
    let mut words = line.splitn(3, ' ');
    match (words.next(), words.next(), words.next()) {
        (Some("set"), Some(key), Some(value)) if key.len() + value.len() <= SLOT_BYTES - 2 => {
            match slot(table, key) {
                Some(slot) => {
                    slot[0] = key.len() as u8;
                    slot[1] = value.len() as u8;
                    slot[2..2 + key.len()].copy_from_slice(key.as_bytes());
                    slot[2 + key.len()..][..value.len()].copy_from_slice(value.as_bytes());
                    "ok".into()
                }
                None => "full".into(),
            }
        }
        (Some("get"), Some(key), None) => match slot(table, key) {
            Some(slot) if slot[0] > 0 => {
                let value = &slot[2 + key.len()..][..slot[1].into()];
                String::from_utf8_lossy(value).into_owned()
            }
            _ => "none".into(),
        },
        (Some("count"), None, None) => {
            let slots = table.chunks(SLOT_BYTES).filter(|slot| slot[0] > 0);
            slots.count().to_string()
        }
        _ => "set KEY VALUE, get KEY, or count".into(),
    }
}

/// The slot of a key, or a free one for it.
fn slot<'a>(table: &'a mut [u8], key: &str) -> Option<&'a mut [u8]> {
    let hash = key.bytes().fold(5381usize, |hash, byte| {
        hash.wrapping_mul(33) ^ usize::from(byte)
    });
    let place = (0..SLOTS)
        .map(|n| (hash + n) % SLOTS * SLOT_BYTES)
        .find(|&at| {
            let length = usize::from(table[at]);
            length == 0 || length == key.len() && &table[at + 2..at + 2 + length] == key.as_bytes()
        })?;
    Some(&mut table[place..place + SLOT_BYTES])
}
