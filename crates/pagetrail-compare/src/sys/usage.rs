//! What the kernel has counted for this process and its children (`getrusage(2)`).

use std::mem::MaybeUninit;

use crate::sample::Counts;

/// Counts at an instant.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    own_ns: f64,
    children: Counts,
}

impl Usage {
    /// Counts as they are now. Children count when they have been waited for.
    pub fn now() -> Self {
        let (own, children) = (of(libc::RUSAGE_SELF), of(libc::RUSAGE_CHILDREN));
        Self {
            own_ns: nanoseconds(own.ru_utime) + nanoseconds(own.ru_stime),
            children: Counts {
                user_ns: nanoseconds(children.ru_utime),
                system_ns: nanoseconds(children.ru_stime),
                minor_faults: children.ru_minflt as f64,
                major_faults: children.ru_majflt as f64,
                switches: (children.ru_nvcsw + children.ru_nivcsw) as f64,
                ..Counts::default()
            },
        }
    }

    /// What has been counted since; this process's time is the tracker's.
    pub fn since(&self) -> Counts {
        let now = Self::now();
        let (after, before) = (now.children, self.children);
        Counts {
            user_ns: after.user_ns - before.user_ns,
            system_ns: after.system_ns - before.system_ns,
            minor_faults: after.minor_faults - before.minor_faults,
            major_faults: after.major_faults - before.major_faults,
            switches: after.switches - before.switches,
            tracker_ns: now.own_ns - self.own_ns,
            ..Counts::default()
        }
    }
}

fn of(who: libc::c_int) -> libc::rusage {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel writes one `rusage` to this address, which has room for it. A failure,
    // which no valid `who` meets, leaves it as it is.
    unsafe { libc::getrusage(who, usage.as_mut_ptr()) };
    // SAFETY: all of it is numbers, for which zeros are valid.
    unsafe { usage.assume_init() }
}

fn nanoseconds(time: libc::timeval) -> f64 {
    time.tv_sec as f64 * 1e9 + time.tv_usec as f64 * 1e3
}
