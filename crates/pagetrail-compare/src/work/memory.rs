//! The suite `memory`: what page tables are busy with, after Aim9's `page_test`, `brk_test`,
//! `exec_test`, `fork_test` and `shell_rtns`, and the study's own MemoryMotion.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Done, Work, programs, timed};
use crate::sys;
use crate::sys::child::Child;
use crate::sys::heap_end::HeapEnd;
use crate::sys::mapping::{Mapping, peek};

pub(crate) const ALL: &[Work] = &[
    Work::new("faults", faults),
    Work::new("brk", brk),
    Work::new("page", page),
    Work::new("mmap", mmap),
    Work {
        needs: Some("true"),
        ..Work::new("exec", exec)
    },
    Work::new("fork", fork),
    Work {
        needs: Some("sh"),
        ..Work::new("shell", shell)
    },
    Work::new("motion", motion),
];

const PAGE: usize = 4096;

/// Writes to each page; gives how many it has found empty beside that byte.
fn touch(memory: &mut [u8]) -> u64 {
    let pages = memory.chunks_mut(PAGE);
    pages.map(|page| u64::from(sys::write_first(page))).sum()
}

/// The first touch of each page.
fn faults() -> Result<Done> {
    const PAGES: usize = 16_384;
    const TIMES: u64 = 2;
    timed(|| {
        let mut found = 0;
        for _ in 0..TIMES {
            found += touch(Mapping::private(PAGES * PAGE)?.bytes_mut());
        }
        Ok(found)
    })?
    .is(TIMES * PAGES as u64)
}

/// The data segment grows and shrinks, untouched.
fn brk() -> Result<Done> {
    const TIMES: u64 = 25_000;
    let mut end = HeapEnd::take()?;
    timed(|| {
        for _ in 0..TIMES {
            end.swing(16 * PAGE, false)?;
        }
        Ok(TIMES)
    })
}

/// The data segment grows, is touched, and shrinks.
fn page() -> Result<Done> {
    const TIMES: u64 = 1_500;
    let mut end = HeapEnd::take()?;
    timed(|| {
        let mut found = 0;
        for _ in 0..TIMES {
            found += end.swing(16 * PAGE, true)?;
        }
        Ok(found)
    })?
    .is(16 * TIMES)
}

/// A file is mapped, read, and unmapped.
fn mmap() -> Result<Done> {
    const TIMES: u64 = 8_000;
    let directory = super::disk::Files::new()?;
    let path = directory.path().join("mapped");
    File::create(&path)?.write_all(&[7; 4 * PAGE])?;
    let file = File::open(&path)?;
    timed(|| {
        let mut sum = 0;
        for _ in 0..TIMES {
            sum += u64::from(peek(file.as_fd(), 4 * PAGE)?);
        }
        Ok(sum)
    })?
    .is(7 * TIMES)
}

/// Another program is started and waited for.
fn exec() -> Result<Done> {
    const TIMES: u64 = 40;
    let program = programs::find("true").context("there is no program true")?;
    timed(|| {
        for _ in 0..TIMES {
            let status = Command::new(&program).status()?;
            ensure!(status.success(), "true ended so: {status}");
        }
        Ok(TIMES)
    })
}

/// Children that write to some of their parent's memory.
fn fork() -> Result<Done> {
    const TIMES: u64 = 40;
    const PAGES: usize = 4_096;
    let mut memory = Mapping::private(PAGES * PAGE)?;
    touch(memory.bytes_mut());
    let done = timed(|| {
        let mut codes = 0;
        for _ in 0..TIMES {
            let child = Child::start(|| {
                let part = &mut memory.bytes_mut()[..64 * PAGE];
                part.chunks_mut(PAGE).for_each(|page| page[0] = 2);
                part[0] + 5
            })?;
            codes += u64::from(child.wait()?);
        }
        Ok(codes)
    })?;
    ensure!(
        memory
            .bytes_mut()
            .iter()
            .step_by(PAGE)
            .all(|byte| *byte == 1),
        "a child has written to its parent's memory"
    );
    done.is(7 * TIMES)
}

/// Shells that compute something.
fn shell() -> Result<Done> {
    const TIMES: u64 = 25;
    let program = programs::find("sh").context("there is no program sh")?;
    timed(|| {
        let mut sum = 0;
        for _ in 0..TIMES {
            let mut command = Command::new(&program);
            let output = programs::output(command.args(["-c", "echo $((6 * 7))"]), "")?;
            sum += output.trim().parse::<u64>()?;
        }
        Ok(sum)
    })?
    .is(42 * TIMES)
}

/// Processes that allocate much memory, write to it, and free it, one after the other.
fn motion() -> Result<Done> {
    const PROCESSES: u64 = 6;
    const PAGES: usize = 4_096;
    timed(|| {
        let mut codes = 0;
        for _ in 0..PROCESSES {
            let child = Child::start(|| match Mapping::private(PAGES * PAGE) {
                Ok(mut memory) => u8::from(touch(memory.bytes_mut()) == PAGES as u64),
                Err(_) => 0,
            })?;
            codes += u64::from(child.wait()?);
        }
        Ok(codes)
    })?
    .is(PROCESSES)
}
