//! Calls that close descriptors, or put others in their place. The program can read how many there
//! have been (`docs/guest-calls.md`), and so keep what it knows of a descriptor without a call.
//!
//! Each counts twice, when it begins and when it has ended: in between nothing is certain.

use crate::guest::Guest;
use crate::sys::call::Call;
use crate::sys::program_memory::read_word;

/// What a call does to the descriptors that threads of this memory have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// None is closed or replaced.
    No,
    /// Some may be, until the call has ended.
    UntilItEnds,
    /// From now on there is a table of descriptors beside, so that a number says nothing.
    ForGood,
}

/// A change that has been counted when it began.
#[must_use]
pub(super) struct Counted(Change);

/// Counts a call that is about to be made, if it is such a call.
pub(super) fn begin(guest: &Guest, call: &Call) -> Counted {
    // The set may start meanwhile: then an end is counted that has no beginning, and no number is
    // trusted any more.
    let change = match guest.keeps_own() {
        true => change(call),
        false => Change::No,
    };
    if change != Change::No {
        guest.memory().count_descriptor_call(false);
    }
    Counted(change)
}

impl Counted {
    /// Counts that the call has ended.
    pub(super) fn end(self, guest: &Guest) {
        if self.0 == Change::UntilItEnds {
            guest.memory().count_descriptor_call(true);
        }
    }
}

fn change(call: &Call) -> Change {
    let [first, ..] = call.arguments;
    let of_flags = |flags: u64| {
        let has = |flag: libc::c_int| flags & flag as u64 != 0;
        match () {
            // A copy of this memory has its own counts.
            () if has(libc::CLONE_FILES) || !has(libc::CLONE_VM) => Change::No,
            () if has(libc::CLONE_VFORK) => Change::UntilItEnds,
            () => Change::ForGood,
        }
    };
    match call.number as i64 {
        libc::SYS_close | libc::SYS_close_range | libc::SYS_dup2 | libc::SYS_dup3 => {
            Change::UntilItEnds
        }
        libc::SYS_vfork => Change::UntilItEnds,
        libc::SYS_clone => of_flags(first),
        // The flags are the first word of its arguments.
        libc::SYS_clone3 => read_word(first).map_or(Change::No, of_flags),
        libc::SYS_unshare if first & libc::CLONE_FILES as u64 != 0 => Change::ForGood,
        _ => Change::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(number: i64, first: i32) -> Change {
        let mut arguments = [0; 6];
        arguments[0] = first as u64;
        change(&Call {
            number: number as u64,
            arguments,
        })
    }

    #[test]
    fn calls_that_close_descriptors_count_and_others_do_not() {
        use libc::{CLONE_FILES, CLONE_VFORK, CLONE_VM};
        for number in [
            libc::SYS_close,
            libc::SYS_close_range,
            libc::SYS_dup2,
            libc::SYS_dup3,
        ] {
            assert_eq!(of(number, 3), Change::UntilItEnds, "{number}");
        }
        for number in [
            libc::SYS_openat,
            libc::SYS_dup,
            libc::SYS_read,
            libc::SYS_fork,
        ] {
            assert_eq!(of(number, 3), Change::No, "{number}");
        }
        assert_eq!(of(libc::SYS_clone, CLONE_VM | CLONE_FILES), Change::No);
        assert_eq!(of(libc::SYS_clone, libc::SIGCHLD), Change::No);
        assert_eq!(
            of(libc::SYS_clone, CLONE_VM | CLONE_VFORK),
            Change::UntilItEnds
        );
        assert_eq!(of(libc::SYS_clone, CLONE_VM), Change::ForGood);
        assert_eq!(of(libc::SYS_unshare, CLONE_FILES), Change::ForGood);
        let flags = [(CLONE_VM | CLONE_VFORK) as u64];
        let mut arguments = [0; 6];
        arguments[0] = flags.as_ptr() as u64;
        let clone3 = Call {
            number: libc::SYS_clone3 as u64,
            arguments,
        };
        assert_eq!(change(&clone3), Change::UntilItEnds);
    }
}
