//! In which order processes that were restored lazily needed their pages: kept beside the
//! checkpoints, so that the next time pages are there before they are needed.
//!
//! It is advice. Who has none, or cannot read it, restores as well.

use super::Store;
use super::image::Image;
use crate::error::{Error, Result};
use crate::format::touches::Touches;
use crate::format::wire::Malformed;
use crate::hash::Hash;
use crate::storage::{Name, Publish};
use pagetrail::PageRange;

/// How many of the checkpoints that one builds on are asked for an order, if it has none.
const ANCESTORS: usize = 32;

impl Image {
    /// In which order an earlier process of this checkpoint, or of one that it builds on, needed
    /// pages that it got as it touched them; `None` where nobody knows. Ranges may overlap, and
    /// need not be in the image.
    pub fn first_touches(&self) -> Option<Vec<PageRange>> {
        let lineage = self.lineage.iter().rev().take(ANCESTORS);
        lineage
            .filter_map(|&(number, id)| {
                let touches = self.packs.store().touches(number).ok()??;
                let page_size = self.map.page_size();
                let fits = touches.id == id && u64::from(touches.page_size) == page_size;
                fits.then_some(touches.order)
            })
            .next()
    }

    /// Keeps in the store in which order a process of this checkpoint needed its pages; tells
    /// whether it was kept: not while a writer is at work, and not if the checkpoint has gone.
    ///
    /// # Errors
    ///
    /// The storage fails.
    pub fn keep_first_touches(&self, order: &[PageRange]) -> Result<bool> {
        let store = self.packs.store();
        let Some(&(number, id)) = self.lineage.last() else {
            return Ok(false);
        };
        let failed = || Error::io(format!("cannot write to {}", store.storage().place()));
        let Some(_lock) = store.storage().lock().map_err(failed())? else {
            return Ok(false);
        };
        match store.manifest(number) {
            Ok(manifest) if manifest.id == id => {}
            _ => return Ok(false),
        }
        // An object store replaces what was read.
        let before = store.touches(number);
        let touches = Touches {
            id,
            page_size: self.manifest().page_size,
            order: order.to_vec(),
        };
        if before.is_ok_and(|before| before.as_ref() == Some(&touches)) {
            return Ok(true);
        }
        let mut draft = store.storage().create().map_err(failed())?;
        draft.write(&touches.encode()).map_err(failed())?;
        let published = draft.publish(Name::Touches(number), Publish::Replacing);
        published.map_err(failed()).map(|()| true)
    }
}

impl Store {
    /// The order of a checkpoint's touches, if there is one.
    pub(super) fn touches(&self, number: u64) -> Result<Option<Touches>> {
        let name = Name::Touches(number);
        let Some(bytes) = self.read(name)? else {
            return Ok(None);
        };
        let touches = Touches::decode(&bytes);
        touches
            .map(Some)
            .map_err(|Malformed(reason)| self.damaged(name, reason))
    }
}

/// The numbers and ids of the checkpoints of a chain.
pub(super) type Lineage = Vec<(u64, Hash)>;
