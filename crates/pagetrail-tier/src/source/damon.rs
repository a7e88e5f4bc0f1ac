//! [`Damon`]: the kernel's DAMON as a source, through `/sys/kernel/mm/damon`: which regions of a
//! process were touched, from samples of accessed bits.
//!
//! It costs the process no faults. It reports regions, which it splits and merges by itself, not
//! pages, and no writes. `Documentation/admin-guide/mm/damon/usage.rst`; needs
//! root and `CONFIG_DAMON_SYSFS`. There is one configuration on a machine: where DAMON is in use,
//! this does not take it over.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pagetrail::{Mapped, PageRange, PageSet, mapped_pages, page_size};

use super::{Source, SourceInfo, everywhere};
use crate::error::{Error, Result};
use crate::policy::{Sample, SourceCaps};

const ADMIN: &str = "/sys/kernel/mm/damon/admin/kdamonds";
/// Number of samples in a window: a region counts as accessed if one of them found it so.
const SAMPLES: u32 = 20;
const REGIONS: (u32, u32) = (10, 1000);

/// The regions of a process that DAMON saw touched.
pub struct Damon {
    pid: u32,
    root: PathBuf,
}

impl Damon {
    /// Has DAMON watch a process, in windows of the given length.
    ///
    /// # Errors
    ///
    /// The kernel has no DAMON, it is in use, or not permitted.
    pub fn start(pid: u32, window: Duration) -> Result<Self> {
        Self::start_at(Path::new(ADMIN), pid, window)
    }

    fn start_at(root: &Path, pid: u32, window: Duration) -> Result<Self> {
        let known = fs::read_to_string(root.join("nr_kdamonds"));
        let known = known.map_err(|error| {
            Error::NotHere(format!(
                "this kernel offers no DAMON ({}: {error})",
                root.display()
            ))
        })?;
        if known.trim() != "0" {
            let state = fs::read_to_string(root.join("0/state")).unwrap_or_default();
            if state.trim() == "on" {
                return Err(Error::NotHere(
                    "DAMON is in use; echo off to its state first".into(),
                ));
            }
        }
        let damon = Self {
            pid,
            root: root.to_owned(),
        };
        damon.configure(window)?;
        Ok(damon)
    }

    fn configure(&self, window: Duration) -> Result<()> {
        let aggregation = window.as_micros().max(1000);
        let sampling = aggregation / u128::from(SAMPLES);
        let most = u64::MAX.to_string();
        let context = |file: &str| format!("0/contexts/0/{file}");
        let attributes = |file: &str| context(&format!("monitoring_attrs/{file}"));
        let scheme = |file: &str| context(&format!("schemes/0/{file}"));
        let number = |value: &dyn ToString| value.to_string();
        for (file, value) in [
            ("nr_kdamonds".to_owned(), "1".to_owned()),
            ("0/contexts/nr_contexts".to_owned(), "1".to_owned()),
            (context("operations"), "vaddr".to_owned()),
            (attributes("intervals/sample_us"), number(&sampling)),
            (attributes("intervals/aggr_us"), number(&aggregation)),
            (attributes("intervals/update_us"), number(&aggregation)),
            (attributes("nr_regions/max"), number(&REGIONS.1)),
            (attributes("nr_regions/min"), number(&REGIONS.0)),
            (context("targets/nr_targets"), "1".to_owned()),
            (context("targets/0/pid_target"), number(&self.pid)),
            // A scheme that does nothing to every region: what it tried is what there is.
            (context("schemes/nr_schemes"), "1".to_owned()),
            (scheme("action"), "stat".to_owned()),
            (scheme("access_pattern/sz/max"), most.clone()),
            (scheme("access_pattern/nr_accesses/max"), number(&u32::MAX)),
            (scheme("access_pattern/age/max"), number(&u32::MAX)),
            ("0/state".to_owned(), "on".to_owned()),
        ] {
            self.write(&file, &value)?;
        }
        Ok(())
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        let path = self.root.join(file);
        fs::write(&path, value).map_err(|source| Error::Io {
            what: format!("writing {value} to {}", path.display()),
            source,
        })
    }

