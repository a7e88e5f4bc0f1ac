//! Which checkpoint a running process was last saved in or restored from, so that the next is an
//! increment of that one. A hint: contents are compared, whatever it says.
//!
//! It lies beside the process, in a directory of root's that is empty after the machine starts: a
//! file for each process, whose name says its PID namespace, its PID, and when it started.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use pagetrail_checkpoint::{Hash, Store};

const DIRECTORY: &str = "/run/pagetrail";
/// The longest record that is read: a number and a hash.
const RECORD_BYTES_MAX: usize = 256;

/// Who has taken a checkpoint: increments are over those of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// CRIU.
    Criu,
    /// Pagetrail alone.
    Pagetrail,
}

/// Notes the checkpoint of a process, by its number and id. Where that cannot be noted, the next is
/// a base.
pub fn note(pid: u32, number: u64, id: Hash) {
    let _ = note_in(Path::new(DIRECTORY), pid, &record(number, id));
}

/// The checkpoint of this store that a process was last saved in or restored from.
pub fn find(pid: u32, store: &Store, by: By) -> Option<u64> {
    find_in(Path::new(DIRECTORY), pid, store, by)
}

fn note_in(directory: &Path, pid: u32, record: &str) -> Option<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return None,
        _ => {}
    }
    if !is_ours(directory) {
        return None;
    }
    let name = name_of(pid)?;
    remove_ended(directory, &name);
    // Whole or not at all: who reads it may do so now.
    let draft = directory.join(format!(".{name}.{}", std::process::id()));
    fs::write(&draft, record).ok()?;
    fs::rename(draft, directory.join(name)).ok()
}

fn find_in(directory: &Path, pid: u32, store: &Store, by: By) -> Option<u64> {
    if !is_ours(directory) {
        return None;
    }
    let text = fs::read(directory.join(name_of(pid)?)).ok()?;
    let text = std::str::from_utf8(text.get(..RECORD_BYTES_MAX).unwrap_or(&text)).ok()?;
    let number = text.split_once(' ')?.0.parse().ok()?;
    let manifest = store.manifest(number).ok()?;
    let is_same = record(number, manifest.id) == text;
    let fits = manifest.is_by_criu() == (by == By::Criu);
    (is_same && fits).then_some(number)
}

/// The checkpoint by its number, and by its id: there are numbers in each store.
fn record(number: u64, id: Hash) -> String {
    format!("{number} {id}\n")
}

/// Whether nobody but this user writes to the directory.
fn is_ours(directory: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    fs::symlink_metadata(directory).is_ok_and(|metadata| {
        metadata.is_dir() && metadata.uid() == own && metadata.mode() & 0o022 == 0
    })
}

/// The name of a process' file.
fn name_of(pid: u32) -> Option<String> {
    let namespace = fs::metadata(format!("/proc/{pid}/ns/pid")).ok()?.ino();
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The 22nd field, of which the second may hold anything (`proc_pid_stat(5)`).
    let stat = String::from_utf8_lossy(&stat).into_owned();
    let started: u64 = stat
        .rsplit(')')
        .next()?
        .split_whitespace()
        .nth(19)?
        .parse()
        .ok()?;
    Some(format!("{namespace}-{pid}-{started}"))
}

/// Removes the files of processes that have ended; of other PID namespaces only those know that.
fn remove_ended(directory: &Path, name: &str) {
    let namespace = name.split('-').next().unwrap_or_default();
    for path in paths(directory) {
        let name = path.file_name().and_then(|name| name.to_str());
        let mut parts = name.unwrap_or_default().split('-');
        let (of, pid) = (parts.next(), parts.next());
        let pid = pid.and_then(|pid| pid.parse().ok());
        if let Some(pid) = pid
            && of == Some(namespace)
            && name_of(pid).as_deref() != name
        {
            // One that stays is found to be of a process that has ended.
            let _ = fs::remove_file(path);
        }
    }
}

fn paths(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetrail_checkpoint::criu::Dumps;
    use pagetrail_checkpoint::storage::InMemory;
    use pagetrail_checkpoint::{Manifest, WriterOptions};
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    /// A client that sends one page of a process, as CRIU does, and a store that has it.
    fn store() -> (Store, Manifest) {
        let store = Store::create_on(Arc::new(InMemory::default())).unwrap();
        let mut dumps = Dumps::new(store.writer(WriterOptions::default()).unwrap());
        let page_size = rustix::param::page_size() as u64;
        let mut sent = Vec::new();
        for (command, pages, address) in [(3_u32, 0_u32, 0), (1, 1, page_size), (0x1023, 0, 0)] {
            sent.extend(command.to_ne_bytes());
            sent.extend(pages.to_ne_bytes());
            sent.extend(address.to_ne_bytes());
            sent.extend((7_u64 << 8 | 1).to_ne_bytes());
            sent.resize(sent.len() + pages as usize * page_size as usize, 5);
        }
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let sending = std::thread::spawn(move || {
            std::io::Write::write_all(&mut theirs, &sent).unwrap();
            std::io::Read::read_exact(&mut theirs, &mut [0; 4]).unwrap();
        });
        let manifest = dumps.take(ours).unwrap();
        sending.join().unwrap();
        (store, manifest)
    }

    #[test]
    fn the_last_checkpoint_of_a_process_is_known_while_it_lives() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("lineage");
        let (other, _) = store();
        let (store, manifest) = store();
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let pids = [std::process::id(), child.id()];
        let find = |pid, store: &Store| find_in(&directory, pid, store, By::Criu);
        let note = |pid| note_in(&directory, pid, &record(manifest.number, manifest.id));
        for pid in pids {
            assert_eq!(find(pid, &store), None);
            note(pid).unwrap();
            assert_eq!(find(pid, &store), Some(1));
            // The number says nothing of another store, nor of checkpoints of another kind.
            assert_eq!(find(pid, &other), None);
            assert_eq!(find_in(&directory, pid, &store, By::Pagetrail), None);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(paths(&directory).len(), 2);
        note(pids[0]).unwrap();
        assert_eq!(paths(&directory).len(), 1);
        assert_eq!(find(pids[1], &store), None);
        let record = paths(&directory).remove(0);
        for wrong in [&b""[..], b"1", b"1 x\n", b"\xff 1", &[b'1'; 5000]] {
            fs::write(&record, wrong).unwrap();
            assert_eq!(find(pids[0], &store), None);
        }
        // Others may have written there.
        note(pids[0]).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(find(pids[0], &store), None);
        assert_eq!(note(pids[0]), None);
    }
}
