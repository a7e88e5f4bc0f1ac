//! [`Price`]: what a sample costs the thread that faults, measured on this machine by faults of
//! this process.

use std::hint::black_box;

use rustix::time::{ClockId, clock_gettime};

use crate::error::{Error, Result};
use crate::stack_copy::BYTES_MAX;
use crate::sys::event::{self, Settings, flag};
use crate::sys::faults::{Frames, Pages};
use crate::sys::ring::Ring;

/// Faults of one measurement.
const FAULTS: usize = 256;
/// Faults of one measurement if a sample has a copy of the stack; they fit into the least ring.
const FAULTS_WITH_STACK: usize = 48;
/// Measurements, of which the fastest counts: others were interrupted.
const ATTEMPTS: usize = 8;
const DEEP: usize = 100;
/// The shorter of two copies of the stack that are compared.
const COPY_BYTES: u32 = 1024;
const RING_BYTES: usize = 512 << 10;
/// A program at work pays so much more than these faults, whose caches nothing else uses: two to
/// three times, by its own processor time with and without samples.
const AT_WORK: f64 = 2.5;
/// No sample costs less, whatever was measured.
const LEAST_NS: f64 = 100.0;

/// What a sample costs, in nanoseconds of processor time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Price {
    /// A sample with a chain of one address.
    pub(crate) sample_ns: f64,
    /// Each further address.
    pub(crate) frame_ns: f64,
    /// Each byte of the copy of the stack.
    pub(crate) byte_ns: f64,
}

impl Price {
    /// What a sample costs that has so many addresses, or such a copy of the stack.
    pub(crate) fn of(&self, frames: usize, stack_bytes: u32) -> f64 {
        self.sample_ns
            + self.frame_ns * frames.saturating_sub(1) as f64
            + self.byte_ns * f64::from(stack_bytes)
    }

    /// Measures samples of this kind.
    pub(crate) fn measure(settings: &Settings) -> Result<Self> {
        let faults = match settings.stack_bytes {
            0 => FAULTS,
            _ => FAULTS_WITH_STACK,
        };
        let pages = Pages::new(faults).map_err(Error::kernel("mmap"))?;
        let (shallow, deep) = (Frames::new(1), Frames::new(DEEP));
        let plain = fastest(&pages, faults, &shallow, || {})?;
        let sampled = |stack_bytes, frames| sampled(settings, stack_bytes, &pages, faults, frames);
        let at_work = |ns: f64| AT_WORK * ns.max(0.0);
        if settings.stack_bytes == 0 {
            let (short, long) = (sampled(0, &shallow)?, sampled(0, &deep)?);
            return Ok(Self {
                sample_ns: at_work((short - plain).max(LEAST_NS)),
                frame_ns: at_work((long - short) / (DEEP - 1) as f64),
                byte_ns: 0.0,
            });
        }
        let short = sampled(COPY_BYTES, &shallow)?;
        let long = sampled(settings.stack_bytes, &shallow)?;
        let more = f64::from(settings.stack_bytes.saturating_sub(COPY_BYTES).max(1));
        let byte_ns = ((long - short) / more).max(0.0);
        let rest_ns = short - plain - byte_ns * f64::from(COPY_BYTES);
        Ok(Self {
            sample_ns: at_work(rest_ns.max(LEAST_NS)),
            frame_ns: 0.0,
            byte_ns: at_work(byte_ns),
        })
    }
}

/// Time of a fault that is sampled, in nanoseconds.
fn sampled(
    settings: &Settings,
    stack_bytes: u32,
    pages: &Pages,
    faults: usize,
    frames: &Frames,
) -> Result<f64> {
    let own = Settings {
        flags: settings.flags & !(flag::INHERIT | flag::INHERIT_THREAD),
        period: 1,
        stack_bytes,
        ..*settings
    };
    let event = event::open(&own, 0, None).map_err(Error::kernel("perf_event_open"))?;
    let mut ring = Ring::new(event, RING_BYTES).map_err(Error::kernel("mmap"))?;
    let mut bytes = Vec::new();
    on_a_deep_stack(|| {
        fastest(pages, faults, frames, || {
            bytes.clear();
            ring.read(&mut bytes);
        })
    })
}

/// Calls `measure` with as much stack in use as a sample copies: of a shorter stack less is copied.
#[inline(never)]
fn on_a_deep_stack<T>(measure: impl FnOnce() -> T) -> T {
    let stack = black_box([1u8; BYTES_MAX as usize]);
    let measured = measure();
    black_box(&stack);
    measured
}

/// Time of a fault, in nanoseconds.
fn fastest(pages: &Pages, faults: usize, frames: &Frames, mut after: impl FnMut()) -> Result<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..ATTEMPTS {
        pages.discard().map_err(Error::kernel("madvise"))?;
        // Processor time: on a busy machine every measurement may be interrupted by others.
        let begun = processor_ns();
        pages.write(frames);
        least = least.min((processor_ns() - begun) as f64 / faults as f64);
        after();
    }
    Ok(least)
}

/// Processor time of this thread.
fn processor_ns() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::event::{
        Counted, SAMPLE_ADDR, SAMPLE_CALLCHAIN, SAMPLE_IP, SAMPLE_TID, SAMPLE_TIME,
    };

    #[test]
    fn a_sample_costs_something_and_a_deep_one_more() {
        let settings = Settings {
            counted: Counted::MinorFaults,
            flags: flag::INHERIT | flag::EXCLUDE_KERNEL | flag::EXCLUDE_CALLCHAIN_KERNEL,
            sample_type: SAMPLE_IP | SAMPLE_TID | SAMPLE_TIME | SAMPLE_ADDR | SAMPLE_CALLCHAIN,
            period: 1,
            registers: 0,
            stack_bytes: 0,
            wakeup_bytes: 0,
        };
        let price = match Price::measure(&settings) {
            Ok(price) => price,
            Err(error) => return pagetrail_skips::not_here(error),
        };
        assert!((LEAST_NS..1e6).contains(&price.sample_ns), "{price:?}");
        assert!(price.frame_ns < 10_000.0, "{price:?}");
        assert!(price.of(50, 0) >= price.of(1, 0));
    }
}
