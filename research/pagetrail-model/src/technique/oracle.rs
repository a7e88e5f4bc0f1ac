//! The oracle: it sees every write at no cost, and the other techniques are measured against it.

use std::collections::BTreeSet;

use super::{Technique, TechniqueKind};
use crate::Error;
use crate::host::Host;
use crate::machine::{Gva, PAGE_BYTES};
use crate::write_set::WriteSet;

#[derive(Debug, Default)]
pub(super) struct Oracle {
    written: BTreeSet<Gva>,
    /// Saves most look-ups: programs write the same page many times in a row.
    last: Option<Gva>,
}

impl Oracle {
    pub(super) fn new() -> Self {
        Self::default()
    }
}

impl Technique for Oracle {
    fn kind(&self) -> TechniqueKind {
        TechniqueKind::Oracle
    }

    fn observe_write(&mut self, gva: Gva) {
        if self.last != Some(gva.page()) {
            self.last = Some(gva.page());
            self.written.insert(gva.page());
        }
    }

    fn collect(&mut self, _: &mut Host) -> Result<WriteSet, Error> {
        self.last = None;
        Ok(WriteSet::new(PAGE_BYTES, std::mem::take(&mut self.written)))
    }

    fn disarm(&mut self, _: &mut Host) -> Result<(), Error> {
        Ok(())
    }
}
