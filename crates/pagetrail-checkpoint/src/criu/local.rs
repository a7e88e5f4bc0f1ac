//! Taking a dump that CRIU has left in image files: which pages there are says `pagemap-*.img`,
//! what they hold `pages-*.img`. So the processes stand still for no longer than with CRIU alone,
//! where there is memory for the files.

use super::dump::State;
use super::link::broken;
use super::pagemap::{Entry, parse};
use super::protocol::{PRESENT, known};
use super::receive::Inlet;
use super::space::SpaceId;
use crate::error::{Error, Result};
use crate::format::wire::Malformed;
use crate::limits;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

impl State {
    /// Sends the pages of all image files of a directory on.
    pub(super) fn local(&mut self, directory: &Path, inlet: &mut Inlet) -> Result<()> {
        for (id, name) in pagemaps(directory)? {
            let path = directory.join(&name);
            let cannot = format!("cannot read {}", path.display());
            let mut image = Vec::new();
            File::open(&path)
                .and_then(|file| file.take(limits::bytes_at_once()).read_to_end(&mut image))
                .map_err(Error::io(cannot))?;
            let (pages_id, entries) =
                parse(&image).ok_or_else(|| broken(Malformed("a damaged pagemap")))?;
            drop(image);
            self.open(id)?;
            let path = directory.join(format!("pages-{pages_id}.img"));
            let cannot = || format!("cannot read {}", path.display());
            let mut pages = File::open(&path).map_err(Error::io(cannot()))?;
            for entry in entries {
                let Entry {
                    address,
                    pages: count,
                    flags,
                } = entry;
                let flags = known(flags).map_err(broken)?;
                let range = self.add(id, address, count, flags)?;
                if flags & PRESENT != 0 {
                    inlet.take(range, |room| {
                        pages.read_exact(room).map_err(Error::io(cannot()))
                    })?;
                }
            }
            let more = pages.read(&mut [0]).map_err(Error::io(cannot()))?;
            if more != 0 {
                return Err(broken(Malformed("more pages than their map says")));
            }
        }
        Ok(())
    }
}

/// The pagemaps of a directory, and whose they are.
fn pagemaps(directory: &Path) -> Result<Vec<(SpaceId, String)>> {
    let cannot = || format!("cannot read {}", directory.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).map_err(Error::io(cannot()))? {
        let entry = entry.map_err(Error::io(cannot()))?;
        if let Ok(name) = entry.file_name().into_string()
            && let Some(id) = whose(&name)
        {
            found.push((id, name));
        }
    }
    found.sort();
    Ok(found)
}

/// Whose pagemap a file is, by its name; `None` of other files.
fn whose(name: &str) -> Option<SpaceId> {
    let id = name.strip_prefix("pagemap-")?.strip_suffix(".img")?;
    match id.strip_prefix("shmem-") {
        Some(id) => id.parse().ok().map(SpaceId::Shared),
        None => id.parse().ok().map(SpaceId::Process),
    }
}

/// Whether an image file of CRIU's holds pages, or says where they belong.
pub fn is_of_pages(name: &str) -> bool {
    let number = name.strip_prefix("pages-");
    let number = number.and_then(|rest| rest.strip_suffix(".img"));
    whose(name).is_some() || number.is_some_and(|number| number.parse::<u32>().is_ok())
}
