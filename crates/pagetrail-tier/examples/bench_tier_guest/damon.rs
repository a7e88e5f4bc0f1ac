//! [`Tiering`]: DAMON has a process's regions that are used moved to node 0, and those that are not
//! to node 1.
//!
//! `Documentation/admin-guide/mm/damon/usage.rst`; the migrate actions on virtual addresses are of
//! Linux 6.17.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::Error;

const KDAMONDS: &str = "/sys/kernel/mm/damon/admin/kdamonds";
/// Samples in an aggregation.
const SAMPLES: u128 = 20;

/// DAMON at work, until it is dropped.
pub(crate) struct Tiering;

fn set(file: &str, value: impl ToString) -> Result<(), Error> {
    let path = PathBuf::from(KDAMONDS).join(file);
    let text = value.to_string();
    let failed = |error| format!("writing {text} to {}: {error}", path.display());
    fs::write(&path, &text).map_err(|error| failed(error).into())
}

impl Tiering {
    pub(crate) fn start(pid: u32, window: Duration) -> Result<Self, Error> {
        set("nr_kdamonds", 1)?;
        let tiering = Self;
        set("0/contexts/nr_contexts", 1)?;
        let context = |file: &str| format!("0/contexts/0/{file}");
        set(&context("operations"), "vaddr")?;
        let aggregation = window.as_micros();
        for (name, value) in [
            ("sample_us", aggregation / SAMPLES),
            ("aggr_us", aggregation),
            ("update_us", aggregation),
        ] {
            set(
                &context(&format!("monitoring_attrs/intervals/{name}")),
                value,
            )?;
        }
        set(&context("monitoring_attrs/nr_regions/max"), 2000)?;
        set(&context("monitoring_attrs/nr_regions/min"), 500)?;
        set(&context("targets/nr_targets"), 1)?;
        set(&context("targets/0/pid_target"), pid)?;
        set(&context("schemes/nr_schemes"), 2)?;
        // Room first. What was not seen in two aggregations is cold, what was seen in half of the
        // samples is hot.
        for (scheme, action, node, accesses, age) in [
            (0, "migrate_cold", 1, (0, 0), 2),
            (1, "migrate_hot", 0, (SAMPLES / 2, SAMPLES), 0),
        ] {
            let file = |name: &str| context(&format!("schemes/{scheme}/{name}"));
            set(&file("action"), action)?;
            set(&file("target_nid"), node)?;
            let pattern = |name: &str| file(&format!("access_pattern/{name}"));
            set(&pattern("sz/min"), pagetrail::page_size())?;
            set(&pattern("sz/max"), u64::MAX)?;
            set(&pattern("nr_accesses/min"), accesses.0)?;
            set(&pattern("nr_accesses/max"), accesses.1)?;
            set(&pattern("age/min"), age)?;
            set(&pattern("age/max"), u32::MAX)?;
        }
        set("0/state", "on")?;
        Ok(tiering)
    }
}

impl Drop for Tiering {
    fn drop(&mut self) {
        let _ = set("0/state", "off");
        let _ = set("nr_kdamonds", 0);
    }
}
