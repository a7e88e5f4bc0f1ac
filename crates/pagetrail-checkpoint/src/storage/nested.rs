//! Stores in a directory of a [`Directory`], as those of a tree's processes are.
//!
//! They are reached, and removed, from the directory that was opened, without following a symbolic
//! link; and only what a store has in it is removed.

use super::directory::{DRAFTS, Directory, LOCK, WORLD_WRITABLE, entries, is_draft, sync};
use super::{DAMAGED, Name, WorldWritable};
use crate::error::{Error, Result};
use rustix::fs::{AtFlags, FileType, Mode, fstat, mkdirat, statat, unlinkat};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;

impl Directory {
    /// A directory in this one; `None` where there is none.
    ///
    /// # Errors
    ///
    /// Something else has the name, a symbolic link say, or it cannot be opened.
    pub(crate) fn nested(&self, name: &str) -> Result<Option<Self>> {
        match self.subdirectory(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => {
                let path = self.path().join(name);
                let opened =
                    opened.map_err(Error::io(format!("cannot open {}", path.display())))?;
                Ok(Some(Self::of(path, opened)))
            }
        }
    }

    /// A directory in this one, made for its owner alone where there is none.
    ///
    /// # Errors
    ///
    /// As [`Self::nested`]; or everybody may write there, with [`WorldWritable::Refuse`].
    pub(crate) fn make_nested(&self, name: &str, exposed: WorldWritable) -> Result<Self> {
        let path = self.path().join(name);
        let failed = || Error::io(format!("cannot create {}", path.display()));
        match mkdirat(self.opened(), name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed()(error.into())),
        }
        let nested = self.nested(name)?;
        let nested = nested.ok_or_else(|| failed()(io::ErrorKind::NotFound.into()))?;
        let stat = fstat(nested.opened()).map_err(|error| failed()(error.into()))?;
        if stat.st_mode & WORLD_WRITABLE != 0 && exposed == WorldWritable::Refuse {
            return Err(Error::WorldWritable {
                place: path.display().to_string(),
            });
        }
        Ok(nested)
    }

    /// The names of the directories in this one. Symbolic links are none.
    pub(crate) fn directories(&self) -> io::Result<Vec<String>> {
        let is_directory = |name: &String| {
            let stat = statat(self.opened(), name.as_str(), AtFlags::SYMLINK_NOFOLLOW);
            stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
        };
        let mut names = entries(self.opened())?;
        names.retain(is_directory);
        Ok(names)
    }

    /// Removes a store in this directory: what a store has in it, and then the directory; what is
    /// not there is fine.
    ///
    /// # Errors
    ///
    /// It is no store, or holds other files as well, which stay.
    pub(crate) fn remove_nested(&self, name: &str) -> Result<()> {
        let Some(store) = self.nested(name)? else {
            return Ok(());
        };
        let place = store.path().display().to_string();
        let failed = || Error::io(format!("cannot remove {place}"));
        if !store.may_become_store().map_err(failed())? {
            return Err(Error::NotAStore { place });
        }
        store.empty().map_err(failed())?;
        match unlinkat(self.opened(), name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                let reason = format!("{place} holds files that are not the store's; remove it");
                Err(Error::Refused(reason))
            }
            Err(error) => Err(failed()(error.into())),
        }
    }

    /// Removes what a store has; its marker last, so that what a killed one leaves is a store.
    fn empty(&self) -> io::Result<()> {
        let is_object = |name: &str| Name::parse(name).is_some_and(|name| name != Name::Marker);
        remove_of(self.opened(), is_object)?;
        for (name, is_own) in [
            (DRAFTS, &is_draft as &dyn Fn(&str) -> bool),
            (DAMAGED, &is_object),
        ] {
            let directory = match self.subdirectory(name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                directory => directory?,
            };
            remove_of(&directory, is_own)?;
            match unlinkat(self.opened(), name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if entries(self.opened())?
            .iter()
            .all(|name| name == LOCK || name == &Name::Marker.to_string())
        {
            remove_of(self.opened(), |name| name == LOCK)?;
            remove_of(self.opened(), |_| true)?;
        }
        sync(self.opened())
    }
}

/// Removes the files of a directory whose names are own ones.
fn remove_of(directory: &OwnedFd, is_own: impl Fn(&str) -> bool) -> io::Result<()> {
    for name in entries(directory)?.iter().filter(|name| is_own(name)) {
        match unlinkat(directory, name.as_str(), AtFlags::empty()) {
            // A directory of such a name is not the store's.
            Ok(()) | Err(Errno::NOENT | Errno::ISDIR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
