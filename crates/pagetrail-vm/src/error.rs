//! [`Error`]: why a program does not run in the machine.

use std::io;
use std::path::PathBuf;

/// The result of what can fail here.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a program does not run in the machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no KVM here, or not for us.
    #[error("{}", no_kvm(.0))]
    NoKvm(#[source] io::Error),
    /// This KVM lacks something.
    #[error("this KVM has no {0}")]
    Lacks(&'static str),
    /// KVM refused something that it should take.
    #[error("KVM refused to {what}: {source}")]
    Refused {
        /// What it was asked to do.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
    /// The processor that KVM offers stopped in a way that the program cannot have caused.
    #[error("the virtual processor stopped: {0}")]
    Stopped(String),
    /// The program asked for something that the machine does not do.
    #[error("not supported in the virtual machine: {0}")]
    Unsupported(String),
    /// The program cannot be started.
    #[error("cannot run {}: {source}", program.display())]
    Program {
        /// Its path, or its name.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The own memory of the machine cannot be had.
    #[error("cannot {what}: {source}")]
    System {
        /// What was to be done.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// What the machine sends to its recorder cannot be understood.
    #[error("the virtual machine sent something that is no round")]
    MalformedRound,
}

impl Error {
    /// Whether another machine, or other rights on this one, would do.
    pub fn is_machine_limit(&self) -> bool {
        matches!(
            self,
            Self::NoKvm(_)
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
            "there is no /dev/kvm: the processor has no virtualization, it is switched off, or the modules kvm_intel \
             and kvm_amd are not loaded"
                .into()
        }
        io::ErrorKind::PermissionDenied => {
            "no permission for /dev/kvm: it is for root and, as a rule, for the group kvm".into()
        }
        _ => format!("cannot use /dev/kvm: {error}"),
    }
}
