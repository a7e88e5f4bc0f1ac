//! A guest's initial RAM disk: an uncompressed cpio archive in the `newc` format, cpio(5).

/// An archive in the making. Parents come before their children, as the kernel unpacks in order.
#[derive(Debug, Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

impl Archive {
    /// Adds an empty directory.
    pub(super) fn directory(&mut self, name: &str) {
        self.entry(name, DIRECTORY, &[]);
    }

    /// Adds a file that everyone may read and execute.
    pub(super) fn file(&mut self, name: &str, content: &[u8]) {
        self.entry(name, PROGRAM, content);
    }

    /// The finished archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let size = u32::try_from(content.len()).expect("a file of a RAM disk is below 4 GiB");
        let name_size = u32::try_from(name.len() + 1).expect("a name is short");
        let links = 1;
        // inode, mode, uid, gid, links, mtime, size, device (2), special device (2), name size,
        // check sum
        let fields = [
            self.entries,
            mode,
            0,
            0,
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
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08X}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_the_bytes_of_the_format() {
        let mut archive = Archive::default();
        archive.file("ab", b"hello");
        let bytes = archive.finish();
        let text = String::from_utf8_lossy(&bytes);
        let header = "07070100000001000081ED000000000000000000000001000000000000000500000000\
                      00000000000000000000000000000003000000";
        assert!(text.starts_with(header), "{text}");
        // Header and name together are padded, and so is the content.
        assert_eq!(&text[110..124], "ab\0\0\0\0hello\0\0\0");
        assert!(text[124..].contains("TRAILER!!!\0"));
        assert_eq!(bytes.len() % 4, 0);
    }
}
