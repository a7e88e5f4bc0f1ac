//! Programs in the virtual machine: the command line of `pagetrail vm`, and recording such a program.
//!
//! The machine itself is `pagetrail-vm`. A process that becomes a guest is the program from then on; so what is recorded runs
//! in a process of its own, which sends its rounds.

pub(crate) mod args;
pub(crate) mod record;
