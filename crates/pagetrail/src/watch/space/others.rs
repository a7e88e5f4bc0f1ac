//! Armed memory that another tracker has by now: the target has mapped it anew, and tracks it
//! itself, or has it tracked.
//!
//! Such memory may look in `/proc/PID/maps` as what was there, and to the technique as its own. The
//! kernel says whose it is when it is registered again, which costs almost a microsecond for each
//! mapping. So one call asks about many: it registers all from the first of them to memory that can
//! never be registered. It walks them in ascending order, fails in any case, and has changed
//! nothing then (`userfaultfd_register` in `fs/userfaultfd.c`): with `EBUSY` where somebody else
//! has one of them.

use super::Space;
use crate::error::Result;
use crate::page_set::{PageRange, PageSet, page_size};
use crate::region::Region;
use crate::round::Pending;
use crate::technique::OTHERS;

/// How it is checked whose the armed mappings of a target are.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Questions {
    /// Each begins with an armed mapping, and ends with the first page of memory that can never be
    /// registered.
    spans: Vec<PageRange>,
    /// What lies in no span is checked by itself.
    single: Vec<PageRange>,
}

/// What memory is to a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Armed,
    /// The kernel passes over it.
    Between,
    /// It can never be registered.
    End,
    /// The kernel may refuse it, or not.
    Unknown,
}

impl Questions {
    /// `parts`: the mappings in ascending order.
    fn new(parts: impl IntoIterator<Item = (PageRange, Part)>) -> Self {
        let (mut questions, mut open) = (Self::default(), Vec::<PageRange>::new());
        for (range, part) in parts {
            match part {
                Part::Armed => open.push(range),
                Part::Between => {}
                Part::Unknown => questions.single.append(&mut open),
                Part::End => {
                    let first = open.first().map(PageRange::start);
                    let end = range.start() + page_size();
                    let span = first.and_then(|start| PageRange::new(start, end));
                    questions.spans.extend(span);
                    open.clear();
                }
            }
        }
        questions.single.append(&mut open);
        questions
    }
}

impl Space {
    /// Gives up armed memory that another tracker has by now.
    pub(super) fn leave_others(&mut self, pending: &mut Pending) -> Result<()> {
        let changed = std::mem::take(&mut self.changed);
        // Ranges of its own the consumer does not map anew for another tracker.
        let asks = self.within.is_none();
        let questions = match self.questions.take() {
            Some(questions) if asks => questions,
            None if asks => self.ask(),
            _ => Questions::default(),
        };
        // Memory that is known to be others' is in no span, so that this is asked anew each time.
        let mut spans = questions.spans.iter();
        let mut has_others = spans.any(|span| self.tracker.may_be_others(*span));
        if !asks {
            let mut known = self.untracked.iter();
            has_others = known.any(|untracked| untracked.reason == OTHERS);
        }
        let mut suspects = questions.single.clone();
        if has_others || !changed.is_empty() {
            let armed = self.armed_mappings().into_iter().map(|armed| armed.range);
            let is_suspect = |range: &PageRange| {
                has_others
                    || changed.intersects(*range)
                    || questions.single.binary_search(range).is_ok()
            };
            suspects = armed.filter(is_suspect).collect();
        }
        self.questions = Some(questions);
        suspects.retain(|range| self.tracker.is_others(*range));
        for range in &suspects {
            self.tracker.forget(*range);
        }
        self.rearm_replaced(&suspects, pending)
    }

    fn ask(&self) -> Questions {
        let mut parts = Vec::with_capacity(self.regions.len());
        let armed = self.armed_mappings();
        let mut armed = armed.iter().map(|armed| armed.range).peekable();
        let untracked = self
            .untracked
            .iter()
            .map(|untracked| untracked.region.range);
        let untracked: PageSet = untracked.collect();
        for region in &self.regions {
            let rest = self.unarmed_part(region, &untracked);
            let first = parts.len();
            while let Some(range) = armed.next_if(|armed| armed.start() < region.range.end()) {
                parts.push((range, Part::Armed));
            }
            if parts[first..] != [(region.range, Part::Armed)] {
                parts.insert(first, (region.range, rest));
                parts.push((region.range, rest));
            }
        }
        Questions::new(parts)
    }

    /// What a mapping is, as far as it is not armed.
    fn unarmed_part(&self, region: &Region, untracked: &PageSet) -> Part {
        let range = region.range;
        if region.name.starts_with("[vvar") || self.read_only.covers(range) {
            Part::End
        } else if region.permissions.shared || !region.is_trackable() || untracked.intersects(range)
        {
            Part::Unknown
        } else {
            Part::Between
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(from: u64, to: u64) -> PageRange {
        let page = page_size();
        PageRange::new(from * page, to * page).unwrap()
    }

    #[test]
    fn a_span_ends_with_the_first_page_that_can_never_be_registered() {
        use Part::{Armed, Between, End, Unknown};
        let parts = [
            (pages(1, 3), End),
            (pages(3, 5), Armed),
            (pages(5, 6), Between),
            (pages(8, 9), Armed),
            (pages(9, 12), End),
            (pages(12, 13), Between),
            (pages(13, 14), Armed),
            (pages(14, 15), Unknown),
            (pages(15, 16), Armed),
            (pages(16, 17), End),
            (pages(17, 18), End),
            (pages(18, 19), Armed),
        ];
        let questions = Questions::new(parts);
        assert_eq!(questions.spans, [pages(3, 10), pages(15, 17)]);
        assert_eq!(questions.single, [pages(13, 14), pages(18, 19)]);
    }
}
