//! `bench/results/`: recordings, and `provenance.json` beside them, which says where each is from.

use std::fs::{self, File};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::load;
use crate::repo::Repo;

/// Recordings, relative to the repository's root.
const RESULTS: &str = "bench/results";
/// What says where they are from.
const PROVENANCE: &str = "provenance.json";

/// Where something was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On this machine.
    Here,
    /// In a guest, on an emulated processor.
    Guest,
    /// On the Intel processor that Bochs emulates.
    Bochs,
}

/// Whether the machine has been busy since this run began with a recording.
pub fn is_busy(name: &str) -> Result<bool> {
    Ok(load::beside(name)?["busy"] == true)
}

/// Keeps a recording, and where it is from: this machine, today, `command`, and what ran beside it.
pub fn keep(repo: &Repo, name: &str, contents: &[u8], place: Place, command: &str) -> Result<()> {
    keep_whole(repo, name, contents, place, command, false)
}

/// [`keep`], of a recording that has rows of several runs: what ran beside it is of the last one,
/// and `was_busy` says whether the machine was busy for any of the others.
pub fn keep_whole(
    repo: &Repo,
    name: &str,
    contents: &[u8],
    place: Place,
    command: &str,
    was_busy: bool,
) -> Result<()> {
    let results = repo.root.join(RESULTS);
    // One at a time: what says where they are from is one file.
    let of_all = File::open(&results).with_context(|| results.display().to_string())?;
    of_all.lock()?;
    replace(&results.join(name), contents)?;
    let path = results.join(PROVENANCE);
    let cannot = || path.display().to_string();
    let text = fs::read_to_string(&path).with_context(cannot)?;
    let mut provenance: Value = serde_json::from_str(&text).with_context(cannot)?;
    let of = &mut provenance["recordings"][name];
    let mut said = json!({"machine": machine(place), "date": today(), "command": command});
    // An emulated machine's kernel is what the recording says, or what was known of it before.
    let document: Option<Value> = serde_json::from_slice(contents).ok();
    let own = document.and_then(|document| document["kernel"].as_str().map(Value::from));
    said["kernel"] = match place {
        Place::Here => kernel()?.into(),
        Place::Guest | Place::Bochs => own.unwrap_or_else(|| of["kernel"].take()),
    };
    said["load"] = load::beside(name)?;
    if was_busy {
        said["load"]["busy"] = true.into();
    }
    if said["load"]["busy"] == true {
        println!("{name}: measured on a busy machine, and marked so");
    }
    *of = said;
    let text = serde_json::to_string_pretty(&provenance)? + "\n";
    replace(&path, text.as_bytes())
}

/// Writes a file in whole: who is ended meanwhile leaves the one that was there.
fn replace(path: &Path, contents: &[u8]) -> Result<()> {
    let new = path.with_extension(format!("{}.new", std::process::id()));
    let cannot = || format!("cannot write {}", path.display());
    fs::write(&new, contents).with_context(cannot)?;
    fs::rename(&new, path).with_context(cannot)
}

/// The list `field` of a recording; an empty one where there is none yet.
pub fn list(repo: &Repo, name: &str, field: &str) -> Result<Vec<Value>> {
    let path = repo.root.join(RESULTS).join(name);
    let cannot = || path.display().to_string();
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text = fs::read_to_string(&path).with_context(cannot)?;
    let mut recording: Value = serde_json::from_str(&text).with_context(cannot)?;
    Ok(match recording[field].take() {
        Value::Array(known) => known,
        _ => Vec::new(),
    })
}

/// The list `field` of a recording with `result` in it, in the place of the one that has the same
/// values of `keys`, or at the end. There need not be a recording yet.
pub fn merged(
    repo: &Repo,
    name: &str,
    field: &str,
    result: Value,
    keys: &[&str],
) -> Result<Vec<Value>> {
    let mut list = list(repo, name, field)?;
    let same = |other: &Value| keys.iter().all(|key| other[*key] == result[*key]);
    match list.iter().position(same) {
        Some(at) => list[at] = result,
        None => list.push(result),
    }
    Ok(list)
}

