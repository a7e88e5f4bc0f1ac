//! The files in `docs/examples` that go with `pagetrail tier` are what they claim to be.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

fn example(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs/examples")
        .join(name);
    fs::read_to_string(path).expect("the example")
}

#[test]
fn the_configuration_is_read() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let directory = directory.path();
    fs::write(directory.join("tier.toml"), example("tier.toml")).expect("written");
    // It is fine if the daemon is asked for, and not there.
    let output = common::run(directory, &["tier", "status", "--config", "tier.toml"]);
    let line = common::error_line(&output, 2);
    assert!(
        line.contains("nobody answers at unix:/run/pagetrail/tier.sock"),
        "{line}"
    );
}

#[test]
fn the_configuration_of_the_daemonset_is_read() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let directory = directory.path();
    let yaml = example("pagetrail-tier-daemonset.yaml");
    let (_, rest) = yaml
        .split_once("  tier.toml: |\n")
        .expect("the configuration");
    let (text, _) = rest.split_once("---\n").expect("the end of the document");
    fs::write(directory.join("tier.toml"), text).expect("written");
    let output = common::run(directory, &["tier", "status", "--config", "tier.toml"]);
    let line = common::error_line(&output, 2);
    assert!(line.contains("nobody answers"), "{line}");
    // Without the host's processes there is nothing to keep.
    assert!(yaml.contains("hostPID: true"));
}

#[test]
fn the_dashboard_asks_for_numbers_that_there_are() {
    let dashboard: Value = serde_json::from_str(&example("tier-dashboard.json")).expect("JSON");
    let source = include_str!("../../pagetrail-tier-service/src/metrics.rs");
    let mut asked = BTreeSet::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().expect("targets") {
            let expression = target["expr"].as_str().expect("an expression");
            let (_, rest) = expression
                .split_once("pagetrail_tier_")
                .expect("one of ours");
            let name = rest
                .split(|c: char| !c.is_ascii_lowercase() && c != '_')
                .next();
            let name = name.expect("a name");
            asked.insert(name.strip_suffix("_total").unwrap_or(name).to_owned());
        }
    }
    assert!(asked.len() >= 10, "{asked:?}");
    for name in asked {
        assert!(source.contains(&format!("\"{name}\"")), "{name}");
    }
}
