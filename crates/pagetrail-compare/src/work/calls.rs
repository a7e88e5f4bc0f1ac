//! The suite `calls`: calls of functions and of the kernel, after Aim9's function calls and its
//! miscellaneous routines.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::Read;
use std::time::Instant;

use anyhow::{Result, ensure};
use rustix::process::getppid;

use super::{Done, Work, timed};

pub(crate) const ALL: &[Work] = &[
    Work::new("function", function),
    Work::new("getppid", parent),
    Work::new("clock", clock),
    Work::new("read", read),
    Work::new("open", open),
    Work::new("passwd", passwd),
];

fn function() -> Result<Done> {
    #[inline(never)]
    fn add(a: u64, b: u64, c: u64) -> u64 {
        black_box(a) + b + c
    }
    const CALLS: u64 = 40_000_000;
    timed(|| Ok((0..CALLS).fold(0, |sum, _| add(black_box(sum), 1, 1))))?.is(2 * CALLS)
}

fn parent() -> Result<Done> {
    const CALLS: u64 = 600_000;
    let expected = getppid();
    timed(|| {
        let same = (0..CALLS).filter(|_| getppid() == expected);
        Ok(same.count() as u64)
    })?
    .is(CALLS)
}

fn clock() -> Result<Done> {
    const CALLS: u64 = 1_500_000;
    let mut last = Instant::now();
    timed(|| {
        let forward = (0..CALLS).filter(|_| {
            let now = Instant::now();
            std::mem::replace(&mut last, now) <= now
        });
        Ok(forward.count() as u64)
    })?
    .is(CALLS)
}

fn read() -> Result<Done> {
    const CALLS: u64 = 120_000;
    let mut zero = File::open("/dev/zero")?;
    timed(|| {
        let mut bytes = 0;
        for _ in 0..CALLS {
            bytes += zero.read(&mut [1])? as u64;
        }
        Ok(bytes)
    })?
    .is(CALLS)
}

fn open() -> Result<Done> {
    const CALLS: u64 = 15_000;
    timed(|| {
        for _ in 0..CALLS {
            File::open("/dev/null")?;
        }
        Ok(CALLS)
    })
}

/// Who a user is: a file that is opened, read and searched.
fn passwd() -> Result<Done> {
    const CALLS: u64 = 6_000;
    let expected = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let users = |text: &str| text.lines().filter(|line| line.contains(':')).count() as u64;
    let done = timed(|| {
        let mut found = 0;
        for _ in 0..CALLS {
            found += users(&fs::read_to_string("/etc/passwd").unwrap_or_default());
        }
        Ok(found)
    })?;
    ensure!(
        done.result == CALLS * users(&expected),
        "/etc/passwd has changed"
    );
    Ok(done)
}
