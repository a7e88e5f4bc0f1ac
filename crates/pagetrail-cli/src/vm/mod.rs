//! Programs in the virtual machine: the command line of `pagetrail vm`, and recordings of such a
//! program.
//!
//! The crate `pagetrail-vm` has the machine. A process that becomes a guest is the program from
//! then on. A program to be recorded therefore runs in its own process, which sends its rounds.

pub(crate) mod args;
pub(crate) mod record;