    /// The regions in which the last aggregation found an access.
    fn touched(&self) -> Result<PageSet> {
        let regions = self.root.join("0/contexts/0/schemes/0/tried_regions");
        let failed = |source| Error::Io {
            what: format!("reading {}", regions.display()),
            source,
        };
        let mut touched = PageSet::new();
        for entry in fs::read_dir(&regions).map_err(failed)?.flatten() {
            let number = |name: &str| {
                let text = fs::read_to_string(entry.path().join(name)).ok()?;
                text.trim().parse::<u64>().ok()
            };
            let (Some(start), Some(end), Some(accesses)) =
                (number("start"), number("end"), number("nr_accesses"))
            else {
                continue;
            };
            if accesses > 0 {
                let range = PageRange::new(start, end);
                touched.extend(range.map(|range| range.align_outwards(page_size())));
            }
        }
        Ok(touched)
    }
}

impl Drop for Damon {
    fn drop(&mut self) {
        // It may have ended with its process.
        let _ = self.write("0/state", "off");
        let _ = self.write("nr_kdamonds", "0");
    }
}

impl Source for Damon {
    fn info(&self) -> SourceInfo {
        SourceInfo {
            name: "damon",
            caps: SourceCaps {
                accesses: true,
                ..SourceCaps::default()
            },
            pages: false,
            // Sampling costs nothing, so backing off would only lose precision.
            saves_faults: false,
        }
    }

    fn window(&mut self) -> Result<Sample> {
        let state = fs::read_to_string(self.root.join("0/state")).unwrap_or_default();
        if state.trim() != "on" {
            return Err(pagetrail::Error::Gone { pid: self.pid }.into());
        }
        self.write("0/state", "update_schemes_tried_regions")?;
        Ok(Sample {
            accessed: Some(self.touched()?),
            written: None,
        })
    }

    fn rearm(&mut self, _: &PageSet) -> Result<()> {
        Ok(())
    }

    fn mapped(&mut self) -> Result<Mapped> {
        // Every page that a region may have: what is mapped from files is left out by being shared
        // with others.
        self.mapped_within(&everywhere())
    }

    fn mapped_within(&mut self, addresses: &PageSet) -> Result<Mapped> {
        Ok(mapped_pages(self.pid, addresses)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files as the kernel has them once they are made, with two regions.
    fn files(root: &Path, state: &str) {
        for directory in [
            "0/contexts/0/monitoring_attrs/intervals",
            "0/contexts/0/monitoring_attrs/nr_regions",
            "0/contexts/0/targets/0",
            "0/contexts/0/schemes/0/access_pattern/sz",
            "0/contexts/0/schemes/0/access_pattern/nr_accesses",
            "0/contexts/0/schemes/0/access_pattern/age",
            "0/contexts/0/schemes/0/tried_regions/0",
            "0/contexts/0/schemes/0/tried_regions/1",
        ] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        fs::write(root.join("nr_kdamonds"), "1\n").unwrap();
        fs::write(root.join("0/state"), state).unwrap();
        let regions = root.join("0/contexts/0/schemes/0/tried_regions");
        for (region, start, end, accesses) in [(0, 8192, 16384, 3), (1, 16384, 65536, 0)] {
            for (name, value) in [("start", start), ("end", end), ("nr_accesses", accesses)] {
                fs::write(
                    regions.join(format!("{region}/{name}")),
                    format!("{value}\n"),
                )
                .unwrap();
            }
        }
    }

    #[test]
    fn touched_regions_are_reported() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        files(root, "off\n");
        let mut damon = Damon::start_at(root, 7, Duration::from_millis(100)).unwrap();
        let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
        assert_eq!(read("0/contexts/0/targets/0/pid_target"), "7");
        assert_eq!(
            read("0/contexts/0/monitoring_attrs/intervals/sample_us"),
            "5000"
        );
        assert_eq!(read("0/state"), "on");
        let expected = PageSet::from_iter(PageRange::new(8192, 16384));
        assert_eq!(damon.window().unwrap().accessed, Some(expected));
        // The kernel says that it has ended.
        fs::write(root.join("0/state"), "off\n").unwrap();
        assert!(damon.window().unwrap_err().means_end());
        drop(damon);
        assert_eq!(read("nr_kdamonds"), "0");
    }

    #[test]
    fn what_others_use_is_left_to_them() {
        let root = tempfile::tempdir().unwrap();
        let refused = |root: &Path| {
            let outcome = Damon::start_at(root, 7, Duration::from_millis(100));
            outcome.err().expect("it is refused")
        };
        assert!(refused(root.path()).is_machine_limit(), "there is none");
        files(root.path(), "on\n");
        assert!(refused(root.path()).to_string().contains("in use"));
        let state = fs::read_to_string(root.path().join("0/state")).unwrap();
        assert_eq!(state, "on\n");
    }
}
