//! [`Archive`]: a guest's initial RAM disk, uncompressed, in the `newc` format of cpio(5).

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// An archive in the making. Parents come before their children, as the kernel unpacks in order.
#[derive(Debug)]
pub struct Archive<W> {
    out: W,
    entries: u32,
    /// Written so far.
    bytes: u64,
}

/// The kind of an entry, its permissions, and its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// As `st_mode` of stat(2) has it.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The owning group.
    pub gid: u32,
}

impl Mode {
    /// A file that everybody may read, of root.
    pub const FILE: Self = Self::of_root(0o100_644);
    /// A directory, of root.
    pub const DIRECTORY: Self = Self::of_root(0o040_755);
    /// A symbolic link.
    pub const LINK: Self = Self::of_root(0o120_777);

    const fn of_root(mode: u32) -> Self {
        Self {
            mode,
            uid: 0,
            gid: 0,
        }
    }
}

impl<W: Write> Archive<W> {
    /// An empty one.
    pub fn new(out: W) -> Self {
        Self {
            out,
            entries: 0,
            bytes: 0,
        }
    }

    /// Adds a file, a directory without content, or a symbolic link with its target; `path` is
    /// absolute.
    ///
    /// # Errors
    ///
    /// Those of the writer; content of 4 GiB or more, which the format has no room for.
    pub fn add(&mut self, path: &Path, mode: Mode, content: &[u8]) -> io::Result<()> {
        let size = u32::try_from(content.len()).map_err(|_| {
            let line = "a file of an initial RAM disk is smaller than 4 GiB";
            io::Error::new(io::ErrorKind::InvalidInput, line)
        })?;
        let name = path.as_os_str().as_bytes();
        let name = name.strip_prefix(b"/").unwrap_or(name);
        self.entries += 1;
        let links = 1;
        // inode, mode, uid, gid, links, mtime, size, device (2), special device (2), name size,
        // check sum
        let name_size = name.len() as u32 + 1;
        let fields = [
            self.entries,
            mode.mode,
            mode.uid,
            mode.gid,
            links,
            0,
            size,
            0,
            0,
            0,
            0,
            name_size,
            0,
        ];
        let mut header = b"070701".to_vec();
        for field in fields {
            header.extend(format!("{field:08X}").bytes());
        }
        header.extend(name);
        header.push(0);
        self.padded(&header)?;
        self.padded(content)
    }

    /// Ends the archive; gives the writer back.
    ///
    /// # Errors
    ///
    /// Those of the writer.
    pub fn finish(mut self) -> io::Result<W> {
        self.add(
            Path::new("TRAILER!!!"),
            Mode {
                mode: 0,
                ..Mode::FILE
            },
            &[],
        )?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn padded(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.bytes += bytes.len() as u64;
        let padding = self.bytes.next_multiple_of(4) - self.bytes;
        self.out.write_all(&[0; 3][..padding as usize])?;
        self.bytes += padding;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_the_bytes_of_the_format() {
        let mut archive = Archive::new(Vec::new());
        let mode = Mode {
            mode: 0o100_755,
            uid: 1000,
            gid: 16,
        };
        archive.add(Path::new("/ab"), mode, b"hello").unwrap();
        let bytes = archive.finish().unwrap();
        let text = String::from_utf8_lossy(&bytes);
        let header = "07070100000001000081ED000003E80000001000000001000000000000000500000000\
                      0000000000000000000000000000000300000000";
        assert!(text.starts_with(header), "{text}");
        // Header and name together are padded, and so is the content.
        assert_eq!(&text[110..124], "ab\0\0\0\0hello\0\0\0");
        assert!(text[124..].contains("TRAILER!!!\0"));
        assert_eq!(bytes.len() % 4, 0);
    }
}
