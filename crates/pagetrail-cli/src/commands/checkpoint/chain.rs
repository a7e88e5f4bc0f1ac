//! `pagetrail log`, `show`, `diff`, `verify`, `prune`, `squash`: what a store holds, and making it smaller.

use std::process::ExitCode;

use anyhow::Result;
use pagetrail_checkpoint::{Manifest, Pruned, Store};

use super::args::{DiffArgs, LogArgs, PruneArgs, ShowArgs, SquashArgs};
use super::{json, plain, text, writer};
use crate::exit;
use crate::report::words;

/// Runs `log`.
pub(super) fn log(args: &LogArgs) -> Result<ExitCode> {
    let store = Store::open(&args.store).map_err(plain)?;
    let numbers = store.numbers().map_err(plain)?;
    let manifests = numbers.into_iter().map(|number| store.manifest(number));
    let manifests: Vec<Manifest> = manifests.collect::<Result<_, _>>().map_err(plain)?;
    text::print(&match args.json {
        true => json::log(&manifests).to_string(),
        false if manifests.is_empty() => "no checkpoint".into(),
        false => text::log(&manifests),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `show`.
pub(super) fn show(args: &ShowArgs) -> Result<ExitCode> {
    let store = Store::open(&args.store).map_err(plain)?;
    let number = match args.number {
        Some(number) => number,
        None => store.newest().map_err(plain)?,
    };
    let image = store.image(number).map_err(plain)?;
    let contents = image.pages().bytes();
    text::print(&match args.json {
        true => json::show(image.manifest(), contents).to_string(),
        false => text::show(image.manifest(), contents),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `diff`.
pub(super) fn diff(args: &DiffArgs) -> Result<ExitCode> {
    let store = Store::open(&args.store).map_err(plain)?;
    let diffs = store.diff(args.first, args.second).map_err(plain)?;
    text::print(&match args.json {
        true => json::diff(args.first, args.second, &diffs).to_string(),
        false => text::diff(&diffs),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `verify`.
pub(super) fn verify(args: &LogArgs) -> Result<ExitCode> {
    let sound = |found: bool| ExitCode::from(if found { 0 } else { exit::NEGATIVE });
    let store = match Store::open(&args.store) {
        // The marker is a part of the store like any other.
        Err(error @ pagetrail_checkpoint::Error::Damaged { .. }) => {
            exit::message(&error.to_string());
            return Ok(sound(false));
        }
        outcome => outcome.map_err(plain)?,
    };
    let found = store.verify().map_err(plain)?;
    if args.json {
        text::print(&json::verified(&found).to_string())?;
        return Ok(sound(found.is_sound()));
    }
    for damage in &found.damages {
        exit::message(damage);
    }
    let verdict = match found.damages.len() {
        0 => "all as it was written".into(),
        count => words::plural(count as u64, "damage"),
    };
    let unused = match found.unused_packs {
        0 => String::new(),
        count => format!(
            "; {} that no checkpoint needs",
            words::plural(count, "pack")
        ),
    };
    text::print(&format!(
        "{} and {} with {} checked: {verdict}{unused}",
        words::plural(found.checkpoints, "checkpoint"),
        words::plural(found.packs, "pack"),
        words::plural(found.pages, "page"),
    ))?;
    Ok(sound(found.is_sound()))
}

/// Runs `prune`.
pub(super) fn prune(args: &PruneArgs) -> Result<ExitCode> {
    let mut writer = writer(&args.store, &args.writing, false)?;
    let pruned = writer.prune(args.keep as usize).map_err(plain)?;
    tell(&pruned, args.json)
}

/// Runs `squash`.
pub(super) fn squash(args: &SquashArgs) -> Result<ExitCode> {
    let mut writer = writer(&args.store, &args.writing, false)?;
    let pruned = writer.squash(args.first, args.last).map_err(plain)?;
    tell(&pruned, args.json)
}

fn tell(pruned: &Pruned, as_json: bool) -> Result<ExitCode> {
    text::print(&match as_json {
        true => json::pruned(pruned).to_string(),
        false => format!(
            "{} and {} removed, {} made smaller",
            words::plural(pruned.checkpoints, "checkpoint"),
            words::plural(pruned.packs, "pack"),
            words::plural(pruned.repacked, "pack")
        ),
    })?;
    Ok(ExitCode::SUCCESS)
}
