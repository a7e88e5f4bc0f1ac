//! Checkpoints as JSON, schema 1. Within a schema number fields are only ever added; addresses are
//! hexadecimal text, sizes bytes, times nanoseconds.

use pagetrail::Overhead;
use pagetrail_checkpoint::{Label, Manifest, MappingDiff, Pruned, Repaired, Survey, Verified};
use serde_json::{Value, json};

const SCHEMA: u32 = 1;

/// A checkpoint in a line.
pub(crate) fn checkpoint(manifest: &Manifest) -> Value {
    let cost = &manifest.cost;
    json!({
        "schema": SCHEMA,
        "number": manifest.number,
        "id": manifest.id.to_string(),
        "parent": manifest.parent.map(|parent| parent.number),
        "label": manifest.label.as_ref().map(Label::as_str),
        "taken_unix_ns": manifest.taken_unix_ns,
        "pid": manifest.process.as_ref().map(|process| process.pid),
        "command": manifest.process.as_ref().map(|process| &process.command),
        "by_criu": manifest.is_by_criu(),
        "page_size": manifest.page_size,
        "changed_pages": manifest.changed_pages(),
        "saved_bytes": manifest.saved_bytes(),
        "copied_pages": cost.copied_pages,
        "stopped_pages": cost.stopped_pages,
        "stored_pages": cost.stored_pages,
        "stored_bytes": cost.stored_bytes,
        "manifest_bytes": manifest.manifest_bytes,
        "rounds": cost.rounds,
        "pause_ns": cost.pause_ns,
        "total_ns": cost.total_ns,
    })
}

/// A checkpoint that was just taken, and what it cost the process where that is known.
pub(super) fn taken(manifest: &Manifest, overhead: Option<Overhead>) -> Value {
    let mut document = checkpoint(manifest);
    if let Some(overhead) = overhead {
        document["overhead"] = json!({
            "allowed_share": overhead.allowed,
            "share": overhead.share,
            "faults": overhead.faults,
            "stopped_ns": overhead.stopped.as_nanos() as u64,
            "next_ns": overhead.next.as_nanos() as u64,
            "is_kept": overhead.is_kept,
        });
    }
    document
}

/// The list of `log`.
pub(super) fn log(manifests: &[&Manifest], survey: &Survey) -> Value {
    let checkpoints: Vec<Value> = manifests.iter().copied().map(checkpoint).collect();
    let lost = survey
        .lost()
        .iter()
        .map(|(number, reason)| json!({ "number": number, "reason": reason }));
    json!({
        "schema": SCHEMA,
        "checkpoints": checkpoints,
        "lost": lost.collect::<Vec<_>>(),
    })
}

/// All of a checkpoint.
pub(super) fn show(manifest: &Manifest, contents: u64) -> Value {
    let mut document = checkpoint(manifest);
    let mappings = manifest.mappings.iter().map(|mapping| {
        json!({
            "start": hex(mapping.range.start()),
            "end": hex(mapping.range.end()),
            "permissions": mapping.permissions.to_string(),
            "offset": mapping.offset,
            "inode": mapping.inode,
            "name": mapping.name,
            "build_id": digits(&mapping.build_id),
            "saved": mapping.saved,
            "own_writes_only": mapping.own_writes_only,
        })
    });
    document["content_bytes"] = contents.into();
    document["mappings"] = mappings.collect();
    if let Some(process) = &manifest.process {
        let threads = process.threads.iter().map(|thread| {
            let registers = thread
                .held
                .registers
                .iter()
                .map(|set| json!({ "note": set.note, "bytes": digits(&set.bytes) }));
            json!({
                "tid": thread.held.tid,
                "name": thread.name,
                "blocked_signals": hex(thread.held.blocked_signals),
                "registers": registers.collect::<Vec<_>>(),
            })
        });
        let descriptors = process.descriptors.iter().map(|descriptor| {
            json!({
                "number": descriptor.number,
                "target": descriptor.target,
                "position": descriptor.position,
                "flags": descriptor.flags,
            })
        });
        document["executable"] = process.executable.clone().into();
        document["threads"] = threads.collect();
        document["descriptors"] = descriptors.collect();
    }
    document
}

/// The differences of `diff`.
pub(super) fn diff(first: u64, second: u64, diffs: &[MappingDiff]) -> Value {
    let mappings = diffs.iter().map(|diff| {
        let ranges = diff.pages.ranges().iter();
        json!({
            "start": hex(diff.range.start()),
            "end": hex(diff.range.end()),
            "name": diff.name,
            "in_first": diff.present.0,
            "in_second": diff.present.1,
            "pages": diff.pages.page_count(),
            "ranges": ranges.map(|range| [hex(range.start()), hex(range.end())]).collect::<Vec<_>>(),
        })
    });
    json!({
        "schema": SCHEMA,
        "first": first,
        "second": second,
        "mappings": mappings.collect::<Vec<_>>(),
    })
}

/// What `verify` found.
pub(super) fn verified(found: &Verified) -> Value {
    json!({
        "schema": SCHEMA,
        "sound": found.is_sound(),
        "checkpoints": found.checkpoints,
        "packs": found.packs,
        "pages": found.pages,
        "unused_packs": found.unused_packs,
        "damages": found.damages,
        "lost": found.lost,
    })
}

/// What `repair` did.
pub(super) fn repaired(repaired: &Repaired) -> Value {
    json!({
        "schema": SCHEMA,
        "damages": repaired.damages,
        "lost": repaired.lost,
        "whole": repaired.whole,
        "set_aside": repaired.set_aside,
        "repacked_packs": repaired.repacked,
    })
}

/// What `prune` and `squash` did.
pub(super) fn pruned(pruned: &Pruned) -> Value {
    json!({
        "schema": SCHEMA,
        "removed_checkpoints": pruned.checkpoints,
        "removed_packs": pruned.packs,
        "repacked_packs": pruned.repacked,
        "damaged_checkpoints": pruned.damaged,
    })
}

/// What `prune --dry-run` found.
pub(super) fn prunable(going: &[u64]) -> Value {
    json!({
        "schema": SCHEMA,
        "would_remove": going,
    })
}

fn hex(value: u64) -> String {
    format!("{value:#x}")
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
