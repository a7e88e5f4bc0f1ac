//! The rate of a guest's time stamp counter, which its kernel is given.
//!
//! A kernel that is not given it counts while a timer of the emulator's runs, for a few
//! milliseconds of its boot. On a busy machine the emulator does not run just then, and a kernel
//! that believes in a twentieth of the rate has clocks that run twenty times too fast, and
//! time-outs of a twentieth. (`tsc=reliable` makes it trust the counter, whatever it has found.) A
//! second measurement, a second later and by another timer (`tsc_refine_calibration_work` in the
//! kernel's arch/x86/kernel/tsc.c), is believed only if it differs by less than a hundredth.

use anyhow::{Result, bail};

#[cfg(target_arch = "x86_64")]
use super::sys::counter;

/// Where time passes by instructions, of a nanosecond each, the counter counts nanoseconds.
const COUNTED_KHZ: u64 = 1_000_000;

/// The kernel's parameter: `tsc_early_khz` takes the place of the first measurement. `counted`:
/// time passes by instructions. Otherwise an emulated counter is the host's own
/// (`cpu_get_host_ticks` in QEMU's include/qemu/timer.h), with an offset.
pub(super) fn parameter(counted: bool) -> Result<String> {
    let khz = match counted {
        true => COUNTED_KHZ,
        false => host_khz()?,
    };
    Ok(format!("tsc_early_khz={khz}"))
}

#[cfg(not(target_arch = "x86_64"))]
fn host_khz() -> Result<u64> {
    bail!("only x86-64 processors have a time stamp counter");
}

/// The rate of this machine's counter, against a clock that nobody adjusts.
#[cfg(target_arch = "x86_64")]
fn host_khz() -> Result<u64> {
    let first = Instant::now();
    std::thread::sleep(std::time::Duration::from_millis(50));
    let second = Instant::now();
    let (counts, nanoseconds) = (
        second.counter.saturating_sub(first.counter),
        second.nanoseconds.saturating_sub(first.nanoseconds),
    );
    let khz = u128::from(counts) * 1_000_000 / u128::from(nanoseconds.max(1));
    // The kernel takes a number of 32 bits.
    match u32::try_from(khz) {
        Ok(khz @ 1..) => Ok(khz.into()),
        _ => bail!("the time stamp counter advances by {counts} in {nanoseconds} ns"),
    }
}

/// Counter and clock at one moment.
#[cfg(target_arch = "x86_64")]
struct Instant {
    counter: u64,
    nanoseconds: u64,
}

#[cfg(target_arch = "x86_64")]
impl Instant {
    /// Of many readings, the one in whose midst this thread was interrupted the least.
    fn now() -> Self {
        let readings = (0..50).map(|_| {
            let before = raw_nanoseconds();
            let counter = counter::time_stamp();
            let after = raw_nanoseconds();
            let nanoseconds = before + (after - before) / 2;
            (
                after - before,
                Self {
                    counter,
                    nanoseconds,
                },
            )
        });
        let best = readings.min_by_key(|(took, _)| *took);
        best.map(|(_, reading)| reading)
            .expect("there are readings")
    }
}

#[cfg(target_arch = "x86_64")]
fn raw_nanoseconds() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicRaw);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn two_measurements_differ_by_less_than_a_thousandth() {
        let (one, other) = (host_khz().unwrap(), host_khz().unwrap());
        assert!(one.abs_diff(other) < one / 1000, "{one} {other}");
    }

    /// The longer one has more counts, so that the rate is of both clocks and not of one.
    #[test]
    fn the_rate_tells_how_far_the_counter_gets() {
        let khz = host_khz().unwrap();
        let first = Instant::now();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let second = Instant::now();
        let counts = second.counter - first.counter;
        let wanted = (second.nanoseconds - first.nanoseconds) * khz / 1_000_000;
        assert!(counts.abs_diff(wanted) < wanted / 500, "{counts} {wanted}");
    }

    #[test]
    fn a_counter_of_instructions_counts_nanoseconds() {
        assert_eq!(parameter(true).unwrap(), "tsc_early_khz=1000000");
    }
}
