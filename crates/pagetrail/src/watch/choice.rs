//! [`Choice`]: which technique a watch uses, and the rule behind [`Choice::Auto`].

use crate::capabilities::{Capabilities, Status};
use crate::error::{Error, Result};
use crate::target::{Kind, Target};
use crate::technique::Technique;

/// Which technique a watch uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The cheapest that works on this machine for this target.
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

pub(crate) struct Picked {
    pub(crate) technique: Technique,
    /// One line.
    pub(crate) reason: String,
}

pub(crate) fn pick(choice: Choice, target: &Target) -> Result<Picked> {
    let capabilities = Capabilities::probe();
    match choice {
        Choice::Technique(technique) => {
            fits(technique, target)?;
            match capabilities.status(technique) {
                Status::Works => Ok(Picked {
                    technique,
                    reason: "asked for".into(),
                }),
                Status::Fails(reason) | Status::Absent(reason) => Err(Error::Unavailable {
                    technique,
                    reason: reason.clone(),
                }),
            }
        }
        Choice::Auto => automatic(target, |technique| capabilities.status(technique).clone()),
    }
}

/// The candidates for a target, the cheapest first.
fn candidates(target: &Target) -> &'static [Technique] {
    use Technique::{Compare, Mprotect, PagemapScan, SoftDirty, Userfaultfd};
    match target.0 {
        Kind::OwnRanges(_) => &[PagemapScan, Userfaultfd, Mprotect, Compare],
        Kind::Own => &[PagemapScan],
        // Stopping the process for each round costs it less than a trip to user space for each fault.
        Kind::Process(_) | Kind::Command(_) => &[PagemapScan, SoftDirty, Userfaultfd, Compare],
    }
}

fn automatic(target: &Target, status: impl Fn(Technique) -> Status) -> Result<Picked> {
    let mut passed_over = Vec::new();
    for &technique in candidates(target) {
        match status(technique) {
            Status::Works => {
                let reason = match passed_over.is_empty() {
                    true => "the cheapest technique, and it works here".into(),
                    false => format!("the cheapest that works here ({})", passed_over.join("; ")),
                };
                return Ok(Picked { technique, reason });
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
        automatic(target, status).map(|picked| picked.technique)
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
        assert_eq!(
            auto(&other, &[SoftDirty, Userfaultfd, Compare]).unwrap(),
            SoftDirty
        );
        let error = auto(&Target::own(), &[Compare]).unwrap_err().to_string();
        assert!(error.contains("pagemap-scan: test"), "{error}");
    }

    #[test]
    fn a_technique_that_cannot_do_it_names_the_cure() {
        let error = fits(Technique::Mprotect, &Target(Kind::Process(1)))
            .unwrap_err()
            .to_string();
        assert!(error.contains("own process only"), "{error}");
    }
}
