//! `pagetrail export` and `pagetrail rewind`: what is made of a single checkpoint.

use std::process::ExitCode;

use anyhow::Result;
use pagetrail_checkpoint::Store;
use serde_json::json;

use super::args::{ExportArgs, RewindArgs};
use super::{plain, text};
use crate::exit;
use crate::report::words;

/// Runs `export`.
pub(super) fn export(args: &ExportArgs) -> Result<ExitCode> {
    let store = Store::open(&args.store).map_err(plain)?;
    let number = match args.at {
        Some(number) => number,
        None => store.newest().map_err(plain)?,
    };
    let mut image = store.image(number).map_err(plain)?;
    if let Some(path) = &args.core {
        image.export_core(path).map_err(plain)?;
    }
    if let Some(path) = &args.raw {
        image.export_raw(path).map_err(plain)?;
    }
    let document = json!({
        "schema": 1,
        "number": number,
        "core": args.core,
        "raw": args.raw,
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

/// Runs `rewind`.
pub(super) fn rewind(args: &RewindArgs) -> Result<ExitCode> {
    let store = Store::open(&args.store).map_err(plain)?;
    let mut image = store.image(args.to).map_err(plain)?;
    let rewound = image.rewind(args.pid).map_err(plain)?;
    if rewound.later_bytes > 0 {
        exit::message(&format!(
            "{} that the process has mapped since stay mapped, unknown to it",
            words::bytes(rewound.later_bytes as f64)
        ));
    }
    let document = json!({
        "schema": 1,
        "number": args.to,
        "pages": rewound.pages,
        "pause_ns": rewound.pause.as_nanos() as u64,
        "later_bytes": rewound.later_bytes,
    });
    text::print(&match args.json {
        true => document.to_string(),
        false => format!(
            "process {} is back at checkpoint {}: {} put back, stood still for {}",
            args.pid,
            args.to,
            words::plural(rewound.pages, "page"),
            words::time(rewound.pause.as_nanos() as f64)
        ),
    })?;
    Ok(ExitCode::SUCCESS)
}
