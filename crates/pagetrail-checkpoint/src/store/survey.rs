//! [`Survey`]: which checkpoints of a store can be read, as far as manifests and the list of
//! objects tell, and why the others cannot. Damage costs the checkpoints that need what is damaged,
//! and no others.

use super::{Store, flatten};
use crate::error::{Error, Result};
use crate::format::manifest::Manifest;
use crate::hash::Hash;
use crate::map::Source;
use crate::storage::Name;
use std::collections::{BTreeMap, BTreeSet};

/// How often is looked again while a writer changes the store.
const LOOKS_MAX: u32 = 1000;

/// The checkpoints of a store.
#[derive(Debug, Default)]
pub struct Survey {
    manifests: BTreeMap<u64, Manifest>,
    lost: BTreeMap<u64, String>,
}

impl Survey {
    /// Checkpoints that can be read, in ascending order. What is in the packs was not looked at.
    pub fn whole(&self) -> impl DoubleEndedIterator<Item = &Manifest> {
        let manifests = self.manifests.values();
        manifests.filter(|manifest| !self.lost.contains_key(&manifest.number))
    }

    /// The numbers of those that cannot be read, ascending, each with the reason.
    pub fn lost(&self) -> &BTreeMap<u64, String> {
        &self.lost
    }

    /// A line for each object that is damaged, with what it costs.
    pub fn damages(&self) -> Vec<String> {
        let own = self
            .lost
            .iter()
            .filter(|(number, _)| self.cause(**number) == **number);
        let line = |(number, reason): (&u64, &String)| {
            let with = self.lost.keys();
            let with: Vec<u64> = with
                .filter(|other| *other != number && self.cause(**other) == *number)
                .copied()
                .collect();
            match with.is_empty() {
                true => format!("checkpoint {number} cannot be read: {reason}"),
                false => format!(
                    "checkpoint {number} cannot be read, nor can {}, which build on it: {reason}",
                    spans(&with)
                ),
            }
        };
        own.map(line).collect()
    }

    /// The checkpoint whose own damage makes this one unreadable.
    fn cause(&self, number: u64) -> u64 {
        let mut number = number;
        while let Some(parent) = self.manifests.get(&number).and_then(|m| m.parent) {
            if !self.lost.contains_key(&parent.number) {
                break;
            }
            number = parent.number;
        }
        number
    }

    /// A checkpoint and all that it builds on, the base first; `None` if one of them is missing or
    /// damaged.
    fn chain(&self, number: u64) -> Option<Vec<&Manifest>> {
        let mut chain = vec![self.manifests.get(&number)?];
        while let Some(parent) = chain.last().and_then(|manifest| manifest.parent) {
            let manifest = self.manifests.get(&parent.number);
            chain.push(manifest.filter(|manifest| manifest.id == parent.id)?);
        }
        chain.reverse();
        Some(chain)
    }
}

/// Numbers in words, neighbours as a span.
pub fn spans(numbers: &[u64]) -> String {
    let mut spans: Vec<(u64, u64)> = Vec::new();
    for &number in numbers {
        match spans.last_mut() {
            Some(last) if last.1.checked_add(1) == Some(number) => last.1 = number,
            _ => spans.push((number, number)),
        }
    }
    let words = spans.iter().map(|(from, to)| match to - from {
        0 => from.to_string(),
        1 => format!("{from}, {to}"),
        _ => format!("{from} to {to}"),
    });
    words.collect::<Vec<_>>().join(", ")
}

impl Store {
    /// Looks at all checkpoints, and finds out which of them can be read. The contents of packs are
    /// for [`verify`](Self::verify) to look at.
    ///
    /// # Errors
    ///
    /// The storage cannot be listed. What is damaged is a finding, not an error.
    pub fn survey(&self) -> Result<Survey> {
        let mut before = None;
        for _ in 0..LOOKS_MAX {
            let survey = self.look()?;
            // What one look finds damaged may be what a writer changed during it.
            if survey.lost.is_empty() || before.as_ref() == Some(&survey.lost) {
                return Ok(survey);
            }
            before = Some(survey.lost);
        }
        self.look()
    }

    fn look(&self) -> Result<Survey> {
        let mut survey = Survey::default();
        let mut packs = BTreeSet::new();
        for name in self.names()? {
            match name {
                Name::Marker | Name::Touches(_) => {}
                Name::Pack(hash) => drop(packs.insert(hash)),
                Name::Manifest(number) => match self.manifest(number) {
                    Ok(manifest) => drop(survey.manifests.insert(number, manifest)),
                    // It has gone meanwhile.
                    Err(Error::NoSuchCheckpoint { .. }) => {}
                    Err(error) => drop(survey.lost.insert(number, error.to_string())),
                },
            }
        }
        let numbers: Vec<u64> = survey.manifests.keys().copied().collect();
        for number in &numbers {
            if let Some(reason) = survey.broken(*number) {
                survey.lost.insert(*number, reason);
            }
        }
        let named = |manifest: &Manifest| manifest.packs.iter().any(|pack| !packs.contains(pack));
        if survey.manifests.values().any(named) {
            for number in numbers {
                let missing = survey.missing_pack(number, &packs);
                if let Some(pack) = missing.filter(|_| !survey.lost.contains_key(&number)) {
                    let reason = format!("{} is missing", Name::Pack(pack));
                    survey.lost.insert(number, reason);
                }
            }
        }
        Ok(survey)
    }
}

impl Survey {
    /// Why a checkpoint has not all that it builds on.
    fn broken(&self, number: u64) -> Option<String> {
        let parent = self.manifests.get(&number)?.parent?;
        let above = parent.number;
        match self.manifests.get(&above) {
            None if self.lost.contains_key(&above) => {
                Some(format!("checkpoint {above}, on which it builds, is lost"))
            }
            None => Some(format!(
                "checkpoint {above}, on which it builds, is missing"
            )),
            Some(manifest) if manifest.id != parent.id => {
                Some(format!("checkpoint {above} is not the one it builds on"))
            }
            Some(_) => self
                .lost
                .contains_key(&above)
                .then(|| format!("checkpoint {above}, on which it builds, is lost")),
        }
    }

    /// A pack that a checkpoint needs and that is not there.
    fn missing_pack(&self, number: u64, there: &BTreeSet<Hash>) -> Option<Hash> {
        let chain: Vec<Manifest> = self.chain(number)?.into_iter().cloned().collect();
        let (_, needed) = flatten(&chain);
        let own = chain.last()?;
        let named = own.map.runs().iter().filter_map(|run| match run.source {
            Source::Stored { pack, .. } => own.packs.get(pack as usize).copied(),
            _ => None,
        });
        let mut all = needed.into_iter().chain(named);
        all.find(|pack| !there.contains(pack))
    }
}

#[cfg(test)]
mod tests {
    use super::spans;

    #[test]
    fn neighbours_are_spans() {
        assert_eq!(spans(&[]), "");
        assert_eq!(spans(&[4]), "4");
        assert_eq!(
            spans(&[4, 5, 7, 8, 9, u64::MAX]),
            format!("4, 5, 7 to 9, {}", u64::MAX)
        );
    }
}
