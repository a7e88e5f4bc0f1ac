//! Functions on watches.

use super::{overhead, shared, sized};
use crate::failure::{Failure, Status, guard, invalid, null};
use crate::handle::{Round, Watch};
use crate::types::{
    self, Options, PAGETRAIL_OPTION_AT_SAFEPOINT, PAGETRAIL_OPTION_KEEP_HUGE_PAGES,
    PAGETRAIL_OPTION_LAST_ROUND, PAGETRAIL_OPTION_NO_COMPARE, PAGETRAIL_OPTION_REPORT_AGAIN,
    PAGETRAIL_TARGET_COMMAND, PAGETRAIL_TARGET_OWN, PAGETRAIL_TARGET_PROCESS,
    PAGETRAIL_TARGET_RANGES, PAGETRAIL_TECHNIQUE_AUTO, Progress, WatchInfo,
};
use pagetrail::{
    AtExit, Choice, CollectAt, HugePages, PageRange, ReportPages, State, Target, UntrackedPolicy,
};
use std::ffi::{OsStr, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::time::Duration;

/// Starts to watch. Writes from its return on are noticed.
///
/// `options`: what to watch and how; read during the call. `size`: sizeof(pagetrail_options) as the
/// caller knows it. `watch`: gets the watch, to be freed by pagetrail_watch_free(); NULL on
/// failure.
///
/// A program to be started (PAGETRAIL_TARGET_COMMAND) has the caller's environment, working
/// directory, standard input, output and error, and whatever other descriptors are not
/// close-on-exec; no signal is blocked in it, and SIGPIPE is not ignored. It is traced by ptrace(2)
/// until the watch is armed, and with PAGETRAIL_OPTION_LAST_ROUND to its end. It is a child of the
/// caller's, but the watch waits for it: do not wait for every child by waitpid(-1) meanwhile.
/// Follow it by pagetrail_watch_follow().
///
/// PAGETRAIL_STATUS_UNAVAILABLE, WRONG_TARGET: not this technique, not here. BAD_RANGE: not whole
/// pages, or not mapped writable. NO_SUCH_PROCESS, CANNOT_ATTACH, PERMISSION: not that process.
/// SYSTEM, also for a program that is not there or cannot be executed. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_watch_start(
    options: *const Options,
    size: usize,
    watch: Option<&mut MaybeUninit<*mut Watch>>,
) -> Status {
    guard(|| {
        let watch = watch.ok_or_else(|| null("watch is a null pointer"))?;
        watch.write(std::ptr::null_mut());
        let options = sized::read(options, size)?;
        let started = builder(&options)?.start()?;
        watch.write(Box::into_raw(Box::new(Watch::new(started))));
        Ok(())
    })
}

