//! [`Sampling`]: the set at intervals of the program's own time.

use core::fmt;
use core::time::Duration;

use crate::sys::sampling::{self, Timer};
use crate::{Error, Guest, Kinds, Range, Result};

/// The most ranges that are passed on at once.
const RANGES: usize = 64;

/// What a sample is to take, and who gets it.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    guest: Guest,
    range: Range,
    kinds: Kinds,
    sampled: fn(&[Range]),
}

impl Wanted {
    /// Takes a sample.
    pub(crate) fn take(self) {
        let mut ranges = [Range::default(); RANGES];
        let mut rest = self.range;
        while rest.start < rest.end {
            let Ok(taken) = self.guest.take(rest, self.kinds, &mut ranges) else {
                return;
            };
            if let Some(found) = ranges.get(..taken.ranges).filter(|found| !found.is_empty()) {
                (self.sampled)(found);
            }
            rest.start = taken.next;
        }
    }
}

/// Samples of a program's set ([`Guest::sample`]), until it is dropped: no sample is taken any more
/// then, and the signal does what it did before. It must not be dropped by the function that gets
/// the samples.
pub struct Sampling {
    _timer: Timer,
}

impl fmt::Debug for Sampling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sampling").finish_non_exhaustive()
    }
}

impl Guest {
    /// Takes pages as [`Self::take`] does each time that the program has used so much processor
    /// time (of all its threads, and of the machine for it), and passes them to `sampled`, at most
    /// 64 ranges at a time. `sampled` is called in a handler of `signal`, by one thread at a time,
    /// and not for a sample without pages.
    ///
    /// # Errors
    ///
    /// `EBUSY` while there is another [`Sampling`]; `EINVAL` for a range or a signal that is none,
    /// or no time.
    pub fn sample(
        &self,
        range: Range,
        kinds: Kinds,
        every: Duration,
        signal: i32,
        sampled: fn(&[Range]),
    ) -> Result<Sampling> {
        if range.start >= range.end || !(range.start | range.end).is_multiple_of(crate::PAGE) {
            return Err(Error::Refused(libc::EINVAL));
        }
        let wanted = Wanted {
            guest: *self,
            range,
            kinds,
            sampled,
        };
        let timer = sampling::start(every, signal, wanted).map_err(Error::Refused)?;
        Ok(Sampling { _timer: timer })
    }
}
