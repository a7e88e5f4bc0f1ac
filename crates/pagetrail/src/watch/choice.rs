//! [`Choice`]: which technique a watch uses, and the rule behind [`Choice::Auto`].

use crate::capabilities::{Capabilities, Status};
use crate::error::{Error, Result};
use crate::target::{Kind, Target};
use crate::technique::Technique;

/// Which technique a watch uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The cheapest that works on this machine for this target: `adaptive` where the consumer has said what a page costs that
    /// is reported in vain ([`WatchBuilder::false_positive_cost`](crate::WatchBuilder::false_positive_cost)), otherwise one that predicts nothing.
    #[default]
    Auto,
    /// This one, or an error that says why not.
    Technique(Technique),
}

impl From<Technique> for Choice {
    fn from(technique: Technique) -> Self {
        Self::Technique(technique)
    }
}

/// What a watch is to notice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrackMode {
    /// Writes.
    #[default]
    Writes,
    /// Every access, reads included: technique `access-scan`, or, where it is asked for, `mprotect` for ranges of the own process.
    Accesses,
    /// A round of writes, a round of accesses, and so on ([`Round::noticed`](crate::Round::noticed) says which): techniques
    /// `pagemap-scan` and `access-scan` in turns.
    ///
    /// It takes samples. A page that is only read shows in every second round; what is touched while the watch switches, at
    /// the end of each collect, is missed ([`RoundCost::blind`](crate::RoundCost::blind)). Within a round, what completes
    /// between two collects is in it as ever.
    Alternate,
}

pub(crate) struct Picked {
    pub(crate) technique: Technique,
    pub(crate) track: TrackMode,
    /// One line.
    pub(crate) reason: String,
}

/// `predicting`: the consumer has said what a page costs that is reported in vain. `barred`: techniques that need code to be run
/// in the target, and why this target does not allow that; [`Choice::Auto`] passes them over.
pub(crate) fn pick(
    choice: Choice,
    track: Option<TrackMode>,
    predicting: bool,
    target: &Target,
    barred: Option<(&[Technique], &str)>,
) -> Result<Picked> {
    match choice {
        Choice::Technique(technique) => {
            fits(technique, target)?;
            let track = can_notice(technique, track)?;
            let needed = match track {
                TrackMode::Alternate => [technique, Technique::PagemapScan],
                _ => [technique; 2],
            };
            for technique in needed {
                if let Status::Fails(reason) | Status::Absent(reason) =
                    Capabilities::probe_one(technique)
                {
                    return Err(Error::Unavailable {
                        technique,
                        reason: reason.clone(),
                    });
                }
            }
            Ok(Picked {
                technique,
                track,
                reason: "asked for".into(),
            })
        }
        Choice::Auto => {
            let track = track.unwrap_or_default();
            let (technique, reason) = automatic(
                &candidates(target, track, predicting),
                |technique| match barred {
                    Some((techniques, reason)) if techniques.contains(&technique) => {
                        Status::Absent(reason.into())
                    }
                    _ => Capabilities::probe_one(technique).clone(),
                },
            )?;
            Ok(Picked {
                technique,
                track,
                reason,
            })
        }
    }
}

/// What a technique that was asked for is to notice.
fn can_notice(technique: Technique, track: Option<TrackMode>) -> Result<TrackMode> {
    let of_accesses = technique == Technique::AccessScan;
    match track {
        Some(TrackMode::Accesses) if technique == Technique::Mprotect => Ok(TrackMode::Accesses),
        None if of_accesses => Ok(TrackMode::Accesses),
        None | Some(TrackMode::Writes) if !of_accesses => Ok(TrackMode::Writes),
        Some(track) if of_accesses && track != TrackMode::Writes => Ok(track),
        _ => Err(Error::Unavailable {
            technique,
            reason: match of_accesses {
                true => {
                    "it does not tell writes from reads: ask for accesses, or for another technique"
                }
                false => "it notices writes only: for accesses use access-scan, or mprotect",
            }
            .into(),
        }),
    }
}

/// The candidates for a target, the cheapest first.
///
/// `adaptive` only where the consumer has said what a vain page costs: whoever has not may rely on exact write sets.
fn candidates(target: &Target, track: TrackMode, predicting: bool) -> Vec<Technique> {
    use Technique::{AccessScan, Adaptive, Compare, Mprotect, PagemapScan, SoftDirty, Userfaultfd};
    let predicting = (predicting && track == TrackMode::Writes).then_some(Adaptive);
    let others: &[Technique] = match target.0 {
        _ if track != TrackMode::Writes => &[AccessScan],
        Kind::OwnRanges(_) => &[PagemapScan, Userfaultfd, Mprotect, Compare],
        Kind::Own => &[PagemapScan],
        // Not `userfaultfd`: its faults wait for the tracker. While that is stopped the target is, too, and for a thread that
        // exits the kernel does not wait (`handle_userfault` in fs/userfaultfd.c): its robust mutexes stay locked.
        Kind::Process(_) | Kind::Command(_) => &[PagemapScan, SoftDirty, Compare],
    };
    predicting
        .into_iter()
        .chain(others.iter().copied())
        .collect()
}

