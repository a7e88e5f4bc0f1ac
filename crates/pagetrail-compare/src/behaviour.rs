//! [`Behaviour`]: what can be seen of a run besides its time, so that a program that does something
//! else in an environment is noticed.

use std::hash::{DefaultHasher, Hasher};

use serde::{Deserialize, Serialize};

/// How a program ended, and what it wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Behaviour {
    /// How it ended.
    pub end: End,
    /// Standard output.
    pub output: Digest,
    /// Standard error.
    pub errors: Digest,
    /// The last line of standard error, for people.
    pub message: String,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// With this exit code.
    Exited(i32),
    /// By this signal.
    Killed(i32),
    /// It was still running after this many seconds, and was killed.
    TimedOut(u64),
    /// Nobody knows.
    Unknown,
}

/// What was written, in short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest {
    bytes: u64,
    hash: u64,
}

/// Makes a [`Digest`] piece by piece.
#[derive(Clone, Debug, Default)]
pub struct Digester {
    bytes: u64,
    hasher: DefaultHasher,
}

impl Digester {
    /// Takes a piece.
    pub fn add(&mut self, piece: &[u8]) {
        self.bytes += piece.len() as u64;
        self.hasher.write(piece);
    }

    /// The digest of all pieces.
    pub fn finish(&self) -> Digest {
        Digest {
            bytes: self.bytes,
            hash: self.hasher.finish(),
        }
    }
}

impl Digest {
    /// Of one text.
    pub fn of(text: &[u8]) -> Self {
        let mut digester = Digester::default();
        digester.add(text);
        digester.finish()
    }
}

/// What of a program's behaviour is the same in every run of one environment.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    first: Behaviour,
    is_end_stable: bool,
    is_output_stable: bool,
    is_error_stable: bool,
}

impl Expected {
    pub(crate) fn of(first: Behaviour) -> Self {
        Self {
            first,
            is_end_stable: true,
            is_output_stable: true,
            is_error_stable: true,
        }
    }

    /// Takes another run in the environment that others are compared with: what differs there is
    /// not compared. Returns how it differs where it had to be stopped: its time means nothing.
    pub(crate) fn again(&mut self, run: &Behaviour) -> Option<String> {
        self.is_output_stable &= run.output == self.first.output;
        self.is_error_stable &= run.errors == self.first.errors;
        let stopped = end_differs(run, self.first.end).filter(|_| was_stopped(run));
        self.is_end_stable &= run.end == self.first.end || stopped.is_some();
        stopped
    }

    /// How a run differs, in words.
    pub(crate) fn difference(&self, run: &Behaviour) -> Option<String> {
        let differs = |what: &str, found: Digest, expected: Digest| {
            let bytes = match found.bytes == expected.bytes {
                true => format!("{} bytes, others", found.bytes),
                false => format!("{} bytes instead of {}", found.bytes, expected.bytes),
            };
            (found != expected).then(|| format!("{what} differs: {bytes}"))
        };
        let first = &self.first;
        end_differs(run, first.end)
            .filter(|_| self.is_end_stable || was_stopped(run))
            .or_else(|| match self.is_output_stable {
                true => differs("its standard output", run.output, first.output),
                false => None,
            })
            .or_else(|| match self.is_error_stable {
                true => differs("its standard error", run.errors, first.errors),
                false => None,
            })
    }

    /// How the program ends, if that is the same in every run.
    pub(crate) fn end(&self) -> Option<End> {
        self.is_end_stable.then_some(self.first.end)
    }

    /// What is not compared, because it is not the same from run to run.
    pub(crate) fn unstable(&self) -> Option<String> {
        let all = [
            (self.is_end_stable, "exit status"),
            (self.is_output_stable, "standard output"),
            (self.is_error_stable, "standard error"),
        ];
        let unstable = all.iter().filter(|(is_stable, _)| !is_stable);
        let names: Vec<&str> = unstable.map(|(_, name)| *name).collect();
        let (last, others) = names.split_last()?;
        match others {
            [] => Some((*last).to_owned()),
            _ => Some(format!("{} and {last}", others.join(", "))),
        }
    }
}

fn was_stopped(run: &Behaviour) -> bool {
    matches!(run.end, End::TimedOut(_))
}

fn end_differs(run: &Behaviour, expected: End) -> Option<String> {
    let message = match run.message.is_empty() {
        true => String::new(),
        false => format!(" ({})", run.message),
    };
    (run.end != expected).then(|| format!("it {}{message}; expected: {expected}", run.end))
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with code {code}"),
            Self::Killed(signal) => write!(f, "was killed by signal {signal}"),
            Self::TimedOut(seconds) => write!(f, "was still running after {seconds} s"),
            Self::Unknown => f.write_str("ended in an unknown way"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(end: End, output: &str, errors: &str) -> Behaviour {
        Behaviour {
            end,
            output: Digest::of(output.as_bytes()),
            errors: Digest::of(errors.as_bytes()),
            message: errors.into(),
        }
    }

    #[test]
    fn the_end_comes_first_and_what_varies_by_itself_is_not_compared() {
        let good = run(End::Exited(0), "42\n", "");
        let mut expected = Expected::of(good.clone());
        assert_eq!(expected.difference(&good), None);
        let failed = run(End::Killed(11), "", "help");
        let line = expected.difference(&failed).expect("it differs");
        assert_eq!(
            line,
            "it was killed by signal 11 (help); expected: exited with code 0"
        );
        let other = run(End::Exited(0), "43\n", "");
        let line = expected.difference(&other).expect("it differs");
        assert_eq!(line, "its standard output differs: 3 bytes, others");
        let more = run(End::Exited(0), "42\n", "warning");
        let line = expected.difference(&more).expect("it differs");
        assert_eq!(line, "its standard error differs: 7 bytes instead of 0");

        assert_eq!(expected.again(&other), None);
        assert_eq!(expected.unstable().as_deref(), Some("standard output"));
        assert_eq!(expected.difference(&run(End::Exited(0), "44\n", "")), None);
        assert!(expected.difference(&more).is_some());
    }

    #[test]
    fn an_end_that_varies_by_itself_is_not_compared() {
        let good = run(End::Exited(0), "42\n", "");
        let mut expected = Expected::of(good.clone());
        let stopped = run(End::TimedOut(61), "", "");
        assert!(expected.again(&stopped).is_some());
        assert_eq!(expected.end(), Some(End::Exited(0)));

        let mut expected = Expected::of(good);
        assert_eq!(expected.again(&run(End::Exited(3), "42\n", "no")), None);
        assert_eq!(
            expected.unstable().as_deref(),
            Some("exit status and standard error")
        );
        assert_eq!(expected.end(), None);
        assert_eq!(expected.difference(&run(End::Exited(4), "42\n", "")), None);
        assert!(expected.difference(&run(End::Exited(3), "", "")).is_some());
        assert!(expected.difference(&stopped).is_some());
    }
}
