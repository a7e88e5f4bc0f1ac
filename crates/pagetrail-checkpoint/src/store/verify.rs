//! Verifying a store: every block hashed, every parent and every pack present.

use super::packs::Packs;
use super::{Store, flatten, image};
use crate::error::{Error, Result};
use crate::storage::Name;
use std::collections::BTreeSet;

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
    /// Packs that no checkpoint needs: what a writer that was killed has left. No damage; the next writer removes them.
    pub unused_packs: u64,
}

impl Store {
    /// Looks at every byte of the store.
    ///
    /// # Errors
    ///
    /// The storage cannot be listed. What is damaged is a finding, not an error.
    pub fn verify(&self) -> Result<Verified> {
        let mut found = Verified::default();
        let mut used = BTreeSet::new();
        let names = self.names()?;
        for name in &names {
            let Name::Manifest(number) = *name else {
                continue;
            };
            found.checkpoints += 1;
            let examined = self.chain(number).and_then(|chain| {
                let (map, packs) = flatten(&chain);
                used.extend(packs.iter().copied());
                let Some(last) = chain.last() else {
                    return Ok(());
                };
                used.extend(last.packs.iter().copied());
                // Also those that a later checkpoint has replaced.
                image::open_all(self, last, &last.map, &last.packs)?;
                image::open_all(self, last, &map, &packs).map(drop)
            });
            found.note(number, examined);
        }
        // Where that cannot be told, something was found already.
        let needed = self.used_pages().unwrap_or_default();
        used.extend(needed.keys().copied());
        for name in &names {
            let Name::Pack(hash) = *name else {
                continue;
            };
            found.packs += 1;
            let verified = Packs::open(self, &[hash]).and_then(|mut packs| {
                found.pages += packs.index(0).page_count() as u64;
                let pages = needed.get(&hash).into_iter();
                packs.verify(0, pages.flat_map(|pages| pages.all()))
            });
            if let Err(error) = verified {
                found.add(error.to_string());
            } else if !used.contains(&hash) {
                found.unused_packs += 1;
            }
        }
        Ok(found)
    }
}

impl Verified {
    /// Whether nothing is damaged or missing.
    pub fn is_sound(&self) -> bool {
        self.damages.is_empty()
    }

    fn note(&mut self, number: u64, outcome: Result<()>) {
        match outcome {
            Ok(()) => {}
            Err(Error::Damaged { object, reason }) => {
                self.add(format!(
                    "{object} is damaged: {reason} (checkpoint {number})"
                ));
            }
            Err(error) => self.add(format!("checkpoint {number}: {error}")),
        }
    }

    fn add(&mut self, line: String) {
        if !self.damages.contains(&line) {
            self.damages.push(line);
        }
    }
}
