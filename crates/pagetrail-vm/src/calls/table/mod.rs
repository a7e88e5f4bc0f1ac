//! The table of system calls: one row per call, with how the machine performs it, what the kernel
//! writes and reads for it, and what else the machine must know. Data only.
//!
//! A call without a row ([`UNLISTED`]) is forwarded, and may have written anywhere. The rows are in
//! one file per area of the kernel's interface; [`row`] finds them by number.

mod descriptors;
mod files;
mod memory;
mod processes;
mod system;

use super::reads::Input;
use super::written::Output;
use super::{Next, own};
use crate::error::Result;
use crate::guest::Guest;
use crate::memory::Memory;
use crate::sys::call::Call;

/// How the machine performs a call.
#[derive(Clone, Copy)]
pub(crate) enum Policy {
    /// The kernel performs the call as the program made it, unless a signal is pending.
    Forward,
    /// The call fails with `ENOSYS`, as on a kernel that lacks it.
    Absent,
    /// The machine changes the program's mappings, then flushes the TLB.
    Memory(fn(&mut Memory, [u64; 6]) -> Result<i64>),
    /// The machine computes the result, mostly around the kernel's own call.
    Perform(fn(&mut Guest, &Call) -> Result<i64>),
    /// The machine decides how the thread continues: processes, threads, and `sigreturn(2)`.
    Control(fn(&mut Guest, &Call) -> Result<Next>),
}

/// What the kernel writes to the program's memory for a call.
#[derive(Clone, Copy)]
pub(super) enum Writes {
    /// The call may have written anywhere.
    Unknown,
    Known(&'static [Output]),
    /// An argument selects what is written; `None` is [`Self::Unknown`].
    ByOption(fn(&[u64; 6]) -> Option<&'static [Output]>),
}

/// What the kernel reads of the program's memory for a call.
#[derive(Clone, Copy)]
pub(super) enum Reads {
    Known(&'static [Input]),
    /// An argument selects what is read.
    ByOption(fn(&[u64; 6]) -> &'static [Input]),
}

/// Where a call has the path of a file whose symbolic link it follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Path {
    /// The argument with the path.
    pub(super) argument: usize,
    /// The argument with the directory that a relative path starts at.
    pub(super) directory: Option<usize>,
    /// Whether the call opens the file; otherwise it only names it.
    pub(super) opens: bool,
    /// The argument and the flag that make the call not follow the link.
    unless: Option<(usize, i32)>,
}

impl Path {
    /// The call opens the file at this argument.
    const fn opens(argument: usize) -> Self {
        Self {
            argument,
            directory: None,
            opens: true,
            unless: None,
        }
    }

    /// The call names the file at this argument, and does not open it.
    const fn names(argument: usize) -> Self {
        Self {
            opens: false,
            ..Self::opens(argument)
        }
    }

    /// A relative path starts at the directory of this argument.
    const fn below(self, directory: usize) -> Self {
        Self {
            directory: Some(directory),
            ..self
        }
    }

    /// The call follows no link if this argument has this flag.
    const fn unless(self, argument: usize, flag: i32) -> Self {
        Self {
            unless: Some((argument, flag)),
            ..self
        }
    }
}

/// Where a call has the signal mask that is in force while it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitMask {
    None,
    /// The argument points to the mask.
    At(usize),
    /// The argument points to a pointer to the mask (`pselect(2)`).
    Indirect(usize),
}

/// Whether a call that a signal interrupted is made again after the handler.
#[derive(Clone, Copy)]
enum Restart {
    /// The handler's `SA_RESTART` decides.
    ByHandler,
    /// The call ends with `EINTR` whatever the handler's flags are (`signal(7)`).
    Never,
    /// The call ends with `EINTR` where this holds for its arguments.
    NeverIf(fn(&[u64; 6]) -> bool),
}

/// A system call: how the machine performs it, and what the kernel does for it.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    number: libc::c_long,
    pub(super) policy: Policy,
    writes: Writes,
    reads: Reads,
    path: Option<Path>,
    pub(crate) wait_mask: WaitMask,
    restart: Restart,
    /// The socket option with the time limit after which the call fails (`SO_RCVTIMEO`).
    pub(crate) socket_timeout: Option<libc::c_int>,
}

/// A call that the table does not list.
const UNLISTED: Row = Row::forward(-1);

impl Row {
    const fn new(number: libc::c_long, policy: Policy) -> Self {
        Self {
            number,
            policy,
            writes: Writes::Unknown,
            reads: Reads::Known(&[]),
            path: None,
            wait_mask: WaitMask::None,
            restart: Restart::ByHandler,
            socket_timeout: None,
        }
    }

    const fn forward(number: libc::c_long) -> Self {
        Self::new(number, Policy::Forward)
    }

    const fn absent(number: libc::c_long) -> Self {
        Self::new(number, Policy::Absent)
    }

