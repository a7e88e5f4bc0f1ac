//! What memory the OoH paper's programs take in its configurations (table II): ours after GCBench
//! and the Phoenix suite, which say it themselves, and tkrzw's engines by tkrzw's own tool.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use pagetrail_steps::recordings::{self, Place};
use pagetrail_steps::repo::{Repo, program};

/// The paper's name of a program, and ours.
const PROGRAMS: [(&str, &str); 7] = [
    ("gcbench", "gcbench"),
    ("histogram", "histogram"),
    ("kmeans", "kmeans"),
    ("matrix-multiply", "matmul"),
    ("pca", "pca"),
    ("string-match", "stringmatch"),
    ("word-count", "wordcount"),
];
/// Sizes of the programs that are the paper's configurations.
const CONFIGURATIONS: [(&str, u32); 3] = [("small", 4), ("medium", 5), ("large", 6)];

/// tkrzw's engines, and the words after `--dbm` in the three configurations.
const ENGINES: [(&str, [&str; 3]); 5] = [
    (
        "baby",
        [
            "--iter 3M --threads 3",
            "--iter 5M --threads 3",
            "--iter 10M --threads 3",
        ],
    ),
    (
        "cache",
        [
            "--iter 3M --cap_rec_num 3M --threads 5",
            "--iter 5M --cap_rec_num 5M --threads 5",
            "--iter 10M --cap_rec_num 10M --threads 5",
        ],
    ),
    (
        "stdhash",
        [
            "--iter 3M --buckets 100K --record_comp zlib --threads 2",
            "--iter 5M --buckets 100K --record_comp zlib --threads 2",
            "--iter 10M --buckets 100K --record_comp zlib --threads 2",
        ],
    ),
    (
        "stdtree",
        [
            "--iter 3M --threads 2",
            "--iter 5M --threads 2",
            "--iter 10M --threads 2",
        ],
    ),
    (
        "tiny",
        [
            "--iter 5M --buckets 30M --threads 3",
            "--iter 5M --buckets 30M --threads 5",
            "--iter 5M --buckets 30M --threads 7",
        ],
    ),
];
/// tkrzw's tool, of the package tkrzw-utils.
const TKRZW: &str = "tkrzw_dbm_perf";
/// How often the most memory of a running program is looked up.
const LOOK: Duration = Duration::from_millis(5);

/// Runs each program once in each configuration, and replaces the recorded results.
pub(super) fn bench(repo: &Repo) -> Result<()> {
    let directory = super::programs(repo)?;
    let mut programs = Vec::new();
    let mut add = |application: &str, configuration: &str, resident: u64, command: &str| {
        println!("{application}, {configuration}: {} MiB", resident >> 20);
        programs.push(json!({
            "application": application,
            "configuration": configuration,
            "resident_bytes": resident,
            "command": command,
        }));
    };
    for (application, name) in PROGRAMS {
        for (configuration, size) in CONFIGURATIONS {
            let mut run = Command::new(directory.join(name));
            let output = run.args([&size.to_string(), "off"]).output()?;
            ensure!(output.status.success(), "{name} {size}: {}", output.status);
            let said: Value = serde_json::from_slice(&output.stdout)?;
            let resident = said["resident_bytes"].as_u64();
            let resident = resident.context("no resident_bytes")?;
            add(
                application,
                configuration,
                resident,
                &format!("{name} {size} off"),
            );
        }
    }
    let mut absent: Vec<Value> = Vec::new();
    if program(TKRZW).is_none() {
        println!("without tkrzw's engines: apt-get install tkrzw-utils");
        absent.push(json!({"applications": "tkrzw", "reason": "no tkrzw-utils here"}));
    } else {
        for (engine, configurations) in ENGINES {
            for ((configuration, _), words) in CONFIGURATIONS.into_iter().zip(configurations) {
                let command = format!("{TKRZW} sequence --set_only --dbm {engine} {words}");
                match resident_of(&command) {
                    Ok(resident) => add(engine, configuration, resident, &command),
                    Err(error) => {
                        println!("{engine}, {configuration}: {error:#}");
                        let reason = format!("{error:#}");
                        absent.push(json!({"applications": engine, "reason": reason}));
                    }
                }
            }
        }
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let results = json!({
        "schema": 1,
        "kernel": release.trim(),
        "programs": programs,
        "absent": absent,
    });
    let text = serde_json::to_string_pretty(&results)? + "\n";
    let command = "cargo xtask bench collector memory";
    recordings::keep(
        repo,
        "programs_memory.json",
        text.as_bytes(),
        Place::Here,
        command,
    )
}

/// The most memory that a command had, in bytes, by proc_pid_status(5). It is looked up until the
/// command has ended: what it took in its last milliseconds can go unseen.
fn resident_of(command: &str) -> Result<u64> {
    let mut words = command.split(' ');
    let name = words.next().context("no command")?;
    let mut child = Command::new(name)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot run {name}"))?;
    let path = format!("/proc/{}/status", child.id());
    let mut resident = 0;
    let status = loop {
        let seen = fs::read_to_string(&path)
            .ok()
            .and_then(|text| high_water(&text));
        resident = resident.max(seen.unwrap_or(0));
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => thread::sleep(LOOK),
            Err(error) => {
                // Best effort: the error is what counts.
                let _ = child.kill();
                return Err(error.into());
            }
        }
    };
    ensure!(status.success(), "{command}: {status}");
    ensure!(resident > 0, "{command}: ended before it was looked at");
    Ok(resident)
}

/// VmHWM of a status file, in bytes.
fn high_water(status: &str) -> Option<u64> {
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_memory_is_that_of_the_command() {
        assert_eq!(high_water("Name:\tx\nVmHWM:\t    12 kB\n"), Some(12 << 10));
        assert_eq!(high_water("VmHWM:\n"), None);
        let slept = resident_of("sleep 0.1").unwrap();
        assert!((1 << 16..1 << 28).contains(&slept), "{slept}");
        assert!(resident_of("false").is_err());
        assert!(resident_of("/nowhere/at/all").is_err());
    }
}