fn automatic(
    candidates: &[Technique],
    status: impl Fn(Technique) -> Status,
) -> Result<(Technique, String)> {
    let mut passed_over = Vec::new();
    for &technique in candidates {
        match status(technique) {
            Status::Works => {
                let reason = match passed_over.is_empty() {
                    true => "the cheapest technique, and it works here".into(),
                    false => format!("the cheapest that works here ({})", passed_over.join("; ")),
                };
                return Ok((technique, reason));
            }
            Status::Fails(reason) | Status::Absent(reason) => {
                passed_over.push(format!("{technique}: {reason}"))
            }
        }
    }
    Err(Error::NothingWorks {
        reasons: passed_over.join("; "),
    })
}

/// Refuses what a technique cannot do on any machine.
fn fits(technique: Technique, target: &Target) -> Result<()> {
    let cure = match (technique, &target.0) {
        (Technique::Mprotect, Kind::Process(_) | Kind::Command(_)) => {
            "it works on the own process only: use pagemap-scan, soft-dirty, userfaultfd or compare"
        }
        // Their bookkeeping would be watched by themselves: a handler waiting for itself, copies of copies.
        (Technique::Mprotect | Technique::Userfaultfd | Technique::Compare, Kind::Own) => {
            "give it ranges (Target::ranges), or use pagemap-scan"
        }
        _ => return Ok(()),
    };
    Err(Error::WrongTarget {
        technique,
        target: target.words(),
        cure,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn auto(target: &Target, working: &[Technique]) -> Result<Technique> {
        let status = |technique| match working.contains(&technique) {
            true => Status::Works,
            false => Status::Absent("test".into()),
        };
        automatic(&candidates(target, TrackMode::Writes, false), status).map(|picked| picked.0)
    }

    #[test]
    fn auto_falls_back_in_order_and_names_what_it_passed_over() {
        use Technique::{Compare, Mprotect, PagemapScan, SoftDirty, Userfaultfd};
        let own = Target::ranges([]);
        let other = Target(Kind::Process(1));
        assert_eq!(auto(&own, &Technique::ALL).unwrap(), PagemapScan);
        assert_eq!(
            auto(&own, &[Mprotect, Userfaultfd, Compare]).unwrap(),
            Userfaultfd
        );
        assert_eq!(auto(&own, &[Mprotect, Compare]).unwrap(), Mprotect);
        assert_eq!(auto(&other, &[Mprotect, Compare]).unwrap(), Compare);
        let older = [SoftDirty, Userfaultfd, Compare];
        assert_eq!(auto(&other, &older).unwrap(), SoftDirty);
        // Its faults wait for the tracker, which may be stopped.
        assert_eq!(auto(&other, &[Userfaultfd, Compare]).unwrap(), Compare);
        let error = auto(&Target::own(), &[Compare]).unwrap_err().to_string();
        assert!(error.contains("pagemap-scan: test"), "{error}");
    }

    #[test]
    fn accesses_need_their_own_technique() {
        use Technique::{AccessScan, Mprotect, PagemapScan};
        assert_eq!(can_notice(AccessScan, None).unwrap(), TrackMode::Accesses);
        assert_eq!(
            can_notice(AccessScan, Some(TrackMode::Alternate)).unwrap(),
            TrackMode::Alternate
        );
        assert_eq!(can_notice(PagemapScan, None).unwrap(), TrackMode::Writes);
        assert_eq!(can_notice(Mprotect, None).unwrap(), TrackMode::Writes);
        assert_eq!(
            can_notice(Mprotect, Some(TrackMode::Accesses)).unwrap(),
            TrackMode::Accesses
        );
        for (technique, track) in [
            (Mprotect, TrackMode::Alternate),
            (AccessScan, TrackMode::Writes),
            (PagemapScan, TrackMode::Accesses),
            (PagemapScan, TrackMode::Alternate),
        ] {
            assert!(can_notice(technique, Some(track)).is_err());
        }
        let own = Target::own();
        assert_eq!(candidates(&own, TrackMode::Accesses, true), [AccessScan]);
        // Not `mprotect`, unless somebody asks: system calls that read from such memory fail.
        let ranges = Target::ranges([]);
        assert_eq!(candidates(&ranges, TrackMode::Accesses, true), [AccessScan]);
    }

    #[test]
    fn predicting_is_for_those_who_say_what_it_costs_them() {
        let own = Target::own();
        assert_eq!(
            candidates(&own, TrackMode::Writes, false),
            [Technique::PagemapScan]
        );
        assert_eq!(
            candidates(&own, TrackMode::Writes, true),
            [Technique::Adaptive, Technique::PagemapScan]
        );
    }

    #[test]
    fn a_technique_that_cannot_do_it_names_the_cure() {
        let error = fits(Technique::Mprotect, &Target(Kind::Process(1)))
            .unwrap_err()
            .to_string();
        assert!(error.contains("own process only"), "{error}");
    }
}
