//! The commands about checkpoints: `checkpoint` takes them, the others use the chain.

pub(crate) mod args;
pub(crate) mod chain;
mod complaints;
mod image;
pub(crate) mod json;
pub(crate) mod lock;
mod metrics;
mod restorable;
mod take;
pub(crate) mod text;
pub(crate) mod tree;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use pagetrail_checkpoint::storage::{self, Encrypted, Key};
use pagetrail_checkpoint::{Error, Store, Writer};
use pagetrail_report::words;

use self::args::{CheckpointCommand, KeyArgs, WritingArgs};
use crate::exit;

/// Runs one of the subcommands.
pub(crate) fn run(command: &CheckpointCommand) -> Result<ExitCode> {
    match command {
        CheckpointCommand::Checkpoint(args) => restorable::take(args),
        CheckpointCommand::Log(args) => chain::log(args),
        CheckpointCommand::Show(args) => chain::show(args),
        CheckpointCommand::Changed(args) => image::changed(args),
        CheckpointCommand::Diff(args) => chain::diff(args),
        CheckpointCommand::Verify(args) => chain::verify(args),
        CheckpointCommand::Prune(args) => chain::prune(args),
        CheckpointCommand::Repair(args) => chain::repair(args),
        CheckpointCommand::Squash(args) => chain::squash(args),
        CheckpointCommand::Export(args) => image::export(args),
        CheckpointCommand::Rewind(args) => image::rewind(args),
    }
}

/// The error with its cause first, by which the exit code is chosen.
pub(crate) fn plain(error: Error) -> anyhow::Error {
    match error {
        Error::Process(error) => error.into(),
        Error::Encrypted { .. } => {
            anyhow::anyhow!("{error}; --key-file says where it is")
        }
        Error::WorldWritable { .. } => {
            anyhow::anyhow!("{error}; --allow-world-writable lets it be used all the same")
        }
        error => error.into(),
    }
}

/// Opens the store at a place to write, and says what is damaged there.
pub(crate) fn writer(path: &Path, args: &WritingArgs, make: bool) -> Result<Writer> {
    warned(path, open_writer(path, args, make)?)
}

/// Says what a writer found damaged.
fn warned(path: &Path, writer: Writer) -> Result<Writer> {
    for damage in writer.damages() {
        exit::message(&words::printable(damage));
    }
    if !writer.damages().is_empty() {
        exit::message(&format!(
            "new checkpoints do not build on what is damaged; to set it aside: pagetrail repair {}",
            words::printable(&path.display().to_string())
        ));
    }
    Ok(writer)
}

/// Opens the store at a place to write; with `make`, also where there is none yet.
fn open_writer(path: &Path, args: &WritingArgs, make: bool) -> Result<Writer> {
    let options = args.options(false);
    let store = store(path, args, make)?;
    lock::waited(args.lock_wait, || store.writer(options))
}

/// Opens the store at a place to write checkpoints from which processes are started without CRIU,
/// or not.
fn writer_of(path: &Path, args: &WritingArgs, is_restorable: bool) -> Result<Writer> {
    let options = args.options(is_restorable);
    let store = store(path, args, true)?;
    warned(
        path,
        lock::waited(args.lock_wait, || store.writer(options))?,
    )
}

/// Opens the store at a place to read.
pub(crate) fn open(path: &Path, key: &KeyArgs) -> Result<Store> {
    tree::refuse(path)?;
    let Some(key) = read_key(key)? else {
        return Store::open(path).map_err(plain);
    };
    let place = storage::open(path).map_err(plain)?;
    let encrypted = Encrypted::open(place, &key).map_err(plain)?;
    Store::on(Arc::new(encrypted)).map_err(plain)
}

/// Reads the key file, where there is to be one.
fn read_key(args: &KeyArgs) -> Result<Option<Key>> {
    let key = args.key_file.as_deref().map(Key::from_file);
    key.transpose().map_err(plain)
}

/// Opens the store at a place that may be written to; with `make`, also where there is none yet.
pub(crate) fn store(path: &Path, args: &WritingArgs, make: bool) -> Result<Store> {
    tree::refuse(path)?;
    if !make {
        open(path, &args.key)?;
    }
    let key = read_key(&args.key)?;
    let place = storage::create(path, args.exposed()).map_err(plain)?;
    let store = match key {
        Some(key) => Encrypted::create(place, &key).map(|place| Store::create_on(Arc::new(place))),
        None => Ok(Store::create_on(place)),
    };
    store.and_then(|store| store).map_err(plain)
}
