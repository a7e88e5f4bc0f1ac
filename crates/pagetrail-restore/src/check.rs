//! What is checked before anything is started: files that are mapped and open, identifiers that
//! must be free, and that the checkpoint is of such a machine.

use crate::error::{Error, Result};
use crate::options::RestoreOptions;
use crate::space::{is_file, is_kernels};
use crate::{files, objects};
use pagetrail_checkpoint::{Manifest, MappedFile, Mapping, Process, ProcessState, build_id_of};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

/// How much of a file is looked at for its build ID, in bytes.
const HEAD_BYTES: u64 = 1 << 14;

/// Checks all of it.
pub(crate) fn check(
    manifest: &Manifest,
    process: &Process,
    state: &ProcessState,
    options: &RestoreOptions,
) -> Result<()> {
    if u64::from(manifest.page_size) != pagetrail::page_size() {
        return Err(Error::refused("the checkpoint has pages of another size"));
    }
    let threads = process.threads.iter().map(|thread| thread.held.tid);
    if !threads.eq(state.kernel.threads.iter().map(|thread| thread.tid)) {
        return Err(Error::refused(
            "the checkpoint contradicts itself about threads",
        ));
    }
    if process.threads.is_empty() || process.threads[0].held.tid != process.pid {
        return Err(Error::refused("the main thread of the process had ended"));
    }
    if std::fs::metadata(&state.directory).is_err() {
        return Err(Error::refused(format!(
            "the working directory {} is not there now",
            state.directory
        )));
    }
    check_mapped(manifest, state, options)?;
    for file in &state.files {
        files::decide(file, &state.files, options)?;
    }
    Ok(())
}

fn check_mapped(manifest: &Manifest, state: &ProcessState, options: &RestoreOptions) -> Result<()> {
    let mut seen = BTreeSet::new();
    for mapping in manifest.process_mappings() {
        let is_memory = objects::of_mapping(&state.objects.memory, mapping).is_some();
        if !is_file(mapping) || is_kernels(&mapping.name) || is_memory {
            continue;
        }
        if seen.insert(&mapping.name) {
            check_file(mapping, state, options)?;
        }
    }
    Ok(())
}

fn check_file(mapping: &Mapping, state: &ProcessState, options: &RestoreOptions) -> Result<()> {
    let name = &mapping.name;
    let unreadable = |error| {
        Error::refused(format!(
            "the program had mapped {name}, which cannot be opened now: {error}"
        ))
    };
    // A named pipe that has taken the file's place is not waited for.
    let mut how = File::options();
    how.read(true).custom_flags(libc::O_NONBLOCK);
    let file = how.open(name).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    let changed = || {
        Err(Error::refused(format!(
            "the program had mapped {name}, which has changed since the checkpoint"
        )))
    };
    if !metadata.is_file() {
        return changed();
    }
    if options.allow_changed_files {
        return Ok(());
    }
    if mapping.build_id.is_empty() {
        let now = MappedFile::of(name, &metadata);
        let same = match state.mapped.iter().find(|then| then.path == *name) {
            Some(then) => *then == now,
            // What it shows of a shared mapping is compared when that is mapped.
            None => metadata.ino() == mapping.inode,
        };
        return if same { Ok(()) } else { changed() };
    }
    let mut head = Vec::new();
    file.take(HEAD_BYTES)
        .read_to_end(&mut head)
        .map_err(unreadable)?;
    match build_id_of(&head).is_some_and(|id| id == mapping.build_id) {
        true => Ok(()),
        false => changed(),
    }
}
