//! What documents of `compare` have of a guest, in lines.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::Value;

/// Each test, by its suite, and what was measured of it in the guest.
pub(super) fn guests(document: &Value) -> impl Iterator<Item = (String, &Value)> {
    let suites = document["suites"].as_array().into_iter().flatten();
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    suites.flat_map(move |suite| {
        let tests = suite["tests"].as_array().into_iter().flatten();
        tests.filter_map(move |test| {
            let name = format!("{}/{}", word(&suite["name"]), word(&test["name"]));
            let mut places = test["environments"].as_array()?.iter();
            let guest = places.find(|place| word(&place["environment"]) != "native")?;
            Some((name, guest))
        })
    })
}

/// A test, what was counted, and how often with nested paging and with shadow page tables.
pub(super) type Count = (String, String, [f64; 2]);

/// Of each test that was measured with both, all that was counted with either.
pub(super) fn counts(nested: &Value, shadow: &Value) -> Vec<Count> {
    let mut rows = Vec::new();
    for (test, nested) in guests(nested) {
        let Some((_, shadow)) = guests(shadow).find(|(other, _)| *other == test) else {
            continue;
        };
        let both = [nested, shadow].map(of_a_guest);
        let names: BTreeSet<&String> = both.iter().flat_map(BTreeMap::keys).collect();
        rows.extend(names.into_iter().map(|name| {
            let counts = both.each_ref().map(|counts| counts.get(name));
            let counts = counts.map(|count| count.copied().unwrap_or_default());
            (test.clone(), name.clone(), counts)
        }));
    }
    rows
}

/// KVM's counters, and of the run under probes exits by reason, events and calls of functions.
fn of_a_guest(guest: &Value) -> BTreeMap<String, f64> {
    let mut counts = BTreeMap::new();
    let mut add = |name: String, count: &Value| {
        counts.insert(name, count.as_f64().unwrap_or_default());
    };
    for (name, count) in guest["kvm"].as_object().into_iter().flatten() {
        add(format!("counter {name}"), count);
    }
    let lists = [
        ("exits", "count", "exit"),
        ("events", "count", "event"),
        ("functions", "calls", "calls of"),
    ];
    for (list, field, what) in lists {
        for found in guest["probed"][list].as_array().into_iter().flatten() {
            let name = found["name"].as_str().unwrap_or_default();
            add(format!("{what} {name}"), &found[field]);
        }
    }
    counts
}

/// Counts with nested paging beside those with shadow page tables.
pub(super) fn table(rows: &[Count]) -> String {
    let mut text = format!(
        "{:<14} {:<44} {:>12} {:>12}\n",
        "in a guest", "", "nested", "shadow"
    );
    for (test, name, [nested, shadow]) in rows {
        // Writing to a text does not fail.
        let _ = writeln!(text, "{test:<14} {name:<44} {nested:>12} {shadow:>12}");
    }
    text
}

/// What of its score each test loses in the guest, in per cent.
pub(super) fn losses(document: &Value) -> String {
    let mut text = String::new();
    for (test, guest) in guests(document) {
        let ratio = guest["ratio"]["median"].as_f64().unwrap_or(f64::NAN);
        let _ = writeln!(text, "{test:<28} {:>8.2} % lost", 100.0 - 100.0 / ratio);
    }
    text
}
