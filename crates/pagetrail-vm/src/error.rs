//! [`Error`]: why a program does not run as a guest.

use std::io;
use std::path::PathBuf;

/// The result of an operation of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a program does not run as a guest.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The processor is not one of x86-64.
    #[error("programs run as guests on x86-64 only")]
    Processor,
    /// KVM is not available on this machine, or not to this user.
    #[error("{}", no_kvm(.0))]
    NoKvm(#[source] io::Error),
    /// KVM lacks a feature that the machine needs.
    #[error("this KVM has no {0}")]
    Lacks(&'static str),
    /// KVM refused an operation that it should support.
    #[error("KVM refused to {what}: {source}")]
    Refused {
        /// The operation.
        what: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
    /// The virtual processor stopped in a way that the program cannot have caused.
    #[error("the vCPU stopped: {0}")]
    Stopped(String),
    /// The program needs something that the machine does not support.
    #[error("not supported in the virtual machine: {0}")]
    Unsupported(String),
    /// The program cannot be started.
    #[error("cannot run {}: {source}", program.display())]
    Program {
        /// The program's path or name.
        program: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A system call for the machine's own needs failed, such as a mapping for page tables.
    #[error("cannot {what}: {source}")]
    System {
        /// The operation.
        what: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
    /// A message on the link to the recorder is not a round.
    #[error("the virtual machine sent a malformed round")]
    MalformedRound,
}

impl Error {
    /// Whether the program might run on another machine, or with other permissions on this one.
    pub fn is_machine_limit(&self) -> bool {
        matches!(
            self,
            Self::Processor
                | Self::NoKvm(_)
                | Self::Lacks(_)
                | Self::Refused { .. }
                | Self::Stopped(_)
                | Self::Unsupported(_)
        )
    }

    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}

fn no_kvm(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "there is no /dev/kvm: the processor has no virtualization, the firmware disables it, or neither \
             of the modules kvm_intel and kvm_amd is loaded"
                .into()
        }
        io::ErrorKind::PermissionDenied => {
            "no permission for /dev/kvm: run as root, or as a member of its group (usually kvm)".into()
        }
        _ => format!("cannot use /dev/kvm: {error}"),
    }
}
