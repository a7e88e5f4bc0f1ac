//! `pagetrail log`, `show`, `diff`, `verify`, `prune`, `squash`: what a store holds, and making it
//! smaller.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use pagetrail_checkpoint::{Error, Image, Manifest, Pruned, Retention, Store, spans};
use pagetrail_report::words;

use super::args::{
    DiffArgs, LogArgs, PruneArgs, RepairArgs, ShowArgs, SquashArgs, VerifyArgs, Which,
};
use super::{json, open, open_writer, plain, text, tree, writer};
use crate::exit;
use crate::session::waiting::{ProgressArgs, Waiting};

/// Runs `log`.
pub(super) fn log(args: &LogArgs) -> Result<ExitCode> {
    if let Some(store) = tree::at(&args.store)? {
        return tree::log(&store, args);
    }
    let store = open(&args.store, &args.key)?;
    let survey = store.survey().map_err(plain)?;
    let manifests: Vec<&Manifest> = survey.whole().collect();
    text::print(&match args.json {
        true => json::log(&manifests, &survey).to_string(),
        false if manifests.is_empty() => "no checkpoint".into(),
        false => text::log(&manifests),
    })?;
    for damage in survey.damages() {
        exit::message(&words::printable(&damage));
    }
    if !survey.lost().is_empty() {
        exit::message(&format!("{} set aside what is damaged", cure(&args.store)));
        return Ok(ExitCode::from(exit::NEGATIVE));
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `show`.
pub(super) fn show(args: &ShowArgs) -> Result<ExitCode> {
    if let Some(store) = tree::at(&args.store)? {
        return tree::show(&store, args);
    }
    let store = open(&args.store, &args.key)?;
    let image = image(&store, args.number.as_ref())?;
    let contents = image.pages().bytes();
    text::print(&match args.json {
        true => json::show(image.manifest(), contents).to_string(),
        false => text::show(image.manifest(), contents),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Opens a checkpoint, or else the newest.
pub(crate) fn image(store: &Store, which: Option<&Which>) -> Result<Image> {
    if let Some(which) = which {
        let number = which.number(store).map_err(plain)?;
        return store.image(number).map_err(plain);
    }
    match store.newest_image() {
        Err(error @ Error::Damaged { .. }) => {
            let survey = store.survey().map_err(plain)?;
            let newest = survey.whole().next_back().map(|manifest| manifest.number);
            let cure = newest.map_or("no other can be read either".into(), |number| {
                format!("the newest that can be read is {number}")
            });
            Err(anyhow::anyhow!("{error}; {cure}"))
        }
        outcome => outcome.map_err(plain),
    }
}

/// Runs `diff`.
pub(super) fn diff(args: &DiffArgs) -> Result<ExitCode> {
    let store = open(&args.store, &args.key)?;
    let waiting = Waiting::during("comparing the checkpoints");
    let (first, second) = (
        args.first.number(&store).map_err(plain)?,
        args.second.number(&store).map_err(plain)?,
    );
    let diffs = store.diff(first, second).map_err(plain)?;
    drop(waiting);
    text::print(&match args.json {
        true => json::diff(first, second, &diffs).to_string(),
        false => {
            let first = store.manifest(first).map_err(plain)?;
            let second = store.manifest(second).map_err(plain)?;
            text::diff(&diffs, first.saved_bytes().max(second.saved_bytes()))
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `verify`.
pub(super) fn verify(args: &VerifyArgs) -> Result<ExitCode> {
    let VerifyArgs { of: args, progress } = args;
    if let Some(store) = tree::at(&args.store)? {
        return tree::verify(&store, args);
    }
    let sound = |found: bool| ExitCode::from(if found { 0 } else { exit::NEGATIVE });
    let store = match open(&args.store, &args.key) {
        // The marker is a part of the store like any other.
        Err(error) if matches!(error.downcast_ref(), Some(Error::Damaged { .. })) => {
            exit::message(&error.to_string());
            return Ok(sound(false));
        }
        outcome => outcome?,
    };
    let waiting = Waiting::on("verifying the store", store.progress(), *progress);
    let found = store.verify().map_err(plain)?;
    drop(waiting);
    if args.json {
        text::print(&json::verified(&found).to_string())?;
        return Ok(sound(found.is_sound()));
    }
    for damage in &found.damages {
        exit::message(&words::printable(damage));
    }
    if !found.is_sound() {
        let lost = match &found.lost[..] {
            [] => "no checkpoint is lost".into(),
            lost => format!("lost: {}", spans(lost)),
        };
        let whole = found.checkpoints - found.lost.len() as u64;
        exit::message(&format!(
            "{lost}; {} whole; {} set aside what is damaged",
            match whole {
                1 => "1 other is".into(),
                whole => format!("{whole} others are"),
            },
            cure(&args.store)
        ));
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
    let rule = args.rules.rule();
    if args.dry_run {
        return prunable(args, &rule);
    }
    let mut writer = writer(&args.store, &args.writing, false)?;
    let progress = writer.store().progress();
    let waiting = Waiting::on("verifying and pruning the store", progress, args.progress);
    let pruned = writer.prune_verified(&rule).map_err(plain)?;
    drop(waiting);
    tell(&pruned, args.json)
}

/// Says what `prune` would remove.
fn prunable(args: &PruneArgs, rule: &Retention) -> Result<ExitCode> {
    let store = open(&args.store, &args.writing.key)?;
    let waiting = Waiting::on("verifying the store", store.progress(), args.progress);
    let going = store.prunable(rule).map_err(plain)?;
    drop(waiting);
    text::print(&match args.json {
        true => json::prunable(&going).to_string(),
        false if going.is_empty() => "nothing would be removed".into(),
        false => format!(
            "{} would be removed: {}",
            words::plural(going.len() as u64, "checkpoint"),
            spans(&going)
        ),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `squash`.
pub(super) fn squash(args: &SquashArgs) -> Result<ExitCode> {
    let mut writer = writer(&args.store, &args.writing, false)?;
    let progress = writer.store().progress();
    let waiting = Waiting::on("merging checkpoints", progress, args.progress);
    let first = args.first.number(writer.store()).map_err(plain)?;
    let last = args.last.number(writer.store()).map_err(plain)?;
    let pruned = writer.squash(first, last).map_err(plain)?;
    drop(waiting);
    tell(&pruned, args.json)
}

/// Runs `repair`.
pub(super) fn repair(args: &RepairArgs) -> Result<ExitCode> {
    // It says itself what is damaged.
    let mut writer = open_writer(&args.store, &args.writing, false)?;
    let progress = writer.store().progress();
    let waiting = Waiting::on("repairing the store", progress, ProgressArgs::default());
    let repaired = writer.repair().map_err(plain)?;
    drop(waiting);
    if args.json {
        text::print(&json::repaired(&repaired).to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    for damage in &repaired.damages {
        exit::message(&words::printable(damage));
    }
    let lost = match &repaired.lost[..] {
        [] => String::new(),
        lost => format!(", lost: {}", spans(lost)),
    };
    text::print(&match repaired.damages.is_empty() {
        true => "nothing is damaged".into(),
        false => format!(
            "{} whole{lost}; {} set aside, {} written anew",
            words::plural(repaired.whole, "checkpoint"),
            words::plural(repaired.set_aside.len() as u64, "file"),
            words::plural(repaired.repacked, "pack")
        ),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The command that repairs a store, as the beginning of a sentence.
fn cure(store: &Path) -> String {
    let store = store.display().to_string();
    format!("pagetrail repair {} will", words::printable(&store))
}

fn tell(pruned: &Pruned, as_json: bool) -> Result<ExitCode> {
    text::print(&match as_json {
        true => json::pruned(pruned).to_string(),
        false => format!(
            "{} and {} removed, {} made smaller{}",
            words::plural(pruned.checkpoints, "checkpoint"),
            words::plural(pruned.packs, "pack"),
            words::plural(pruned.repacked, "pack"),
            match pruned.damaged {
                0 => String::new(),
                damaged => format!(
                    "; {} that cannot be read wholly stay",
                    words::plural(damaged, "checkpoint")
                ),
            }
        ),
    })?;
    Ok(ExitCode::SUCCESS)
}
