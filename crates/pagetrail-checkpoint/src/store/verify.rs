//! Verifying a store: every block hashed, every parent and every pack present; and which
//! checkpoints damage costs.

use super::image::open_all;
use super::packs::Packs;
use super::places::Places;
use super::{Store, flatten};
use crate::error::{Error, Result};
use crate::format::pack::Pack;
use crate::hash::Hash;
use crate::map::Source;
use crate::storage::Name;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;

/// What a verification found.
#[derive(Debug, Default)]
pub struct Verified {
    /// Checkpoints looked at.
    pub checkpoints: u64,
    /// Packs looked at.
    pub packs: u64,
    /// Pages in them.
    pub pages: u64,
    /// What is damaged or missing, a line each.
    pub damages: Vec<String>,
    /// The checkpoints that cannot be read wholly because of that, ascending. All others can.
    pub lost: Vec<u64>,
    /// Packs that no checkpoint needs: what a writer that was killed has left. No damage; the next
    /// writer removes them.
    pub unused_packs: u64,
    /// The pages that are not what they were, by their packs.
    pub(super) bad: BTreeMap<Hash, Places>,
    /// Orders of touches that are not what they were, by their checkpoints.
    pub(super) bad_touches: Vec<u64>,
}

impl Store {
    /// Looks at every byte of the store. A writer may be at work meanwhile: what it removes is not
    /// missed.
    ///
    /// # Errors
    ///
    /// The storage cannot be listed. What is damaged is a finding, not an error.
    pub fn verify(&self) -> Result<Verified> {
        let mut found = Verified::default();
        let mut used = BTreeSet::new();
        let mut there = Vec::new();
        let mut lost = BTreeSet::new();
        let names = self.names()?;
        for name in &names {
            let Name::Manifest(number) = *name else {
                continue;
            };
            match self.settled(number, || self.examine(number, false)) {
                Ok(packs) => {
                    used.extend(packs);
                    there.push(number);
                }
                Err(_) if self.has_gone(*name) => continue,
                Err(error) => {
                    found.note(number, error);
                    lost.insert(number);
                }
            }
            found.checkpoints += 1;
        }
        let needs = self.needs()?;
        used.extend(needs.used.keys().copied());
        let bytes = names.iter().map(|name| self.bytes_of_pack(*name)).sum();
        self.progress().begin("checking pages", bytes);
        for name in &names {
            let Name::Pack(hash) = *name else {
                continue;
            };
            let mut needed = needs.places(&hash);
            let verified = loop {
                let verified = Packs::open(self, &[hash]).map(|mut packs| {
                    let pages = packs.pack(0).page_count();
                    (pages, packs.verify(0, &needed))
                });
                if matches!(verified, Ok((_, (_, None)))) {
                    break verified;
                }
                // What a patch is upon may have gone with the last checkpoint that needed it.
                let now = self.needs()?.places(&hash);
                if now == needed || self.has_gone(*name) {
                    break verified;
                }
                needed = now;
            };
            let (bad, reason) = match verified {
                Ok((pages, outcome @ (_, None))) => {
                    found.pages += pages;
                    outcome
                }
                _ if self.has_gone(*name) => continue,
                Ok((pages, outcome)) => {
                    found.pages += pages;
                    outcome
                }
                Err(error) => {
                    let mut all = Places::default();
                    all.insert(0, u32::MAX.into());
                    (all, Some(error))
                }
            };
            found.packs += 1;
            if let Some(error) = reason {
                found.add(error.to_string());
                found.bad.insert(hash, bad);
            } else if !used.contains(&hash) {
                found.unused_packs += 1;
            }
        }
        for name in &names {
            if let Name::Touches(number) = *name
                && let Err(error) = self.touches(number)
                && !self.has_gone(*name)
            {
                // No checkpoint needs it.
                found.add(error.to_string());
                found.bad_touches.push(number);
            }
        }
        if !found.bad.is_empty() {
            for number in there {
                if self.needs_any(number, &found.bad) {
                    lost.insert(number);
                }
            }
        }
        found.lost = lost.into_iter().collect();
        Ok(found)
    }

    /// Looks at a checkpoint, and that its packs have the pages that it needs; gives the packs.
    /// `thoroughly` is with all that the packs say of their pages.
    pub(super) fn examine(&self, number: u64, thoroughly: bool) -> Result<Vec<Hash>> {
        let chain = self.chain(number)?;
        let (map, mut packs) = flatten(&chain);
        let Some(last) = chain.last() else {
            return Ok(packs);
        };
        // Also those that a later checkpoint has replaced.
        let own = open_all(self, last, &last.map, &last.packs)?;
        let all = open_all(self, last, &map, &packs)?;
        if thoroughly {
            own.read_blocks()?;
            all.read_blocks()?;
        }
        packs.extend(last.packs.iter().copied());
        Ok(packs)
    }

    /// Whether a checkpoint needs pages that are bad. One that has gone meanwhile needs none.
    fn needs_any(&self, number: u64, bad: &BTreeMap<Hash, Places>) -> bool {
        let Ok(chain) = self.settled(number, || self.chain(number)) else {
            return false;
        };
        let (map, packs) = flatten(&chain);
        map.runs().iter().any(|run| match run.source {
            Source::Stored { pack, page } => bad
                .get(&packs[pack as usize])
                .is_some_and(|bad| bad.intersects(page, run.pages)),
            _ => false,
        })
    }

    /// The bytes of the pages of a pack; 0 where it is none, or cannot be read.
    fn bytes_of_pack(&self, name: Name) -> u64 {
        let Name::Pack(hash) = name else {
            return 0;
        };
        let pack = Pack::open(self.storage(), hash);
        pack.map_or(0, |pack| {
            u64::from(pack.plain_pages()) * u64::from(pack.page_size())
        })
    }

    /// Whether an object that was listed is there no more.
    fn has_gone(&self, name: Name) -> bool {
        let opened = self.storage().open(name).map(drop);
        opened.is_err_and(|error| error.kind() == ErrorKind::NotFound)
    }
}

impl Verified {
    /// Whether nothing is damaged or missing.
    pub fn is_sound(&self) -> bool {
        self.damages.is_empty()
    }

    fn note(&mut self, number: u64, error: Error) {
        match error {
            Error::Damaged { object, reason } => {
                self.add(format!(
                    "{object} is damaged: {reason} (checkpoint {number})"
                ));
            }
            error => self.add(format!("checkpoint {number}: {error}")),
        }
    }

    fn add(&mut self, line: String) {
        if !self.damages.contains(&line) {
            self.damages.push(line);
        }
    }
}
