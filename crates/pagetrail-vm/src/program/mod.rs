//! Loads a program as `execve(2)` does: finds its file ([`find`]), reads its headers ([`elf`]),
//! maps it ([`load`]), and builds its first stack ([`stack`]).

pub(crate) mod auxiliary;
pub(crate) mod elf;
mod find;
mod load;
pub(crate) mod stack;

pub(crate) use find::{DEPTH_MAX, Found, LINE_BYTES, find, interpreter, name_interpreter};
pub(crate) use load::{is_loadable, load};