fn builder(options: &Options) -> Result<pagetrail::WatchBuilder, Failure> {
    const FLAGS: u32 = PAGETRAIL_OPTION_AT_SAFEPOINT
        | PAGETRAIL_OPTION_KEEP_HUGE_PAGES
        | PAGETRAIL_OPTION_NO_COMPARE
        | PAGETRAIL_OPTION_LAST_ROUND
        | PAGETRAIL_OPTION_REPORT_AGAIN;
    let is_set = |flag| options.flags & flag != 0;
    if options.flags & !FLAGS != 0 {
        return Err(invalid("an option is not known to this version"));
    }
    if options.block_pages > pagetrail::BLOCK_PAGES_MAX {
        return Err(invalid("block_pages is more than 512"));
    }
    let target = match options.target {
        PAGETRAIL_TARGET_OWN => Target::own(),
        PAGETRAIL_TARGET_RANGES => {
            let ranges = sized::ranges(options.ranges, options.range_count)?;
            if ranges.is_empty() {
                return Err(invalid("there are no ranges to watch"));
            }
            let ranges = ranges
                .iter()
                .map(|range| PageRange::new(range.start, range.end))
                .collect::<Option<Vec<_>>>()
                .ok_or_else(|| invalid("a range ends before it starts, or is empty"))?;
            Target::ranges(ranges)
        }
        PAGETRAIL_TARGET_PROCESS => Target::process(options.pid)?,
        PAGETRAIL_TARGET_COMMAND => {
            let words = sized::strings(options.argv)?;
            let (program, arguments) = words
                .split_first()
                .ok_or_else(|| invalid("argv has no program"))?;
            let word = |word: &std::ffi::CStr| OsStr::from_bytes(word.to_bytes()).to_owned();
            let mut command = Command::new(word(program));
            command.args(arguments.iter().copied().map(word));
            Target::command(command)
        }
        _ => return Err(invalid("target is none of PAGETRAIL_TARGET_*")),
    };
    let choice = match options.technique {
        PAGETRAIL_TECHNIQUE_AUTO => Choice::Auto,
        number => types::technique(number)
            .ok_or_else(|| invalid("no technique has this number"))?
            .into(),
    };
    let track = types::track(options.track)
        .ok_or_else(|| invalid("notice is none of PAGETRAIL_TRACK_*"))?;
    let huge_pages = if is_set(PAGETRAIL_OPTION_KEEP_HUGE_PAGES) {
        HugePages::Keep
    } else {
        HugePages::Split
    };
    let builder = pagetrail::Watch::builder()
        .target(target)
        .technique(choice)
        .huge_pages(huge_pages)
        .block_pages(options.block_pages.max(1))
        .collect_at(match is_set(PAGETRAIL_OPTION_AT_SAFEPOINT) {
            true => CollectAt::Safepoint,
            false => CollectAt::AnyTime,
        })
        .untracked(match is_set(PAGETRAIL_OPTION_NO_COMPARE) {
            true => UntrackedPolicy::Report,
            false => UntrackedPolicy::Compare,
        })
        .at_exit(match is_set(PAGETRAIL_OPTION_LAST_ROUND) {
            true => AtExit::Hold,
            false => AtExit::Run,
        })
        .report_pages(match is_set(PAGETRAIL_OPTION_REPORT_AGAIN) {
            true => ReportPages::Twice,
            false => ReportPages::Once,
        });
    let builder = match track {
        Some(track) => builder.track(track),
        None => builder,
    };
    overhead::budgeted(builder, options)
}

/// Ends all tracking and frees the watch, an open round included. The target goes on at
/// full speed.
///
/// `watch`: must not be used afterwards. NULL does nothing.
///
/// PAGETRAIL_STATUS_BUSY: another thread is inside a call on it; then it is not freed. One thread,
/// once. A forked child may free its copy.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_watch_free(watch: *mut Watch) -> Status {
    guard(|| {
        if watch.is_null() {
            return Ok(());
        }
        // SAFETY: made by `pagetrail_watch_start`, and the caller frees it once.
        let idle = unsafe { (*watch).is_idle() };
        if !idle {
            return Err(Failure::Misuse(
                Status::Busy,
                "another call on the same watch is under way",
            ));
        }
        // SAFETY: the watch was made from a box by this library, and the caller does not use it any
        // more.
        drop(unsafe { Box::from_raw(watch) });
        Ok(())
    })
}

/// Gets facts about a watch.
///
/// `info`: gets them. `size`: sizeof(pagetrail_watch_info) as the caller knows it.
///
/// PAGETRAIL_STATUS_BUSY. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_watch_get_info(
    watch: Option<&Watch>,
    info: *mut WatchInfo,
    size: usize,
) -> Status {
    guard(|| {
        given(watch)?.with(|state| {
            let watch = &state.watch;
            let facts = WatchInfo {
                technique: types::number(watch.technique()),
                pid: watch.pid(),
                attach_stopped_ns: types::nanoseconds(watch.attach_stopped()),
                reason: types::text(watch.reason()),
            };
            sized::write(info, size, &facts)
        })
    })
}

/// Makes room for rounds of up to `ranges` ranges, so that collecting one needs no new memory: 48
/// bytes each. Half the number of tracked pages is always enough.
///
/// It holds on ranges of the own process by the techniques pagemap-scan and mprotect, while the
/// ranges keep their mappings, their pages were touched before, and each round is committed.
/// Otherwise a round may take memory from the kernel by mmap(2).
///
/// PAGETRAIL_STATUS_INVALID_ARGUMENT: more than 2^40. BUSY. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_watch_reserve(watch: *mut Watch, ranges: usize) -> Status {
    guard(|| {
        if ranges > 1 << 40 {
            return Err(invalid("room for more ranges than memory can have pages"));
        }
        given(shared(watch))?.with(|state| {
            state.watch.reserve(ranges);
            Ok(())
        })
    })
}

