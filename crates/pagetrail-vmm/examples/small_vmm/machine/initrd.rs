//! The guest's RAM disk: a cpio archive (`newc`, cpio(5)) with a console, `/proc`, one program,
//! and perhaps a kernel module for it.

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const FILE: u32 = 0o100_644;
const CHARACTER_DEVICE: u32 = 0o020_600;

/// Makes the archive; the program, linked statically, is its `init`, and finds the module as
/// `/module.ko`.
pub(crate) fn with_init(program: &[u8], module: Option<&[u8]>) -> Vec<u8> {
    let mut archive = Vec::new();
    entry(&mut archive, "dev", DIRECTORY, (0, 0), &[]);
    entry(&mut archive, "dev/console", CHARACTER_DEVICE, (5, 1), &[]);
    entry(&mut archive, "proc", DIRECTORY, (0, 0), &[]);
    entry(&mut archive, "init", PROGRAM, (0, 0), program);
    if let Some(module) = module {
        entry(&mut archive, "module.ko", FILE, (0, 0), module);
    }
    entry(&mut archive, "TRAILER!!!", 0, (0, 0), &[]);
    archive
}

fn entry(archive: &mut Vec<u8>, name: &str, mode: u32, device: (u32, u32), content: &[u8]) {
    // inode, mode, uid, gid, links, mtime, size, device (2), special device (2), name size, check
    // sum. Inodes matter for files with several links alone.
    let (size, name_size) = (content.len() as u32, name.len() as u32 + 1);
    let fields = [
        0, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name_size, 0,
    ];
    archive.extend(b"070701");
    for field in fields {
        archive.extend(format!("{field:08X}").bytes());
    }
    archive.extend(name.bytes());
    archive.push(0);
    pad(archive);
    archive.extend(content);
    pad(archive);
}

fn pad(archive: &mut Vec<u8>) {
    archive.resize(archive.len().next_multiple_of(4), 0);
}
