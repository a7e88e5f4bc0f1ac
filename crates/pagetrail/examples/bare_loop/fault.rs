//! A write fault that user space handles (the technique `userfaultfd`), beside a handler that
//! waits, reads and releases, and does nothing else.
#![allow(unsafe_code, reason = "it measures bare system calls")]

use crate::kernel::{Memory, Outcome, ioctl};
use linux_raw_sys::general::{
    self as raw, uffd_msg, uffdio_api, uffdio_range, uffdio_register, uffdio_writeprotect,
};
use pagetrail::{Target, Technique, Watch, page_size};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::mm::MapFlags;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PAGES: u64 = 4096;
/// `UFFDIO_WRITEPROTECT_MODE_WP` in uapi/linux/userfaultfd.h.
const WRITEPROTECT_MODE_WP: u64 = 1;
/// As many messages as the library reads at once.
const AT_ONCE: usize = 16;
/// How often the handler looks whether it is over.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What the first write to a page takes, in microseconds: medians.
pub(crate) struct Faults {
    pub(crate) library_us: f64,
    pub(crate) bare_us: f64,
}

/// Measures both in turns.
pub(crate) fn measure(runs: usize) -> Outcome<Faults> {
    let memory = Memory::new(PAGES * page_size(), MapFlags::PRIVATE)?;
    memory.write(1);
    let (mut library, mut bare) = (Vec::new(), Vec::new());
    for run in 0..runs {
        for library_now in [run % 2 == 0, run % 2 == 1] {
            match library_now {
                true => library.push(by_library(&memory)?),
                false => bare.push(by_bare_calls(&memory)?),
            }
        }
    }
    let us = |times: &[Duration]| crate::median(times).as_nanos() as f64 / 1e3 / PAGES as f64;
    Ok(Faults {
        library_us: us(&library),
        bare_us: us(&bare),
    })
}

fn by_library(memory: &Memory) -> Outcome<Duration> {
    let watch = Watch::builder().target(Target::ranges([memory.range]));
    let mut watch = watch.technique(Technique::Userfaultfd).start()?;
    let time = memory.write(1);
    let pages = watch.collect()?.dirty().page_count();
    if pages != PAGES {
        return Err(format!("{pages} pages instead of {PAGES}").into());
    }
    Ok(time)
}

fn by_bare_calls(memory: &Memory) -> Outcome<Duration> {
    let range = || uffdio_range {
        start: memory.range.start(),
        len: memory.range.bytes(),
    };
    let flags = raw::O_CLOEXEC | raw::O_NONBLOCK | raw::UFFD_USER_MODE_ONLY;
    // SAFETY: the handler below releases each page that a write waits for, until the end.
    let uffd =
        unsafe { rustix::mm::userfaultfd(rustix::mm::UserfaultfdFlags::from_bits_retain(flags))? };
    let mut api = uffdio_api {
        api: raw::UFFD_API.into(),
        features: raw::UFFD_FEATURE_PAGEFAULT_FLAG_WP.into(),
        ioctls: 0,
    };
    ioctl(&uffd, linux_raw_sys::ioctl::UFFDIO_API, &mut api)?;
    let mut register = uffdio_register {
        range: range(),
        mode: raw::UFFDIO_REGISTER_MODE_WP.into(),
        ioctls: 0,
    };
    ioctl(&uffd, linux_raw_sys::ioctl::UFFDIO_REGISTER, &mut register)?;
    let mut protect = uffdio_writeprotect {
        range: range(),
        mode: WRITEPROTECT_MODE_WP,
    };
    ioctl(
        &uffd,
        linux_raw_sys::ioctl::UFFDIO_WRITEPROTECT,
        &mut protect,
    )?;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let handler = scope.spawn(|| handle(&uffd, &is_over));
        let time = memory.write(1);
        is_over.store(true, Ordering::Relaxed);
        match handler.join() {
            Ok(PAGES) => Ok(time),
            Ok(pages) => Err(format!("{pages} faults instead of {PAGES}").into()),
            Err(_) => Err("the handler failed".into()),
        }
    })
}

/// Releases pages until it is over; returns how many.
fn handle(uffd: &OwnedFd, is_over: &AtomicBool) -> u64 {
    let mut handled = 0;
    let every = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: LOOK_EVERY.as_nanos() as _,
    };
    while !is_over.load(Ordering::Relaxed) {
        let mut fds = [PollFd::new(uffd, PollFlags::IN)];
        let _ = poll(&mut fds, Some(&every));
        // SAFETY: a message of zeros is one; the kernel writes whole ones.
        let mut messages: [uffd_msg; AT_ONCE] = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes at most as many bytes as the array has.
        let read = unsafe {
            let bytes = std::mem::size_of_val(&messages);
            libc::read(uffd.as_raw_fd(), messages.as_mut_ptr().cast(), bytes)
        };
        if read < 0 && std::io::Error::last_os_error().kind() == ErrorKind::WouldBlock {
            continue;
        }
        for message in &messages[..read as usize / size_of::<uffd_msg>()] {
            // SAFETY: nothing but page faults was asked for.
            let address = unsafe { message.arg.pagefault.address } & !(page_size() - 1);
            let mut release = uffdio_writeprotect {
                range: uffdio_range {
                    start: address,
                    len: page_size(),
                },
                mode: 0,
            };
            let _ = ioctl(
                uffd,
                linux_raw_sys::ioctl::UFFDIO_WRITEPROTECT,
                &mut release,
            );
            handled += 1;
        }
    }
    handled
}
