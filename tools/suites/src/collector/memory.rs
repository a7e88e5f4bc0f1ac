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

use super::engines::{CONFIGURATIONS, ENGINES, TKRZW, command};

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
const SIZES: [u32; 3] = [4, 5, 6];

/// How often the most memory of a running program is looked up.
const LOOK: Duration = Duration::from_millis(5);

/// The name of the recording.
const RECORDING: &str = "programs_memory.json";

/// Runs each program once in each configuration, or some of them, and replaces what was recorded of
/// these.
pub(super) fn bench(repo: &Repo, only: &[String]) -> Result<()> {
    let applications = PROGRAMS.map(|(name, _)| name).into_iter();
    let applications: Vec<&str> = applications.chain(ENGINES.map(|(name, _)| name)).collect();
    for name in only {
        ensure!(
            applications.contains(&name.as_str()),
            "programs are {}, not '{name}'",
            applications.join(", ")
        );
    }
    let is_wanted = |name: &str| only.is_empty() || only.iter().any(|only| only == name);
    let directory = super::programs(repo)?;
    for (application, name) in PROGRAMS.into_iter().filter(|(name, _)| is_wanted(name)) {
        for (configuration, size) in CONFIGURATIONS.into_iter().zip(SIZES) {
            let mut run = Command::new(directory.join(name));
            let output = run.args([&size.to_string(), "off"]).output()?;
            ensure!(output.status.success(), "{name} {size}: {}", output.status);
            let said: Value = serde_json::from_slice(&output.stdout)?;
            let resident = said["resident_bytes"].as_u64();
            let resident = resident.context("no resident_bytes")?;
            let command = format!("{name} {size} off");
            keep(repo, application, configuration, resident, &command)?;
        }
    }
    if program(TKRZW).is_none() {
        println!("without tkrzw's engines: apt-get install tkrzw-utils");
        return Ok(());
    }
    for (engine, configurations) in ENGINES.into_iter().filter(|(name, _)| is_wanted(name)) {
        for (configuration, words) in CONFIGURATIONS.into_iter().zip(configurations) {
            let command = command(engine, words);
            match resident_of(&command) {
                Ok(resident) => keep(repo, engine, configuration, resident, &command)?,
                Err(error) => println!("{engine}, {configuration}: {error:#}"),
            }
        }
    }
    Ok(())
}

/// Keeps a result among those of other programs and configurations.
fn keep(
    repo: &Repo,
    application: &str,
    configuration: &str,
    resident: u64,
    command: &str,
) -> Result<()> {
    println!("{application}, {configuration}: {} MiB", resident >> 20);
    let result = json!({
        "application": application,
        "configuration": configuration,
        "resident_bytes": resident,
        "command": command,
    });
    let keys = ["application", "configuration"];
    let programs = recordings::merged(repo, RECORDING, "programs", result, &keys)?;
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let results = json!({
        "schema": 1,
        "kernel": release.trim(),
        "programs": programs,
    });
    let text = serde_json::to_string_pretty(&results)? + "\n";
    let command = "cargo xtask bench collector memory";
    recordings::keep(repo, RECORDING, text.as_bytes(), Place::Here, command)
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
