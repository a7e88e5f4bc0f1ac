//! The contents of all saved mappings one after the other, and an index of them, for programs that
//! know what to look for.

use super::{create, write_contents};
use crate::error::{Error, Result};
use crate::store::image::Image;
use std::io::Write;
use std::path::{Path, PathBuf};

impl Image {
    /// Writes the contents of the saved mappings, ascending, to `path`, a sparse file, and to
    /// `path` with `.map` after it a line for each: its range and rights as in `/proc/PID/maps`,
    /// its offset in the file (hexadecimal), its name, in which control characters are escaped as
    /// in Rust.
    ///
    /// # Errors
    ///
    /// A file is there already or cannot be written; the store is damaged.
    pub fn export_raw(&mut self, path: &Path) -> Result<()> {
        if self.manifest().is_by_criu() {
            let reason = "the checkpoint was made by CRIU: it has memory of several processes";
            return Err(Error::Refused(reason.into()));
        }
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
                in_a_line(&mapping.name)
            )
            .map_err(Error::io(format!("cannot write {}", index_path.display())))?;
            write_contents(self, &known, range, &file, offset)?;
            offset += range.bytes();
        }
        file.set_len(offset)
            .map_err(Error::io(format!("cannot write {}", path.display())))
    }
}

/// A name without the characters that would end its line, or command a terminal.
fn in_a_line(name: &str) -> String {
    let each = name.chars().map(|c| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    });
    each.collect()
}
