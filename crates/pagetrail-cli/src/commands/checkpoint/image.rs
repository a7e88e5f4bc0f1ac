//! `pagetrail export` and `pagetrail rewind`: what is made of a single checkpoint.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use pagetrail::Hold;
use pagetrail_checkpoint::criu::LazyPages;
use pagetrail_checkpoint::{Change, Error};
use pagetrail_report::words;
use serde_json::json;

use super::args::{ChangedArgs, ExportArgs, RewindArgs};
use super::{open, plain, text};
use crate::exit;
use crate::session::waiting::Waiting;

/// Of how many descriptors is said how they differ.
const DESCRIPTORS_SAID: usize = 10;

/// Runs `export`.
pub(super) fn export(args: &ExportArgs) -> Result<ExitCode> {
    let store = open(&args.store, &args.key)?;
    let mut image = super::chain::image(&store, args.at.as_ref())?;
    let number = image.manifest().number;
    if args.force {
        let map = args.raw.as_ref().map(|path| suffixed(path));
        for path in [&args.core, &args.raw, &map].into_iter().flatten() {
            make_room(path)?;
        }
    }
    let forms = [&args.core, &args.raw, &args.criu];
    let forms = forms.into_iter().flatten().count() as u64;
    let progress = Arc::clone(image.progress());
    progress.begin("writing pages", forms * image.stored_pages().bytes());
    let waiting = Waiting::on("writing the contents", &progress, args.progress);
    if let Some(path) = &args.core {
        image.export_core(path).map_err(exists)?;
    }
    if let Some(path) = &args.raw {
        image.export_raw(path).map_err(exists)?;
    }
    if let Some(path) = &args.criu {
        make_directory(path)?;
        let pages = match args.lazy {
            true => LazyPages::LeftToServer,
            false => LazyPages::Written,
        };
        image.export_criu(path, pages).map_err(plain)?;
    }
    progress.end();
    drop(waiting);
    let document = json!({
        "schema": 1,
        "number": number,
        // Names are bytes; JSON has text.
        "core": args.core.as_ref().map(|path| path.display().to_string()),
        "raw": args.raw.as_ref().map(|path| path.display().to_string()),
        "criu": args.criu.as_ref().map(|path| path.display().to_string()),
        "content_bytes": image.pages().bytes(),
    });
    text::print(&match args.json {
        true => document.to_string(),
        false => format!(
            "checkpoint {number} with {} of contents written",
            words::bytes(image.pages().bytes() as f64)
        ),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// What went wrong, with the cure where a file is there already.
fn exists(error: Error) -> anyhow::Error {
    match &error {
        Error::Io { what, cause } if cause.kind() == io::ErrorKind::AlreadyExists => {
            anyhow::anyhow!("{what}: it exists; --force replaces it")
        }
        _ => plain(error),
    }
}

/// Where the index of plain contents is.
fn suffixed(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".map");
    name.into()
}

/// Removes a file that is to be written anew; nothing but a file.
fn make_room(path: &Path) -> Result<()> {
    let there = fs::symlink_metadata(path);
    if there.is_ok_and(|metadata| metadata.is_file()) {
        let failed = || format!("cannot replace {}", path.display());
        fs::remove_file(path).with_context(failed)?;
    }
    Ok(())
}

/// Makes a directory for its owner alone; one that is there stays.
pub(crate) fn make_directory(path: &Path) -> Result<()> {
    let made = fs::DirBuilder::new().mode(0o700).create(path);
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        outcome => outcome.with_context(|| format!("cannot make {}", path.display())),
    }
}

/// Runs `changed`.
pub(super) fn changed(args: &ChangedArgs) -> Result<ExitCode> {
    let store = open(&args.store, &args.key)?;
    let number = match &args.at {
        Some(which) => Some(which.number(&store).map_err(plain)?),
        None => store.newest_of_process(args.pid).map_err(plain)?,
    };
    let waiting = Waiting::during("reading the memory of the process");
    let change = match number {
        Some(number) => store
            .image(number)
            .map_err(plain)?
            .change_since(args.pid)
            .map_err(plain)?,
        None => None,
    };
    drop(waiting);
    let (what, range) = match change {
        Some(Change::Mapping(range)) => ("mapping", Some(range)),
        Some(Change::Page(range)) => ("page", Some(range)),
        _ => ("none", None),
    };
    let is_changed = number.is_none() || change.is_some();
    let document = json!({
        "schema": 1,
        "changed": is_changed,
        "number": number,
        "differs": what,
        "start": range.map(|range| format!("{:#x}", range.start())),
        "end": range.map(|range| format!("{:#x}", range.end())),
    });
    text::print(&match (args.json, number, range) {
        (true, ..) => document.to_string(),
        (_, None, _) => format!("the store has no checkpoint of process {}", args.pid),
        (_, Some(number), Some(range)) => {
            format!("changed since checkpoint {number}: the {what} at {range}")
        }
        (_, Some(number), None) => format!("nothing has changed since checkpoint {number}"),
    })?;
    Ok(ExitCode::from(if is_changed { 0 } else { exit::NEGATIVE }))
}

/// Runs `rewind`.
pub(super) fn rewind(args: &RewindArgs) -> Result<ExitCode> {
    let store = open(&args.store, &args.key)?;
    let number = args.to.number(&store).map_err(plain)?;
    let mut image = store.image(number).map_err(plain)?;
    let rewound = image.rewind_held(args.pid, args.force, || {
        // A guest of KVM has its registers in its vCPUs, and holds still itself.
        match pagetrail_vm::hold_guest(args.pid)? {
            Some(held) => Ok(held),
            None => Ok(Box::new(Hold::process(args.pid)?)),
        }
    });
    let rewound = rewound.map_err(|error| match error {
        Error::Refused(reason) if reason.contains("descriptors") => {
            anyhow::anyhow!(
                "{}; --force rewinds all the same",
                words::printable(&reason)
            )
        }
        error => plain(error),
    })?;
    for line in rewound.descriptors.iter().take(DESCRIPTORS_SAID) {
        exit::message(&words::printable(line));
    }
    if let Some(more @ 1..) = rewound.descriptors.len().checked_sub(DESCRIPTORS_SAID) {
        exit::message(&format!("{more} more descriptors differ"));
    }
    if rewound.later_bytes > 0 {
        exit::message(&format!(
            "{} that the process has mapped since stay mapped, unknown to it",
            words::bytes(rewound.later_bytes as f64)
        ));
    }
    let document = json!({
        "schema": 1,
        "number": number,
        "pages": rewound.pages,
        "pause_ns": rewound.pause.as_nanos() as u64,
        "later_bytes": rewound.later_bytes,
        "descriptors": rewound.descriptors,
    });
    text::print(&match args.json {
        true => document.to_string(),
        false => format!(
            "process {} is back at checkpoint {}: {} put back, stood still for {}",
            args.pid,
            number,
            words::plural(rewound.pages, "page"),
            words::time(rewound.pause.as_nanos() as f64)
        ),
    })?;
    Ok(ExitCode::SUCCESS)
}
