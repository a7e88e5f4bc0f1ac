//! [`Together`]: the points at which the checkpoint of one process waits for those of others, so
//! that all are of one instant.

use super::common::Common;
use super::state::memory::Motion;
use crate::error::Result;
use pagetrail::LetGo;

/// What a checkpoint of a process waits for. An error ends it: the process goes on, and the store
/// is as it was.
pub(crate) trait Together {
    /// Whether there are no others, so that an instant may be had once more.
    fn is_alone(&self) -> bool {
        false
    }

    /// The process could be held now. Returns, true if others took their time, when all could.
    fn ready(&self) -> Result<bool>;

    /// The process is held, and may be let go by `let_go`, which ends the checkpoint. Returns when
    /// all are.
    fn held(&self, let_go: Option<LetGo>) -> Result<()>;

    /// All of the process has been copied. Returns when all of the others has, too.
    fn copied(&self) -> Result<()>;

    /// What the others have read of memory that they share with the process: while they run, or at
    /// rest, between [`Self::held`] and [`Self::copied`].
    fn common(&self, _motion: Motion) -> Option<&Common> {
        None
    }
}

/// A checkpoint that waits for no others.
pub(crate) struct Alone;

impl Together for Alone {
    fn is_alone(&self) -> bool {
        true
    }

    fn ready(&self) -> Result<bool> {
        Ok(false)
    }

    fn held(&self, _let_go: Option<LetGo>) -> Result<()> {
        Ok(())
    }

    fn copied(&self) -> Result<()> {
        Ok(())
    }
}
