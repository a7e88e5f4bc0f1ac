//! Repairing a store: what is damaged, and the checkpoints that need it, are set aside; the others
//! stay as they are.

use super::places::Places;
use super::writer::Writer;
use crate::error::Result;
use crate::hash::Hash;
use crate::storage::Name;
use std::collections::BTreeSet;

/// What a repair has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// What was damaged or missing, a line each.
    pub damages: Vec<String>,
    /// The checkpoints that were set aside, because they could not be read wholly.
    pub lost: Vec<u64>,
    /// How many checkpoints are left; all of them can be read.
    pub whole: u64,
    /// The objects that were set aside.
    pub set_aside: Vec<String>,
    /// Damaged packs whose other pages are needed, and were written anew.
    pub repacked: u64,
}

impl Writer {
    /// Looks at every byte of the store, and sets aside what is damaged: in a directory, in
    /// `damaged` below it. What is left is whole, and [`verify`](crate::Store::verify) finds
    /// nothing.
    ///
    /// # Errors
    ///
    /// The storage fails, or the lock on it is lost. What is left is as whole as it was; a repair
    /// may be begun anew.
    pub fn repair(&mut self) -> Result<Repaired> {
        self.catch_up()?;
        let found = self.store.verify()?;
        let mut repaired = Repaired {
            whole: found.checkpoints - found.lost.len() as u64,
            lost: found.lost.clone(),
            damages: found.damages,
            ..Repaired::default()
        };
        if repaired.damages.is_empty() {
            return Ok(repaired);
        }
        // One that has its own version of a page that another has lost may build on that one.
        for number in self.store.numbers()? {
            if !found.lost.contains(&number) {
                self.rebuild(number, &found.lost)?;
            }
        }
        // The newest first, so that each that is still there has what it builds on.
        for number in found.lost.iter().rev() {
            self.set_aside(Name::Manifest(*number), &mut repaired)?;
        }
        let mut bad: BTreeSet<Hash> = found.bad.into_keys().collect();
        while let Some(pack) = bad.pop_first() {
            // Whole checkpoints need none of its bad pages, and may need others.
            while let Some((name, pages)) = self.first_to_move(pack)? {
                if !self.repack_one(name, &pages, name != pack)? {
                    break;
                }
                repaired.repacked += 1;
            }
            self.set_aside(Name::Pack(pack), &mut repaired)?;
        }
        for number in found.bad_touches {
            self.set_aside(Name::Touches(number), &mut repaired)?;
        }
        let needs = self.store.needs()?;
        for name in self.store.names()? {
            if let Name::Pack(hash) = name
                && needs.complete
                && !needs.used.contains_key(&hash)
            {
                self.set_aside(name, &mut repaired)?;
            }
        }
        self.learn()?;
        Ok(repaired)
    }

    /// The pack that has to be written anew before a bad one can go, with its pages that are
    /// needed: itself, or before it one whose patches are upon it. `None` when nothing of it is
    /// needed.
    fn first_to_move(&self, pack: Hash) -> Result<Option<(Hash, Places)>> {
        let used = self.store.needs()?.used;
        let mut name = pack;
        while let Some(user) = used.get(&name).and_then(|pages| pages.users.first()) {
            name = *user;
        }
        let named = used.get(&name).map(|pages| pages.named.clone());
        Ok(named
            .filter(|pages| !pages.is_empty())
            .map(|pages| (name, pages)))
    }

    fn set_aside(&self, name: Name, repaired: &mut Repaired) -> Result<()> {
        self.check_held()?;
        let outcome = self.store.storage().set_aside(name);
        match outcome {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            outcome => outcome.map_err(crate::Error::io(format!("cannot set {name} aside")))?,
        }
        repaired.set_aside.push(name.to_string());
        Ok(())
    }
}