/// Makes sure that a system call can write to a range of this process's memory until the next
/// collect: with the technique mprotect such writes fail with EFAULT otherwise. With the others it
/// does nothing.
///
/// `address`, `bytes`: the buffer that the system call will write to; whole pages are not needed.
///
/// PAGETRAIL_STATUS_INVALID_ARGUMENT: the range wraps around. BUSY. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_watch_prepare_kernel_write(
    watch: *mut Watch,
    address: *const c_void,
    bytes: usize,
) -> Status {
    guard(|| {
        let start = address as u64;
        let end = start
            .checked_add(bytes as u64)
            .ok_or_else(|| invalid("the range wraps around"))?;
        given(shared(watch))?.with(|state| {
            if let Some(range) = PageRange::new(start, end) {
                let range = range.align_outwards(pagetrail::page_size());
                state.watch.prepare_for_kernel_write(range);
            }
            Ok(())
        })
    })
}

/// Waits until the target has ended, or for a time. The own process never ends; a program
/// started with PAGETRAIL_OPTION_LAST_ROUND does not before pagetrail_watch_release_exit(), so
/// follow it by pagetrail_watch_follow() instead.
///
/// `timeout_ms`: how long, in milliseconds; 0 only looks. `ended`: gets whether it has ended.
///
/// PAGETRAIL_STATUS_BUSY; calls of other threads on the same watch get it while this one waits. Any
/// thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_watch_wait(
    watch: *mut Watch,
    timeout_ms: u32,
    ended: Option<&mut MaybeUninit<bool>>,
) -> Status {
    guard(|| {
        let ended = ended.ok_or_else(|| null("ended is a null pointer"))?;
        given(shared(watch))?.with(|state| {
            let found = state
                .watch
                .wait(Duration::from_millis(u64::from(timeout_ms)));
            ended.write(matches!(found, State::Ended(_)));
            Ok(())
        })
    })
}

/// Waits until a program that the watch has started comes to its end, any other process has ended,
/// or a time is over.
///
/// With PAGETRAIL_OPTION_LAST_ROUND all that a program wrote can be seen: collect once more when
/// its state is PAGETRAIL_STATE_EXITING, and let it go; the next call returns how it ended. A
/// program that is killed, by SIGKILL say, may end without.
///
/// `timeout_ms`: how long, in milliseconds; 0 only looks. `progress`: gets how far it is. `size`:
/// sizeof(pagetrail_progress) as the caller knows it.
///
/// PAGETRAIL_STATUS_BUSY; calls of other threads on the same watch get it while this one waits. Any
/// thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_watch_follow(
    watch: *mut Watch,
    timeout_ms: u32,
    progress: *mut Progress,
    size: usize,
) -> Status {
    guard(|| {
        if progress.is_null() {
            return Err(null("progress is a null pointer"));
        }
        given(shared(watch))?.with(|state| {
            let timeout = Duration::from_millis(u64::from(timeout_ms));
            let found = types::progress(state.watch.wait(timeout));
            sized::write(progress, size, &found)
        })
    })
}

/// Lets a program end that is held at its end (PAGETRAIL_STATE_EXITING); otherwise does nothing.
/// Freeing the watch does so, too.
///
/// PAGETRAIL_STATUS_BUSY. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_watch_release_exit(watch: *mut Watch) -> Status {
    guard(|| {
        given(shared(watch))?.with(|state| {
            state.watch.release_exit();
            Ok(())
        })
    })
}

/// Takes what was written since the last committed round, and arms it again. A write that completes
/// before the return is in this round or in the next.
///
/// It calls no function of the malloc family and takes no lock that another thread could hold
/// outside of this library, so it may be called while all other threads stand still, provided that
/// none of them was stopped inside a call of this library. (On other processes it reads directories
/// of /proc, for which the C library allocates.)
///
/// `round`: gets the round, which the watch owns; NULL on failure. End it by
/// pagetrail_round_commit() or pagetrail_round_give_back().
///
/// PAGETRAIL_STATUS_ROUND_OPEN: the round before was not ended. GONE: the target has
/// ended. SYSTEM; after any failure the call may be repeated, and nothing is lost. BUSY,
/// FORKED. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_watch_collect(
    watch: *mut Watch,
    round: Option<&mut MaybeUninit<*mut Round>>,
) -> Status {
    guard(|| {
        let round = round.ok_or_else(|| null("round is a null pointer"))?;
        round.write(std::ptr::null_mut());
        let watch = given(shared(watch))?;
        watch.collect()?;
        round.write(std::ptr::from_ref(watch).cast_mut().cast());
        Ok(())
    })
}

fn given(watch: Option<&Watch>) -> Result<&Watch, Failure> {
    watch.ok_or_else(|| null("watch is a null pointer"))
}
