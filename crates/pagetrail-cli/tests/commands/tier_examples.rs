//! The files in `docs/examples` that go with `pagetrail tier` are what they claim to be.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::thread;

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
    let output = crate::common::run(directory, &["tier", "status", "--config", "tier.toml"]);
    let line = crate::common::error_line(&output, 2);
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
    let output = crate::common::run(directory, &["tier", "status", "--config", "tier.toml"]);
    let line = crate::common::error_line(&output, 2);
    assert!(line.contains("nobody answers"), "{line}");
    // Without the host's processes there is nothing to keep.
    assert!(yaml.contains("hostPID: true"));
}

/// A daemon that hangs still answers: its numbers are served by a thread of their own.
#[test]
fn the_probe_of_the_daemonset_fails_where_the_status_is_old() {
    let yaml = example("pagetrail-tier-daemonset.yaml");
    let (_, probe) = yaml.split_once("livenessProbe:").expect("a probe");
    let (_, line) = probe.split_once("command: ").expect("its command");
    let words: Vec<String> =
        serde_json::from_str(line.lines().next().expect("a list")).expect("JSON");
    assert_eq!(words[1..4], ["tier", "status", "--config"]);
    assert_eq!(words[5..], ["--max-age", "2m"]);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let directory = directory.path();
    // A daemon of so many seconds ago.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address").to_string();
    let text =
        format!("listen = \"{address}\"\n[[target]]\nname = \"a\"\npid = 1\nfast = \"1M\"\n");
    fs::write(directory.join("tier.toml"), text).expect("written");
    let serving = thread::spawn(move || {
        let body = r#"{"schema":1,"pid":4711,"mode":"island","dry_run":false,"uptime_s":400.0,
            "fast_bytes":0,"fast_free_bytes":0,"reloads":0,"targets":[]}"#;
        for age in [1, 30, 121] {
            let (mut client, _) = listener.accept().expect("a client");
            // All of it: what is left unread resets the connection.
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut part = [0; 1000];
                let length = client.read(&mut part).expect("a request");
                assert_ne!(length, 0, "the request ends early");
                request.extend_from_slice(&part[..length]);
            }
            let head = format!("HTTP/1.1 200 OK\r\nAge: {age}\r\nConnection: close\r\n\r\n");
            let written = client.write_all((head + body).as_bytes());
            written.expect("it is read");
        }
    });
    let ask = || {
        let mut arguments = vec!["tier", "status", "--config", "tier.toml"];
        arguments.extend(words[5..].iter().map(String::as_str));
        crate::common::run(directory, &arguments)
    };
    let fresh = ask();
    assert_eq!(fresh.status.code(), Some(0), "{fresh:?}");
    assert!(!String::from_utf8_lossy(&fresh.stdout).contains("ago"));
    let older = ask();
    assert_eq!(older.status.code(), Some(0), "{older:?}");
    let text = String::from_utf8_lossy(&older.stdout);
    assert!(text.contains("as it was 30.0 s ago"), "{text}");
    let line = crate::common::error_line(&ask(), 2);
    assert!(
        line.contains("process 4711 does not go on; start it again"),
        "{line}"
    );
    serving.join().expect("it was asked three times");
}

#[test]
fn the_dashboard_asks_for_numbers_that_there_are() {
    let dashboard: Value = serde_json::from_str(&example("tier-dashboard.json")).expect("JSON");
    let source = include_str!("../../../pagetrail-tier-service/src/metrics.rs");
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
