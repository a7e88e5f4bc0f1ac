//! Functions on what tracking may cost, and costs.

use super::round::given as of_round;
use super::{shared, sized};
use crate::failure::{Failure, Status, guard, invalid, null};
use crate::handle::{Round, Watch};
use crate::types::{self, Options, Overhead};
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

/// Sets what the options say of a budget; the library checks the numbers.
pub(super) fn budgeted(
    builder: pagetrail::WatchBuilder,
    options: &Options,
) -> Result<pagetrail::WatchBuilder, Failure> {
    let (least, most) = (options.interval_min_ns, options.interval_max_ns);
    if options.max_overhead == 0.0 {
        return match (least, most) {
            (0, 0) => Ok(builder),
            _ => Err(invalid(
                "there are bounds of the interval, but no max_overhead",
            )),
        };
    }
    let builder = builder.max_overhead(options.max_overhead);
    Ok(match (least, most) {
        (0, 0) => builder,
        _ => builder.intervals(Duration::from_nanos(least)..=Duration::from_nanos(most)),
    })
}

/// How long it is until the next collect is due, so that tracking costs no more than
/// pagetrail_options.max_overhead allows. It becomes longer while the target fills new memory, or
/// takes more faults than before, so ask again when it is over. The caller collects when it likes;
/// what earlier collects cost above the budget is saved later.
///
/// `ns`: gets the time in nanoseconds; 0 if it is over, and where max_overhead was not set.
///
/// PAGETRAIL_STATUS_BUSY. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_watch_until_collect(
    watch: *mut Watch,
    ns: Option<&mut MaybeUninit<u64>>,
) -> Status {
    guard(|| {
        let ns = ns.ok_or_else(|| null("ns is a null pointer"))?;
        let watch = shared(watch).ok_or_else(|| null("watch is a null pointer"))?;
        watch.with(|state| {
            let due = state.watch.next_collect();
            let left = due.map(|due| due.saturating_duration_since(Instant::now()));
            ns.write(types::nanoseconds(left.unwrap_or_default()));
            Ok(())
        })
    })
}

/// Gets what a round cost the target, by estimate: all zeros where pagetrail_options.max_overhead
/// was not set. The estimate leans to the dear side.
///
/// `overhead`: gets it. `size`: sizeof(pagetrail_overhead) as the caller knows it.
///
/// PAGETRAIL_STATUS_NO_ROUND: it was ended. BUSY. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_round_get_overhead(
    round: Option<&Round>,
    overhead: *mut Overhead,
    size: usize,
) -> Status {
    guard(|| {
        of_round(round)?.round(|round| {
            let facts = round.overhead().map(|cost| Overhead {
                allowed: cost.allowed,
                share: cost.share,
                faults: cost.faults,
                fault_ns: types::nanoseconds(cost.fault),
                stopped_ns: types::nanoseconds(cost.stopped),
                reported_per_written: cost.reported_per_written,
                next_ns: types::nanoseconds(cost.next),
                is_kept: u32::from(cost.is_kept),
                reserved: 0,
            });
            sized::write(overhead, size, &facts.unwrap_or_default())
        })
    })
}
