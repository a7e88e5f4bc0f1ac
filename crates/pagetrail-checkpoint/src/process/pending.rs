//! [`Pending`]: what the next checkpoint is to have, until one that has it is published.

use super::staging::Parts;
use pagetrail::PageSet;

/// What a round, and a look at the mappings, have found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Pages to be copied, again or for the first time.
    pub(crate) pages: PageSet,
    /// Pages of which it is not known what of them was written.
    pub(crate) whole: PageSet,
    /// Of the other pages, what was written.
    pub(crate) bytes: PageSet,
    /// Where other mappings have come.
    pub(crate) remapped: PageSet,
}

impl Found {
    /// Adds what was found later.
    pub(crate) fn add(&mut self, later: Self) {
        self.pages = self.pages.difference(&later.remapped).union(&later.pages);
        self.whole.union_with(&later.whole);
        self.bytes.union_with(&later.bytes);
        self.remapped.union_with(&later.remapped);
    }
}

/// What was found since the last publication.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    pages: PageSet,
    /// Pending pages that the store gets whole; of the others, what may have changed since the last
    /// checkpoint.
    whole: PageSet,
    bytes: PageSet,
    remapped: PageSet,
    /// What was found for the last checkpoint, and for the next, if everything is to be read once
    /// more.
    again: Option<[PageSet; 2]>,
}

impl Pending {
    /// Begins with nothing. With `report_again`, what was found for a checkpoint is pending for the
    /// next as well.
    pub(crate) fn new(report_again: bool) -> Self {
        Self {
            again: report_again.then(Default::default),
            ..Self::default()
        }
    }

    /// Adds what was found.
    pub(crate) fn add(&mut self, found: &Found) {
        self.pages = self.pages.difference(&found.remapped).union(&found.pages);
        if let Some([last, next]) = &mut self.again {
            *last = last.difference(&found.remapped);
            *next = next.difference(&found.remapped).union(&found.pages);
        }
        self.whole.union_with(&found.whole);
        self.bytes.union_with(&found.bytes);
        self.remapped.union_with(&found.remapped);
    }

    /// Adds what was found for the last checkpoint, where that is wanted.
    pub(crate) fn add_last(&mut self) {
        if let Some([last, _]) = &self.again {
            self.pages.union_with(last);
            self.whole.union_with(last);
        }
    }

    /// Forgets pages outside `addresses`.
    pub(crate) fn retain(&mut self, addresses: &PageSet) {
        self.pages = self.pages.intersection(addresses);
    }

    /// Pages that the store is to get.
    pub(crate) fn pages(&self) -> &PageSet {
        &self.pages
    }

    /// Addresses at which the store has to forget what it knew.
    pub(crate) fn remapped(&self) -> &PageSet {
        &self.remapped
    }

    /// The pages of which it is known what may have changed.
    pub(crate) fn parts(&self) -> Parts {
        Parts {
            pages: self.pages.difference(&self.whole),
            changed: self.bytes.clone(),
        }
    }

    /// Whether there are such pages.
    pub(crate) fn has_parts(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Forgets everything but what is to be read once more: the next checkpoint has all pages.
    pub(crate) fn clear(&mut self) {
        *self = Self {
            again: self.again.take(),
            ..Self::default()
        };
    }

    /// A checkpoint that has everything is published.
    pub(crate) fn settle(&mut self) {
        self.clear();
        if let Some([last, next]) = &mut self.again {
            *last = std::mem::take(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetrail::PageRange;

    fn pages(from: u64, to: u64) -> PageSet {
        PageSet::from_iter(PageRange::new(from << 12, to << 12))
    }

    #[test]
    fn what_was_found_is_pending_until_a_checkpoint_has_it() {
        let mut pending = Pending::new(false);
        let found = Found {
            pages: pages(1, 5),
            whole: pages(1, 3),
            bytes: pages(3, 4),
            ..Found::default()
        };
        pending.add(&found);
        // Where another mapping has come, what was found before is void.
        pending.add(&Found {
            remapped: pages(4, 5),
            ..Found::default()
        });
        assert_eq!(pending.pages(), &pages(1, 4));
        assert_eq!(pending.remapped(), &pages(4, 5));
        assert!(pending.has_parts());
        assert_eq!(pending.parts().pages, pages(3, 4));
        pending.settle();
        pending.add_last();
        assert!(pending.pages().is_empty() && pending.remapped().is_empty());
        assert!(!pending.has_parts());
    }

    #[test]
    fn what_is_to_be_read_once_more_is_pending_twice() {
        let mut pending = Pending::new(true);
        pending.add(&Found {
            pages: pages(1, 5),
            ..Found::default()
        });
        pending.settle();
        assert!(pending.pages().is_empty());
        pending.add(&Found {
            remapped: pages(4, 5),
            ..Found::default()
        });
        // An attempt that fails begins anew with the same.
        pending.add_last();
        pending.add_last();
        assert_eq!(pending.pages(), &pages(1, 4));
        pending.settle();
        pending.add_last();
        assert!(pending.pages().is_empty());
    }
}
