//! [`NodeMover`]: fast and slow memory are NUMA nodes, and pages move between them by
//! `move_pages(2)`.
//!
//! Several threads move a batch each, because one call moves its pages one after the other. When
//! all fast nodes are full, the mover stops, and skips the next plans: one, then two, then four.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pagetrail::{Mapped, PageRange, page_size};
use rustix::io::Errno;

use super::pace::Pace;
use super::{Mover, Outcome, Reason, Runs};
use crate::error::{Error, Result};
use crate::policy::plan::Unit;
use crate::policy::table::{Place, Run};
use crate::sys::move_pages::{self, State};

/// Number of pages whose node one call returns.
const QUERY_PAGES: usize = 1 << 14;
/// Largest number of plans skipped after the fast node was full.
const BACK_OFF_MAX: u32 = 32;

/// The calls of `move_pages(2)`, replaced in tests.
pub trait Kernel: Send + Sync {
    /// Writes for each address the node of its page, or the negative number of an error.
    ///
    /// # Errors
    ///
    /// The call fails as a whole.
    fn query(&self, pid: u32, addresses: &[u64], states: &mut [State]) -> Result<(), Errno>;

    /// Moves pages to a node, and writes the node of each afterwards. The entry of a page that the
    /// kernel does not reach is left as it was.
    ///
    /// # Errors
    ///
    /// The call fails, possibly after it has moved some pages.
    fn to_node(
        &self,
        pid: u32,
        addresses: &[u64],
        node: u32,
        states: &mut [State],
    ) -> Result<(), Errno>;
}

/// The calls of the running kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

impl Kernel for System {
    fn query(&self, pid: u32, addresses: &[u64], states: &mut [State]) -> Result<(), Errno> {
        move_pages::query(pid, addresses, states)
    }

    fn to_node(
        &self,
        pid: u32,
        addresses: &[u64],
        node: u32,
        states: &mut [State],
    ) -> Result<(), Errno> {
        move_pages::to_node(pid, addresses, node as i32, states)
    }
}

/// Settings of a [`NodeMover`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeOptions {
    /// The nodes that fast memory is on: the first is filled first.
    pub fast: Vec<u32>,
    /// The nodes that slow memory is on, likewise. Pages on any other node count as slow.
    pub slow: Vec<u32>,
    /// How many threads move at a time.
    pub threads: usize,
    /// Number of pages, or huge pages, that one call moves.
    pub batch: usize,
    /// Limit on the bytes moved per second.
    pub bytes_per_second: Option<u64>,
}

impl Default for NodeOptions {
    /// From node 1 to node 0, by four threads as in the paper.
    fn default() -> Self {
        Self {
            fast: vec![0],
            slow: vec![1],
            threads: 4,
            batch: 512,
            bytes_per_second: None,
        }
    }
}

/// Moves the pages of one process between two nodes.
pub struct NodeMover<K = System> {
    pid: u32,
    options: NodeOptions,
    kernel: K,
    pace: Pace,
    /// Number of plans still to be skipped.
    pause: u32,
    /// Number of plans to skip the next time.
    back_off: u32,
}

impl NodeMover {
    /// A mover for a process.
    pub fn new(pid: u32, options: NodeOptions) -> Self {
        Self::with_kernel(pid, options, System)
    }
}

impl<K: Kernel> NodeMover<K> {
    /// Makes it with another kernel.
    pub fn with_kernel(pid: u32, options: NodeOptions, kernel: K) -> Self {
        Self {
            pid,
            pace: Pace::new(options.bytes_per_second),
            options,
            kernel,
            pause: 0,
            back_off: 1,
        }
    }

    /// Moves to the first node, and what finds no room there to the next.
    fn to_nodes(&self, units: &[Unit], nodes: &[u32], timeout: Duration) -> Vec<Option<Reason>> {
        let began = Instant::now();
        let mut reasons = vec![Some(Reason::NotTried); units.len()];
        let mut left: Vec<usize> = (0..units.len()).collect();
        for node in nodes {
            let rest: Vec<Unit> = left.iter().map(|index| units[*index]).collect();
            let timeout = timeout.saturating_sub(began.elapsed());
            for (index, reason) in left.iter().zip(self.in_batches(&rest, *node, timeout)) {
                reasons[*index] = reason;
            }
            // What was not tried because another page found no room is tried on the next node.
            let is_full = left
                .iter()
                .any(|index| reasons[*index] == Some(Reason::NoRoom));
            left.retain(|index| matches!(reasons[*index], Some(Reason::NoRoom | Reason::NotTried)));
            if !is_full || left.is_empty() {
                break;
            }
        }
        reasons
    }

