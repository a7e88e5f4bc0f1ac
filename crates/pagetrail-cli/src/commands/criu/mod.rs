//! Checkpoints that CRIU makes and restores: `checkpoint --restorable` and `restore`. All that is
//! done stands in `pagetrail-criu`; here are flags, messages and signals.

pub(crate) mod args;
mod copies;
mod first;
pub(crate) mod restore;
pub(crate) mod take;

use pagetrail_criu::{Error, SHELL_JOB};

use crate::commands::checkpoint::plain;

/// The error with the flags that help, and with its cause first, by which the exit code is chosen.
fn with_cure(error: Error) -> anyhow::Error {
    let cure = match &error {
        Error::OtherSession { .. } => format!(
            ", or pass --criu-arg={SHELL_JOB}, here and to restore, to give it another session's terminal"
        ),
        Error::NotRestorable { .. } => "; take one with checkpoint --restorable".into(),
        Error::PagesAlone { .. } => {
            "; export --criu writes them to the directory of CRIU's other files".into()
        }
        Error::PidTaken { .. } => {
            ", or start a copy in a PID namespace of its own: restore --count 1".into()
        }
        Error::Address { .. } => "; start copies one by one, each in a network namespace of its \
            own: unshare --net pagetrail restore --count 1 .."
            .into(),
        _ => String::new(),
    };
    match error {
        Error::Store(error) => plain(error),
        error if cure.is_empty() => error.into(),
        error => anyhow::anyhow!("{error}{cure}"),
    }
}