    const fn memory(
        number: libc::c_long,
        perform: fn(&mut Memory, [u64; 6]) -> Result<i64>,
    ) -> Self {
        Self::new(number, Policy::Memory(perform))
    }

    const fn perform(number: libc::c_long, perform: fn(&mut Guest, &Call) -> Result<i64>) -> Self {
        Self::new(number, Policy::Perform(perform))
    }

    const fn control(number: libc::c_long, perform: fn(&mut Guest, &Call) -> Result<Next>) -> Self {
        Self::new(number, Policy::Control(perform))
    }

    const fn writes(self, outputs: &'static [Output]) -> Self {
        Self {
            writes: Writes::Known(outputs),
            ..self
        }
    }

    const fn writes_by(self, outputs: fn(&[u64; 6]) -> Option<&'static [Output]>) -> Self {
        Self {
            writes: Writes::ByOption(outputs),
            ..self
        }
    }

    const fn reads(self, inputs: &'static [Input]) -> Self {
        Self {
            reads: Reads::Known(inputs),
            ..self
        }
    }

    const fn reads_by(self, inputs: fn(&[u64; 6]) -> &'static [Input]) -> Self {
        Self {
            reads: Reads::ByOption(inputs),
            ..self
        }
    }

    const fn path(self, path: Path) -> Self {
        Self {
            path: Some(path),
            ..self
        }
    }

    const fn wait_mask(self, wait_mask: WaitMask) -> Self {
        Self { wait_mask, ..self }
    }

    const fn never_restarts(self) -> Self {
        Self {
            restart: Restart::Never,
            ..self
        }
    }

    const fn never_restarts_if(self, condition: fn(&[u64; 6]) -> bool) -> Self {
        Self {
            restart: Restart::NeverIf(condition),
            ..self
        }
    }

    const fn socket_timeout(self, option: libc::c_int) -> Self {
        Self {
            socket_timeout: Some(option),
            ..self
        }
    }

    /// The outputs of the call; `None` where they are not known.
    pub(super) fn outputs(&self, arguments: &[u64; 6]) -> Option<&'static [Output]> {
        match self.writes {
            Writes::Unknown => None,
            Writes::Known(outputs) => Some(outputs),
            Writes::ByOption(outputs) => outputs(arguments),
        }
    }

    /// The inputs of the call.
    pub(super) fn inputs(&self, arguments: &[u64; 6]) -> &'static [Input] {
        match self.reads {
            Reads::Known(inputs) => inputs,
            Reads::ByOption(inputs) => inputs(arguments),
        }
    }

    /// Whether the kernel neither writes to the program's memory for the call, nor reads it.
    pub(super) fn leaves_memory_alone(&self) -> bool {
        matches!(
            (self.writes, self.reads),
            (Writes::Known([]), Reads::Known([]))
        )
    }

    /// Where the call has the path of a file, if it follows a link with these arguments.
    pub(super) fn followed_path(&self, arguments: &[u64; 6]) -> Option<Path> {
        self.path.filter(|path| {
            path.unless
                .is_none_or(|(argument, flag)| arguments[argument] & flag as u64 == 0)
        })
    }

    /// Whether the call ends with `EINTR` whatever a handler's flags are.
    pub(crate) fn never_restarts_with(&self, arguments: &[u64; 6]) -> bool {
        match self.restart {
            Restart::ByHandler => false,
            Restart::Never => true,
            Restart::NeverIf(condition) => condition(arguments),
        }
    }
}

/// A call that the kernel performs, and that writes nothing to the program's memory.
const fn writes_nothing(number: libc::c_long) -> Row {
    Row::forward(number).writes(&[])
}

/// The length of the index: more than the largest number in the table.
const NUMBERS: usize = 512;

const AREAS: [&[Row]; 5] = [
    descriptors::CALLS,
    files::CALLS,
    memory::CALLS,
    processes::CALLS,
    system::CALLS,
];

/// The rows by number. A number with two rows does not compile.
static BY_NUMBER: [Option<&Row>; NUMBERS] = {
    let mut rows: [Option<&Row>; NUMBERS] = [None; NUMBERS];
    let mut area = 0;
    while area < AREAS.len() {
        let mut n = 0;
        while n < AREAS[area].len() {
            let row = &AREAS[area][n];
            let number = row.number as usize;
            assert!(rows[number].is_none(), "a system call has two rows");
            rows[number] = Some(row);
            n += 1;
        }
        area += 1;
    }
    rows
};

/// The machine's own calls.
static OWN: Row = Row::new(-1, own::POLICY).writes(&[]);

/// The row of a call.
pub(crate) fn row(number: u64) -> &'static Row {
    if own::is_own(number) {
        return &OWN;
    }
    let listed = usize::try_from(number).ok();
    let listed = listed.and_then(|number| *BY_NUMBER.get(number)?);
    listed.unwrap_or(&UNLISTED)
}