    /// Moves in threads, batch by batch, until all is done, time is over, or there is no room.
    fn in_batches(&self, units: &[Unit], node: u32, timeout: Duration) -> Vec<Option<Reason>> {
        let batches: Vec<&[Unit]> = units.chunks(self.options.batch.max(1)).collect();
        let deadline = Instant::now() + timeout;
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let done = Mutex::new(vec![Vec::new(); batches.len()]);
        let work = || {
            while !stop.load(Ordering::Relaxed) {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(batch) = batches.get(index) else {
                    return;
                };
                let bytes = batch.iter().map(|unit| unit.bytes).sum();
                let Some(wait) = self.pace.wait_for(bytes, Instant::now(), deadline) else {
                    return;
                };
                thread::sleep(wait);
                let states = self.move_batch(batch, node);
                if states
                    .iter()
                    .any(|state| *state == Some(Reason::NoRoom) || *state == Some(Reason::Ended))
                {
                    stop.store(true, Ordering::Relaxed);
                }
                done.lock().unwrap_or_else(|broken| broken.into_inner())[index] = states;
            }
        };
        let threads = self.options.threads.clamp(1, batches.len().max(1));
        thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(work);
            }
            work();
        });
        let done = done
            .into_inner()
            .unwrap_or_else(|broken| broken.into_inner());
        let mut reasons = Vec::with_capacity(units.len());
        for (batch, states) in batches.iter().zip(done) {
            match states.is_empty() {
                true => reasons.extend(batch.iter().map(|_| Some(Reason::NotTried))),
                false => reasons.extend(states),
            }
        }
        reasons
    }

    /// The reason for each page, or huge page, that was not moved.
    fn move_batch(&self, batch: &[Unit], node: u32) -> Vec<Option<Reason>> {
        // No node, and no error either: what the kernel does not get to.
        const UNTOUCHED: State = State::MIN;
        let addresses: Vec<u64> = batch.iter().map(|unit| unit.address).collect();
        let mut states = vec![UNTOUCHED; batch.len()];
        let outcome = self.kernel.to_node(self.pid, &addresses, node, &mut states);
        let otherwise = match outcome {
            Ok(()) => Reason::Busy,
            // Of the call as a whole: the target's cpuset does not allow the node (`do_pages_move`
            // in `mm/migrate.c`). Of a page it means that others map it.
            Err(Errno::ACCESS) => Reason::Refused,
            Err(errno) => reason(errno),
        };
        states
            .iter()
            .map(|state| match *state {
                UNTOUCHED => Some(otherwise),
                state if state == node as State => None,
                // It is where it was: the kernel could not take it off its list.
                state if state >= 0 => Some(Reason::Busy),
                state => Some(reason(Errno::from_raw_os_error(-state))),
            })
            .collect()
    }
}

fn reason(errno: Errno) -> Reason {
    match errno {
        Errno::NOMEM => Reason::NoRoom,
        Errno::BUSY | Errno::AGAIN => Reason::Busy,
        Errno::ACCESS => Reason::Shared,
        Errno::NOENT | Errno::FAULT => Reason::Absent,
        Errno::SRCH => Reason::Ended,
        _ => Reason::Refused,
    }
}

impl<K: Kernel> Mover for NodeMover<K> {
    fn places(&mut self, mapped: &Mapped) -> Result<Vec<Run>> {
        let page = page_size();
        let mut runs = Runs::default();
        let (mut addresses, mut ranges) = (Vec::new(), Vec::new());
        let mut ask = |addresses: &mut Vec<u64>, ranges: &mut Vec<(PageRange, bool)>| {
            let mut states = vec![-libc::ENOENT; addresses.len()];
            self.kernel
                .query(self.pid, addresses, &mut states)
                .map_err(|errno| Error::Move {
                    pid: self.pid,
                    source: errno.into(),
                })?;
            for ((range, huge), state) in ranges.drain(..).zip(states) {
                match u32::try_from(state) {
                    Ok(node) if self.options.fast.contains(&node) => {
                        runs.push(range, Place::Fast, huge)
                    }
                    Ok(_) => runs.push(range, Place::Slow, huge),
                    Err(_) => {}
                }
            }
            addresses.clear();
            Ok::<_, Error>(())
        };
        for part in parts(mapped, page) {
            addresses.push(part.0.start());
            ranges.push(part);
            if addresses.len() == QUERY_PAGES {
                ask(&mut addresses, &mut ranges)?;
            }
        }
        ask(&mut addresses, &mut ranges)?;
        Ok(runs.finish())
    }

    fn carry_out(&mut self, units: &[Unit], to: Place, timeout: Duration) -> Outcome {
        let began = Instant::now();
        let nodes = match to {
            Place::Fast => &self.options.fast,
            _ => &self.options.slow,
        };
        let mut outcome = Outcome::default();
        if units.is_empty() {
            return outcome;
        }
        if to == Place::Fast && self.pause > 0 {
            self.pause -= 1;
            outcome.failed = units.iter().map(|unit| (*unit, Reason::NotTried)).collect();
            return outcome;
        }
        let reasons = self.to_nodes(units, nodes, timeout);
        for (unit, reason) in units.iter().zip(reasons) {
            match reason {
                None => outcome.moved.push(*unit),
                Some(reason) => outcome.failed.push((*unit, reason)),
            }
        }
        if to == Place::Fast {
            let full = outcome
                .failed
                .iter()
                .any(|(_, reason)| *reason == Reason::NoRoom);
            if full {
                self.pause = self.back_off;
                self.back_off = (self.back_off * 2).min(BACK_OFF_MAX);
            } else {
                self.back_off = 1;
            }
        }
        outcome.took = began.elapsed();
        outcome
    }
}

/// The pages whose node is queried: each small page, and the first of each huge page.
fn parts(mapped: &Mapped, page: u64) -> impl Iterator<Item = (PageRange, bool)> + '_ {
    let huge_bytes = page * 512;
    let small = mapped.present.difference(&mapped.huge);
    let mut parts: Vec<(PageRange, bool, u64)> = small
        .ranges()
        .iter()
        .map(|range| (*range, false, page))
        .collect();
    for range in mapped.huge.ranges() {
        let whole = range.start() % huge_bytes == 0 && range.bytes() % huge_bytes == 0;
        parts.push((*range, whole, if whole { huge_bytes } else { page }));
    }
    parts.sort_unstable();
    parts.into_iter().flat_map(|(range, huge, step)| {
        let starts = (range.start()..range.end()).step_by(step as usize);
        starts.filter_map(move |start| Some((PageRange::new(start, start + step)?, huge)))
    })
}
