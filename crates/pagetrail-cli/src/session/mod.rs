//! How a tracking session starts and ends: common to `record`, `top`, `tier` and the
//! checkpoint commands.
//!
//! [`find`] finds processes by name, [`start`] turns flags into a source of rounds, [`guest`]
//! starts a program in the virtual machine, in a process of its own, which sends its rounds,
//! [`subject::Subject`] is what `record` tracks, [`subpage`] starts a program on the sub-page
//! allocator, [`pace`] has the flags that decide when rounds are due,
//! [`signals::Signals`] collects the signals that ask to stop, and [`waiting::Waiting`] shows that
//! a long step runs. [`crate::recording`] processes the rounds.

pub(crate) mod find;
pub(crate) mod guest;
pub(crate) mod pace;
pub(crate) mod signals;
pub(crate) mod start;
pub(crate) mod subject;
pub(crate) mod subpage;
pub(crate) mod waiting;
