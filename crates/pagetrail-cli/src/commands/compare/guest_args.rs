//! The flags of guests with a Linux kernel of their own.

use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use pagetrail_compare::guest::{Settings, kernel};
use pagetrail_compare::local::available_bytes;
use pagetrail_report::size::Size;

const HEADING: &str = "Guests of kvm and kvm:shadow";

/// The least memory of a guest.
const MEMORY_MIN: u64 = 256 << 20;

/// Flags of the environments `kvm` and `kvm:shadow`.
#[derive(Args, Debug, Default)]
pub(crate) struct LinuxArgs {
    /// The guest's Linux kernel, a bzImage. Without this flag it is this machine's, or the newest,
    /// in /boot or /lib/modules
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    pub(crate) kernel: Option<PathBuf>,
    /// An initial RAM disk whose files the guest has, too; the kernel unpacks it before the files
    /// of the program
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    pub(crate) initrd: Option<PathBuf>,
    /// Files and directories that the program reads. It finds them at the same paths, as it does
    /// itself, its libraries, its interpreter, a shell, and files that its arguments name
    #[arg(long, value_name = "PATHS", value_delimiter = ',', help_heading = HEADING)]
    pub(crate) guest_files: Vec<PathBuf>,
    /// The guest's memory, half of which its files may take. Without this flag it is half of what
    /// is available here
    #[arg(long, value_name = "SIZE", help_heading = HEADING)]
    pub(crate) guest_memory: Option<Size>,
    /// Parameters for the guest's kernel, as 'mitigations=off'
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, help_heading = HEADING)]
    pub(crate) kernel_parameters: Option<String>,
}

impl LinuxArgs {
    /// Refuses what no guest can be started with, or what none needs.
    pub(crate) fn check(&self, has_guest: bool) -> Result<()> {
        let given = [
            (self.kernel.is_some(), "--kernel"),
            (self.initrd.is_some(), "--initrd"),
            (!self.guest_files.is_empty(), "--guest-files"),
            (self.guest_memory.is_some(), "--guest-memory"),
            (self.kernel_parameters.is_some(), "--kernel-parameters"),
        ];
        let given = given.iter().find(|(is_given, _)| *is_given);
        if let Some((_, flag)) = given.filter(|_| !has_guest) {
            bail!("{flag} is for the environments kvm and kvm:shadow, and neither is compared");
        }
        if let Some(kernel) = &self.kernel {
            kernel::check(kernel)?;
        }
        if let Some(initrd) = &self.initrd {
            File::open(initrd).with_context(|| format!("cannot read {}", initrd.display()))?;
        }
        if let Some(size) = self.guest_memory.filter(|size| size.bytes() < MEMORY_MIN) {
            bail!("--guest-memory {size} is less than Linux needs: take 256M or more");
        }
        if self
            .parameters()
            .split_whitespace()
            .any(|word| word == "--")
        {
            bail!("--kernel-parameters takes no '--': what follows it is not the kernel's");
        }
        for path in &self.guest_files {
            std::fs::metadata(path)
                .with_context(|| format!("--guest-files: cannot read {}", path.display()))?;
        }
        Ok(())
    }

    /// What guests are made of that run this program, or tests of suites.
    pub(super) fn settings(&self, command: &[OsString], timeout: Duration) -> Settings {
        let mut agent = ["compare", "--as-guest", "--timeout"]
            .map(OsString::from)
            .to_vec();
        agent.push(format!("{}ms", timeout.as_millis()).into());
        Settings {
            kernel: self.kernel.clone(),
            initrd: self.initrd.clone(),
            files: self.guest_files.clone(),
            memory_bytes: self.memory_bytes(),
            parameters: self.parameters().into(),
            agent,
            command: command.into(),
            timeout,
        }
    }

    fn memory_bytes(&self) -> u64 {
        if let Some(size) = self.guest_memory {
            return size.bytes();
        }
        // Whole MiB, as the engine takes them.
        (available_bytes() / 2).max(MEMORY_MIN) >> 20 << 20
    }

    fn parameters(&self) -> &str {
        self.kernel_parameters.as_deref().unwrap_or_default()
    }
}
