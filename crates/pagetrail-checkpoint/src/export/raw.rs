//! The contents of all saved mappings one behind the other, and an index of them, for programs that know what to look for.

use super::{create, write_contents};
use crate::error::{Error, Result};
use crate::store::image::Image;
use std::io::Write;
use std::path::{Path, PathBuf};

impl Image {
    /// Writes the contents of the saved mappings, ascending, to `path`, a sparse file, and to `path` with `.map` behind it a
    /// line for each: its range and rights as in `/proc/PID/maps`, its offset in the file, its name.
    ///
    /// # Errors
    ///
    /// A file is there already or cannot be written; the store is damaged.
    pub fn export_raw(&mut self, path: &Path) -> Result<()> {
        let file = create(path)?;
        let mut index_path = path.as_os_str().to_owned();
        index_path.push(".map");
        let index_path = PathBuf::from(index_path);
        let mut index = create(&index_path)?;
        let saved: Vec<_> = self
            .manifest()
            .mappings
            .iter()
            .filter(|mapping| mapping.saved)
            .cloned()
            .collect();
        let known = self.pages();
        let mut offset = 0;
        for mapping in saved {
            let range = mapping.range;
            writeln!(
                index,
                "{:012x}-{:012x} {} {offset:012x} {}",
                range.start(),
                range.end(),
                mapping.permissions,
                mapping.name
            )
            .map_err(Error::io(format!("cannot write {}", index_path.display())))?;
            write_contents(self, &known, range, &file, offset)?;
            offset += range.bytes();
        }
        file.set_len(offset)
            .map_err(Error::io(format!("cannot write {}", path.display())))
    }
}
