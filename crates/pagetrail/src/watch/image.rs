//! What a technique needs from the address space that it will track, and how the watch obtains it.

use crate::attach::inject;
use crate::attach::launch::{Image, Need};
use crate::error::{Error, Result};
use crate::sys::uffd::{Faults, Uffd};
use crate::types::Technique;
use std::time::Duration;

/// The techniques that need a userfaultfd of the target.
pub(super) const INJECTING: &[Technique] = &[
    Technique::PagemapScan,
    Technique::Adaptive,
    Technique::AccessScan,
    Technique::Userfaultfd,
];

/// What a technique needs from a program that is being started.
pub(super) fn need(technique: Technique) -> Need {
    match technique {
        Technique::PagemapScan | Technique::Adaptive | Technique::AccessScan => Need::Userfaultfd {
            faults: Faults::UserMode,
        },
        Technique::Userfaultfd => Need::Userfaultfd {
            faults: Faults::UserAndKernel,
        },
        Technique::SoftDirty => Need::Tracing,
        _ => Need::Nothing,
    }
}

/// Obtains what a technique needs from a running process.
pub(super) fn attach(technique: Technique, pid: u32) -> Result<Image> {
    match need(technique) {
        Need::Userfaultfd { faults } => {
            let fetched = inject::fetch(pid, faults)?;
            Ok(Image {
                fd: Some(fetched.fd),
                stopped: fetched.stopped,
            })
        }
        Need::Nothing | Need::Tracing => Ok(Image {
            fd: None,
            stopped: Duration::ZERO,
        }),
    }
}

/// Obtains what a technique needs from this process.
pub(super) fn own(technique: Technique) -> Result<Image> {
    let fd = match need(technique) {
        Need::Userfaultfd { faults } => {
            Some(Uffd::create(faults).map_err(Error::os("userfaultfd(2)"))?)
        }
        Need::Nothing | Need::Tracing => None,
    };
    Ok(Image {
        fd,
        stopped: Duration::ZERO,
    })
}
