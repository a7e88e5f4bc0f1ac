//! The kinds of target on which the suite runs.

use crate::actor::Actor;
use pagetrail::{PageRange, Target};

/// A kind of target.
pub(crate) struct Subject {
    /// The name in rows and output.
    pub(crate) name: &'static str,
    /// Whether mappings that appear later belong to the target.
    pub(crate) whole: bool,
    /// Whether the target is this process.
    pub(crate) own: bool,
    /// Whether the watch starts the program.
    pub(crate) launched: bool,
}

pub(crate) const SUBJECTS: &[Subject] = &[
    Subject {
        name: "own ranges",
        whole: false,
        own: true,
        launched: false,
    },
    Subject {
        name: "own process",
        whole: true,
        own: true,
        launched: false,
    },
    Subject {
        name: "another process",
        whole: true,
        own: false,
        launched: false,
    },
    Subject {
        name: "started program",
        whole: true,
        own: false,
        launched: true,
    },
];

impl Subject {
    /// The actor, made before the watch exists.
    pub(crate) fn actor(&self) -> Actor {
        match (self.own, self.launched) {
            (true, _) => Actor::Own,
            (false, false) => Actor::puppet(),
            (false, true) => Actor::Later,
        }
    }

    /// The target of a watch on `actor`.
    pub(crate) fn target(&self, actor: &Actor, ranges: &[PageRange]) -> pagetrail::Result<Target> {
        match (self.whole, self.own) {
            (false, _) => Ok(Target::ranges(ranges.iter().copied())),
            (true, true) => Ok(Target::own()),
            (true, false) => Target::process(actor.act("pid") as u32),
        }
    }
}
