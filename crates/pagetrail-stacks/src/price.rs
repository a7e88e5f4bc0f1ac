//! [`Price`]: what a sample costs the thread that faults, measured on this machine by faults of
//! this process.

use rustix::time::{ClockId, clock_gettime};

use crate::error::{Error, Result};
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
}

impl Price {
    /// What a sample costs that has so many addresses.
    pub(crate) fn of(&self, frames: usize) -> f64 {
        self.sample_ns + self.frame_ns * frames.saturating_sub(1) as f64
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
        let inherit = flag::INHERIT | flag::INHERIT_THREAD;
        let own = Settings {
            flags: settings.flags & !inherit,
            period: 1,
            ..*settings
        };
        let event = event::open(&own, 0, None).map_err(Error::kernel("perf_event_open"))?;
        let mut ring = Ring::new(event, RING_BYTES).map_err(Error::kernel("mmap"))?;
        let mut bytes = Vec::new();
        let mut drain = || {
            bytes.clear();
            ring.read(&mut bytes);
        };
        let short = fastest(&pages, faults, &shallow, &mut drain)?;
        let long = fastest(&pages, faults, &deep, &mut drain)?;
        let frame_ns = match settings.stack_bytes {
            0 => AT_WORK * ((long - short) / (DEEP - 1) as f64).max(0.0),
            _ => 0.0,
        };
        Ok(Self {
            sample_ns: AT_WORK * (short - plain).max(LEAST_NS),
            frame_ns,
        })
    }
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
        assert!(price.of(50) >= price.of(1));
    }
}
