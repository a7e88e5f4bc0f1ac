//! [`Tracking`]: whose soft-dirty bits tell CRIU which pages were written since its last dump: the
//! kernel's, or those of `libpagetrail_softdirty.so` where the kernel has none.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::engine::Engine;

const LIBRARY: &str = "libpagetrail_softdirty.so";
/// Where the library is, from the directory of this program: where Cargo builds it, and where it
/// is installed.
const PLACES: &[&str] = &["", "../lib", "../lib/pagetrail", "../lib64"];

/// The variable by which the library is loaded, and the one with which its watches end.
const PRELOAD: &str = "LD_PRELOAD";
const HELD_FOR: &str = "PAGETRAIL_SOFTDIRTY_HELD_FOR";

/// Whose bits tell what was written.
#[derive(Debug)]
pub(super) enum Tracking {
    /// The kernel's.
    Kernel,
    /// The bits of the library at this path.
    Library(PathBuf),
}

impl Tracking {
    /// Finds out by asking CRIU whether it would use them; `None` where there are none.
    pub(super) fn find(engine: &Engine) -> Option<Self> {
        let program = env::current_exe().ok();
        let directory = program.as_deref().and_then(Path::parent);
        let places = directory.into_iter().flat_map(|directory| {
            let paths = PLACES.iter().map(|place| directory.join(place));
            paths.map(|path| path.join(LIBRARY))
        });
        let libraries = places.filter(|path| path.is_file()).map(Self::Library);
        let mut all = [Self::Kernel].into_iter().chain(libraries);
        all.find(|tracking| {
            let mut check = engine.check("mem_dirty_track");
            tracking.apply(&mut check);
            check.status().is_ok_and(|status| status.success())
        })
    }

    /// Makes one of CRIU's commands use them. Watches of the library end with this process.
    pub(super) fn apply(&self, command: &mut Command) {
        if let Self::Library(library) = self {
            let others = env::var_os(PRELOAD).filter(|others| !others.is_empty());
            let mut libraries = library.clone().into_os_string();
            if let Some(others) = others {
                libraries.push(":");
                libraries.push(others);
            }
            command.env(PRELOAD, libraries);
            command.env(HELD_FOR, std::process::id().to_string());
        }
    }
}
