//! Picks the technique of a watch: the rules of [`Choice::Auto`], and what a named one can do.

use crate::capabilities::Capabilities;
use crate::error::{Error, Result};
use crate::target::{Kind, Target};
use crate::types::{Choice, Status, Technique, TrackMode};

pub(crate) struct Picked {
    pub(crate) technique: Technique,
    pub(crate) track: TrackMode,
    /// One line.
    pub(crate) reason: String,
}

/// Picks the technique.
///
/// `predicting`: the consumer has set the cost of a false positive. `barred`: the techniques that
/// need code to run in the target, and why this target does not allow it; [`Choice::Auto`] passes
/// them over.
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
            let track = can_track(technique, track)?;
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
                reason: "requested".into(),
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

/// What a technique that was chosen by name tracks.
fn can_track(technique: Technique, track: Option<TrackMode>) -> Result<TrackMode> {
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
                    "it cannot distinguish writes from reads: track accesses, or choose another technique"
                }
                false => "it tracks writes only: for accesses use access-scan or mprotect",
            }
            .into(),
        }),
    }
}

/// The candidates for a target, the cheapest first.
///
/// `adaptive` is a candidate only where the consumer has set the cost of a false positive: other
/// consumers may rely on exact dirty sets.
fn candidates(target: &Target, track: TrackMode, predicting: bool) -> Vec<Technique> {
    use Technique::{AccessScan, Adaptive, Compare, Mprotect, PagemapScan, SoftDirty, Userfaultfd};
    let adaptive = (predicting && track == TrackMode::Writes).then_some(Adaptive);
    let others: &[Technique] = match target.0 {
        _ if track != TrackMode::Writes => &[AccessScan],
        Kind::OwnRanges(_) => &[PagemapScan, Userfaultfd, Mprotect, Compare],
        Kind::Own => &[PagemapScan],
        // Not `userfaultfd`: its faults wait for the tracker. While the tracker is stopped, so is
        // the target, and the kernel does not wait for a thread that exits (`handle_userfault` in
        // fs/userfaultfd.c): its robust mutexes stay locked.
        Kind::Process { .. } | Kind::Command(_) | Kind::Tree(_) | Kind::Cgroup(_) => {
            &[PagemapScan, SoftDirty, Compare]
        }
    };
    adaptive.into_iter().chain(others.iter().copied()).collect()
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
        (Technique::Mprotect, Kind::Process { .. } | Kind::Command(_)) => {
            "it works on the own process only: use pagemap-scan, soft-dirty, userfaultfd or compare"
        }
        // Their metadata would be part of what they track: a handler waiting for itself, copies of
        // copies.
        (Technique::Mprotect | Technique::Userfaultfd | Technique::Compare, Kind::Own) => {
            "give it ranges (Target::ranges), or use pagemap-scan"
        }
        _ => return Ok(()),
    };
    Err(Error::WrongTarget {
        technique,
        target: target.describe(),
        cure,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn other_process() -> Target {
        Target(Kind::Process {
            pid: 1,
            pidfd: None,
        })
    }

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
        let other = other_process();
        assert_eq!(auto(&own, &Technique::ALL).unwrap(), PagemapScan);
        assert_eq!(
            auto(&own, &[Mprotect, Userfaultfd, Compare]).unwrap(),
            Userfaultfd
        );
        assert_eq!(auto(&own, &[Mprotect, Compare]).unwrap(), Mprotect);
        assert_eq!(auto(&other, &[Mprotect, Compare]).unwrap(), Compare);
        let older = [SoftDirty, Userfaultfd, Compare];
        assert_eq!(auto(&other, &older).unwrap(), SoftDirty);
        // The faults of `userfaultfd` wait for the tracker, which may be stopped.
        assert_eq!(auto(&other, &[Userfaultfd, Compare]).unwrap(), Compare);
        let error = auto(&Target::own(), &[Compare]).unwrap_err().to_string();
        assert!(error.contains("pagemap-scan: test"), "{error}");
    }

    #[test]
    fn accesses_need_their_own_technique() {
        use Technique::{AccessScan, Mprotect, PagemapScan};
        assert_eq!(can_track(AccessScan, None).unwrap(), TrackMode::Accesses);
        assert_eq!(
            can_track(AccessScan, Some(TrackMode::Alternate)).unwrap(),
            TrackMode::Alternate
        );
        assert_eq!(can_track(PagemapScan, None).unwrap(), TrackMode::Writes);
        assert_eq!(can_track(Mprotect, None).unwrap(), TrackMode::Writes);
        assert_eq!(
            can_track(Mprotect, Some(TrackMode::Accesses)).unwrap(),
            TrackMode::Accesses
        );
        for (technique, track) in [
            (Mprotect, TrackMode::Alternate),
            (AccessScan, TrackMode::Writes),
            (PagemapScan, TrackMode::Accesses),
            (PagemapScan, TrackMode::Alternate),
        ] {
            assert!(can_track(technique, Some(track)).is_err());
        }
        let own = Target::own();
        assert_eq!(candidates(&own, TrackMode::Accesses, true), [AccessScan]);
        // Not `mprotect`, unless chosen by name: system calls that read from such memory fail.
        let ranges = Target::ranges([]);
        assert_eq!(candidates(&ranges, TrackMode::Accesses, true), [AccessScan]);
    }

    #[test]
    fn adaptive_is_a_candidate_only_if_a_false_positive_has_a_cost() {
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
    fn a_technique_that_does_not_fit_names_the_cure() {
        let error = fits(Technique::Mprotect, &other_process())
            .unwrap_err()
            .to_string();
        assert!(error.contains("own process only"), "{error}");
    }
}
