//! Getting hold of another process: checking that it may be watched ([`target_check`]), stopping
//! threads ([`stop`]), holding it still ([`hold`]), finding out what the kernel keeps for it
//! ([`kernel_state`]), running one system call in it ([`inject`], by
//! [`code`] of ours, where its [`filter`]s allow it), starting it ([`launch`]), and undoing the
//! stop so that the program cannot tell ([`restart`], [`interrupted`]).
//!
//! Promise 3 rules here: at no instruction may the death of the tracker leave the target in a state
//! that it does not get out of by itself.

mod agent;
mod code;
pub(crate) mod failure;
mod filter;
pub(crate) mod hold;
pub(crate) mod inject;
mod interrupted;
mod keeper;
pub(crate) mod kernel_state;
pub(crate) mod launch;
pub(crate) mod privilege;
pub(crate) mod restart;
pub(crate) mod stop;
pub(crate) mod target_check;
