//! How a process is restored.

/// Which PID a restored process has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PidChoice {
    /// That of the checkpoint, and its threads' IDs. It takes `CAP_CHECKPOINT_RESTORE` or
    /// `CAP_SYS_ADMIN` in the PID namespace.
    #[default]
    Same,
    /// Any: the program finds out only if it remembers its own.
    Any,
}

/// What becomes of the terminals and pipes that were descriptors 0, 1 and 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stdio {
    /// The descriptors of who restores.
    #[default]
    Inherit,
    /// `/dev/null`.
    Null,
}

/// What becomes of other descriptors that lead to what is not there any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missing {
    /// The process is not restored.
    #[default]
    Fail,
    /// `/dev/null`.
    Null,
}

/// How a process is restored.
#[derive(Clone, Copy, Debug, Default)]
pub struct RestoreOptions {
    /// Which PID it has.
    pub pid: PidChoice,
    /// What becomes of terminals and pipes that were descriptors 0, 1 and 2.
    pub stdio: Stdio,
    /// What becomes of other descriptors that cannot be opened.
    pub on_missing: Missing,
    /// Restore also where open or mapped files have changed since; what the program had mapped
    /// shared and writable is written to the file again.
    pub allow_changed_files: bool,
    /// The process stays in the session and process group of who restores, so that it can read the
    /// terminal; otherwise it has its own where it had.
    pub foreground: bool,
    /// Of a process that gets its pages as it touches them, keep in the store in which order it
    /// needs them: the next one gets them in this order before it needs them.
    pub keep_touches: bool,
}
