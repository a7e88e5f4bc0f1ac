//! [`Error`]: what can go wrong, each variant one line that names the cause and the cure.

use std::io;

/// Why CRIU could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This machine lacks something that CRIU needs, or CRIU.
    #[error("{0}")]
    Lacking(String),
    /// The system failed.
    #[error("{what}: {cause}")]
    Io {
        /// What was attempted.
        what: String,
        /// The system's answer.
        cause: io::Error,
    },
    /// CRIU failed, for the reason in its log.
    #[error("{what}: {reason}")]
    Failed {
        /// What was attempted.
        what: String,
        /// The first error in CRIU's log.
        reason: String,
    },
    /// Pages could not be given to a process that was restored already.
    #[error("the process lacks pages, and ends when it touches them: {0}")]
    LacksPages(pagetrail_checkpoint::Error),
    /// A connection is not from somebody who may have the pages.
    #[error("refused {peer}: {reason}")]
    Stranger {
        /// The other end.
        peer: std::net::SocketAddr,
        /// Whose it is.
        reason: String,
    },
    /// A process is not the leader of its session, which CRIU would not save with it.
    #[error(
        "process {pid} belongs to the session of {}, which would not be saved; start it by setsid(1)",
        leader.map_or_else(|| "a process that cannot be seen from here".into(), |pid| format!("process {pid}"))
    )]
    OtherSession {
        /// The process.
        pid: u32,
        /// The leader, unless it lives outside this PID namespace.
        leader: Option<u32>,
    },
    /// A process is traced already, and CRIU must trace it.
    #[error("process {pid} is traced by process {tracer}; CRIU must trace it")]
    Traced {
        /// The process.
        pid: u32,
        /// Its tracer, by its PID.
        tracer: String,
    },
    /// A checkpoint was not made by CRIU.
    #[error("checkpoint {number} was not made to start a process from")]
    NotRestorable {
        /// The checkpoint.
        number: u64,
    },
    /// A checkpoint came through a page server, which gets none of CRIU's other files.
    #[error("checkpoint {number} has the pages alone, which came through a page server")]
    PagesAlone {
        /// The checkpoint.
        number: u64,
    },
    /// Somebody has a PID that a process to be restored needs.
    #[error("checkpoint {number} needs PID {pid}, which {holder} has; end that")]
    PidTaken {
        /// The checkpoint.
        number: u64,
        /// The PID.
        pid: u32,
        /// Who has it.
        holder: &'static str,
    },
    /// A file that the program had open is not what it was.
    #[error("the program had {name} open, {reason}")]
    File {
        /// Its path.
        name: String,
        /// What has become of it.
        reason: String,
    },
    /// Several copies would need one address of the network.
    #[error("the program has {address}, which one process of a network namespace alone can have")]
    Address {
        /// The address.
        address: pagetrail_checkpoint::criu::SocketAddress,
    },
    /// The first process of a copy has ended; this is the line that it wrote to standard error.
    #[error("{0}")]
    CopyEnded(String),
    /// The store failed, or what it holds.
    #[error(transparent)]
    Store(#[from] pagetrail_checkpoint::Error),
}

impl Error {
    /// Whether this machine is the reason, so that another call fails as well.
    pub fn is_machine_limit(&self) -> bool {
        matches!(self, Self::Lacking(_))
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |cause| Self::Io { what, cause }
    }
}

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
