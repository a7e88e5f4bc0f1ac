//! Programs in the virtual machine: the command line of `pagetrail vm`, and how other subcommands
//! start such a program.
//!
//! The crate `pagetrail-vm` has the machine. A process that becomes a guest is the program from
//! then on. A program to be tracked therefore runs in its own process, which sends its rounds.

pub(crate) mod args;
pub(crate) mod guest;