/// The processor that something is measured on.
pub fn machine(place: Place) -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find(|line| line.starts_with("model name"));
    let name = name.and_then(|line| line.split_once(':'));
    let name = name.map_or("a processor without a name", |(_, name)| name.trim());
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    match place {
        Place::Here => format!("{name}, {processors} processors"),
        Place::Guest => format!("QEMU's emulated processor, on {name}"),
        Place::Bochs => format!("Bochs's emulated processor (Skylake X), on {name}"),
    }
}

fn kernel() -> Result<String> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let release = release.trim().split(['-', '+']).next();
    Ok(release.unwrap_or_default().to_owned())
}

fn today() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    day(since.map_or(0, |since| since.as_secs() / 86_400))
}

/// The date of a day since 1970, as ISO 8601 has it.
fn day(days: u64) -> String {
    // Days from the first of March of the year 0, in eras of 400 years (the proleptic calendar).
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn days_have_dates() {
        for (days, date) in [
            (0, "1970-01-01"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (20_781, "2026-11-24"),
            (20_818, "2026-12-31"),
            (20_819, "2027-01-01"),
        ] {
            assert_eq!(day(days), date);
        }
    }

    #[test]
    fn a_result_takes_the_place_of_the_one_before() {
        let root = std::env::temp_dir().join(format!("pagetrail-merged-{}", std::process::id()));
        fs::create_dir_all(root.join(RESULTS)).unwrap();
        let repo = Repo {
            target: root.join("target"),
            root: root.clone(),
        };
        let of = |a: u32, b: u32, ms: u32| json!({"a": a, "b": b, "ms": ms});
        let add = |result| merged(&repo, "x.json", "list", result, &["a", "b"]).unwrap();
        assert_eq!(add(of(1, 1, 5)), [of(1, 1, 5)]);
        let known = json!({"list": [of(1, 1, 5), of(1, 2, 6)], "schema": 1});
        fs::write(root.join(RESULTS).join("x.json"), known.to_string()).unwrap();
        let [same, other] = [add(of(1, 1, 7)), add(of(2, 1, 8))];
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(same, [of(1, 1, 7), of(1, 2, 6)]);
        assert_eq!(other, [of(1, 1, 5), of(1, 2, 6), of(2, 1, 8)]);
    }

    #[test]
    fn a_recording_is_kept_with_where_it_is_from() {
        let root =
            std::env::temp_dir().join(format!("pagetrail-recordings-{}", std::process::id()));
        let results = root.join(RESULTS);
        fs::create_dir_all(&results).unwrap();
        let before = r#"{"schema": 1, "recordings": {"a.json": {"kernel": "6.12"}, "b.json": {"date": "x"}}}"#;
        fs::write(results.join(PROVENANCE), before).unwrap();
        let repo = Repo {
            target: root.join("target"),
            root: root.clone(),
        };
        // What was there is never half of it.
        fs::write(results.join("a.json"), "before").unwrap();
        let mut opened = File::open(results.join("a.json")).unwrap();
        keep(&repo, "a.json", b"{}", Place::Guest, "make a").unwrap();
        let mut kept = String::new();
        opened.read_to_string(&mut kept).unwrap();
        assert_eq!(kept, "before");
        keep(&repo, "c.json", b"{}", Place::Here, "make c").unwrap();
        let says = br#"{"kernel": "6.13"}"#;
        keep(&repo, "d.json", says, Place::Guest, "make d").unwrap();
        keep_whole(&repo, "e.json", b"{}", Place::Here, "make e", true).unwrap();
        let text = fs::read_to_string(results.join(PROVENANCE)).unwrap();
        fs::remove_dir_all(&root).unwrap();
        let said: Value = serde_json::from_str(&text).unwrap();
        let said = &said["recordings"];
        assert_eq!(said["e.json"]["load"]["busy"], true);
        assert_eq!(
            (&said["a.json"]["kernel"], &said["a.json"]["command"]),
            (&json!("6.12"), &json!("make a"))
        );
        assert!(said["a.json"]["machine"].as_str().unwrap().contains("QEMU"));
        assert_eq!(said["b.json"]["date"], "x");
        assert_eq!(said["d.json"]["kernel"], "6.13");
        assert!(!said["c.json"]["machine"].as_str().unwrap().contains("QEMU"));
        assert_eq!(said["c.json"]["date"], said["a.json"]["date"]);
    }
}
