//! Going on where another process of the same checkpoint ended.

use super::ProcessCheckpointer;
use super::layout::Layout;
use crate::error::Result;
use crate::store::writer::Writer;

impl ProcessCheckpointer {
    /// Makes the next checkpoint an increment over one in the writer's store, from which the
    /// process was restored, say. All of its memory is read once more for that, and what is as it
    /// was there is not stored again: if it is another process, nothing but room is lost.
    ///
    /// # Errors
    ///
    /// There is no such checkpoint; it, one that it builds on, or a pack that it needs is damaged
    /// or missing; the lock on the store was lost, and another writer has it.
    pub fn build_on(&mut self, writer: &mut Writer, number: u64) -> Result<()> {
        writer.catch_up()?;
        writer.build_on(number)?;
        self.layout = Layout::new(self.pid());
        self.pending.clear();
        self.rechecked = None;
        Ok(())
    }
}
