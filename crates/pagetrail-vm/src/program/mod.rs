//! A program on its way into memory, as `execve(2)` puts one there: which file it is ([`find`]), what is in it ([`elf`]), its
//! mappings ([`load`]), its first stack ([`stack`]).

pub(crate) mod auxiliary;
pub(crate) mod elf;
mod find;
mod load;
pub(crate) mod stack;

pub(crate) use find::{Found, find};
pub(crate) use load::load;
