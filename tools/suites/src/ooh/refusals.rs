//! What the command says where `/dev/ooh` is not as it must be: no module, a machine without the
//! log, a module of another version. Each time one line names the cause, and `auto` goes on to
//! another technique. All of it in one guest, whose emulator plays no log.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use pagetrail_rig::kernel::Series;
use pagetrail_rig::ooh;
use pagetrail_steps::products::{Product, Profile};
use pagetrail_steps::repo::Repo;

use super::{Guests, Step};

const TECHNIQUES: [&str; 3] = ["epml", "spml", "spml-search"];
/// What a module of another version answers.
const OTHER_VERSION: u32 = 2;

/// The step for a guest without a log, where the module is not loaded.
pub(super) fn step(repo: &Repo, guests: &Guests) -> Result<Step> {
    let command = Product::Command.build(repo, Profile::Dev)?;
    let log = guests.machine.ooh.as_ref().context("no log")?;
    let series = Series::named(&guests.series)?;
    let other = ooh::module_of_version(repo, &guests.rig, series, &guests.kernel, OTHER_VERSION)?;
    let busybox = guests.rig.busybox();
    let words = [&command, busybox, &log.module, &other].map(|path| path.display().to_string());
    let this = std::env::current_exe()?.display().to_string();
    Ok(Step {
        what: "what is said without a log".to_owned(),
        command: [this, "refusals-of-ooh".to_owned()]
            .into_iter()
            .chain(words)
            .collect(),
        has_tests: false,
    })
}

/// In that guest.
pub fn in_guest(args: &[String]) -> Result<()> {
    let [command, busybox, module, other] = args else {
        bail!("usage: refusals-of-ooh COMMAND BUSYBOX MODULE OTHER");
    };
    let command = Path::new(command);
    all_refused(command, "its kernel module (research/ooh) is not loaded")?;
    let loaded = Loaded::new(busybox, module)?;
    all_refused(command, "neither the processor nor the hypervisor has one")?;
    drop(loaded);
    let _loaded = Loaded::new(busybox, other)?;
    let why = format!(
        "has version {OTHER_VERSION}, and version 1 is needed: build both from one release"
    );
    all_refused(command, &why)
}

/// `check` and `record` say why each technique is refused, in one line, and `auto` records.
fn all_refused(command: &Path, why: &str) -> Result<()> {
    let output = Command::new(command).args(["check", "--json"]).output()?;
    let document: Value = serde_json::from_slice(&output.stdout)?;
    let entries = document["techniques"].as_array().context("no techniques")?;
    let record = |technique: &str| {
        let mut record = Command::new(command);
        record.args([
            "record",
            "--technique",
            technique,
            "-o",
            "/tmp/refused.trail",
        ]);
        record.args(["--", "/bin/true"]).output()
    };
    for technique in TECHNIQUES {
        let found = entries.iter().find(|entry| entry["technique"] == technique);
        let reason = found.and_then(|entry| entry["reason"].as_str());
        let reason = reason.with_context(|| format!("{technique} is not refused: {found:?}"))?;
        ensure!(reason.contains(why), "{technique}: {reason}");
        let output = record(technique)?;
        let said = String::from_utf8_lossy(&output.stderr);
        let is_said = !output.status.success() && said.contains(why);
        ensure!(
            is_said && said.trim().lines().count() == 1,
            "{technique}: {said}"
        );
        println!("{technique}: {reason}");
    }
    let output = record("auto")?;
    ensure!(output.status.success(), "auto: {output:?}");
    Ok(())
}

/// A loaded module, until this is dropped.
struct Loaded<'a> {
    busybox: &'a str,
}

impl<'a> Loaded<'a> {
    fn new(busybox: &'a str, module: &str) -> Result<Self> {
        let status = Command::new(busybox).args(["insmod", module]).status();
        ensure!(
            status.context("insmod")?.success(),
            "{module} is not loaded"
        );
        ensure!(fs::exists("/dev/ooh")?, "{module} makes no /dev/ooh");
        Ok(Self { busybox })
    }
}

impl Drop for Loaded<'_> {
    fn drop(&mut self) {
        let _ = Command::new(self.busybox).args(["rmmod", "ooh"]).status();
    }
}
