//! [`Environment`]: where a program runs, as a word of the command line names it.
//!
//! ```text
//! environment = "native"
//!             | "tracked:" technique [ "@" time ]
//!             | "heap:" sub-pages
//!             | "vm" | ( "vm:record" | "vm:access" ) [ "@" time ]
//!             | "kvm" | "kvm:shadow"
//! ```

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use pagetrail::Technique;

/// The time from round to round if none is named.
const INTERVAL: Duration = Duration::from_millis(100);
/// The shortest and the longest one.
const INTERVAL_MIN: Duration = Duration::from_millis(1);
const INTERVAL_MAX: Duration = Duration::from_secs(3600);

/// Numbers of sub-pages into which a sub-page heap can divide a page.
const SUBPAGES: [&str; 7] = ["1", "2", "4", "8", "16", "32", "64"];

/// Where a program runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Environment {
    /// As it is.
    Native,
    /// Tracked by a technique, its child processes included.
    Tracked {
        /// How dirty pages are found.
        technique: Technique,
        /// The time from round to round.
        interval: Duration,
    },
    /// On the sub-page allocator.
    Heap {
        /// Sub-pages of a page.
        subpages: String,
    },
    /// As the guest of the process-level virtual machine.
    Vm(Rounds),
    /// In a virtual machine with a Linux kernel of its own.
    Kvm(Paging),
}

/// How a virtual machine's addresses are translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paging {
    /// By the processor, with a second page table (EPT, NPT).
    Nested,
    /// By KVM, which keeps copies of the guest's page tables with the host's addresses.
    Shadow,
}

/// What is collected from a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounds {
    /// Nothing: it only runs there.
    None,
    /// The pages that it dirties, at this interval.
    Writes(Duration),
    /// The pages that it dirties and those that it accesses, at this interval.
    Accesses(Duration),
}

/// Why a word names no environment; one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadEnvironment(String);

impl Environment {
    /// The class of its bars in a page's style sheet.
    pub(crate) fn class(&self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Tracked { technique, .. } => technique.name(),
            Self::Heap { .. } => "heap",
            Self::Vm(Rounds::None) => "vm",
            Self::Vm(Rounds::Writes(_)) => "vm-record",
            Self::Vm(Rounds::Accesses(_)) => "vm-access",
            Self::Kvm(Paging::Nested) => "kvm",
            Self::Kvm(Paging::Shadow) => "kvm-shadow",
        }
    }
}

impl fmt::Display for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, interval) = match self {
            Self::Native => ("native".to_owned(), INTERVAL),
            Self::Tracked {
                technique,
                interval,
            } => (format!("tracked:{technique}"), *interval),
            Self::Heap { subpages } => (format!("heap:{subpages}"), INTERVAL),
            Self::Vm(Rounds::None) => ("vm".to_owned(), INTERVAL),
            Self::Vm(Rounds::Writes(interval)) => ("vm:record".to_owned(), *interval),
            Self::Vm(Rounds::Accesses(interval)) => ("vm:access".to_owned(), *interval),
            Self::Kvm(Paging::Nested) => ("kvm".to_owned(), INTERVAL),
            Self::Kvm(Paging::Shadow) => ("kvm:shadow".to_owned(), INTERVAL),
        };
        f.write_str(&name)?;
        if interval != INTERVAL {
            let interval = humantime::format_duration(interval).to_string();
            write!(f, "@{}", interval.replace(' ', ""))?;
        }
        Ok(())
    }
}

impl FromStr for Environment {
    type Err = BadEnvironment;

    fn from_str(text: &str) -> Result<Self, BadEnvironment> {
        let (name, interval) = match text.split_once('@') {
            Some((name, time)) => (name, Some(interval_of(time)?)),
            None => (text, None),
        };
        let rounds_last = interval.unwrap_or(INTERVAL);
        let environment = match name.split_once(':') {
            Some(("tracked", technique)) => Self::Tracked {
                technique: technique.parse().map_err(|error| {
                    BadEnvironment(format!("{error}; tracked:TECHNIQUE takes one of these"))
                })?,
                interval: rounds_last,
            },
            Some(("heap", subpages)) if SUBPAGES.contains(&subpages) => Self::Heap {
                subpages: subpages.into(),
            },
            Some(("heap", _)) => {
                let line = format!("heap:N takes {} sub-pages a page", SUBPAGES.join(", "));
                return Err(BadEnvironment(line));
            }
            Some(("vm", "record")) => Self::Vm(Rounds::Writes(rounds_last)),
            Some(("vm", "access")) => Self::Vm(Rounds::Accesses(rounds_last)),
            Some(("kvm", "shadow")) => Self::Kvm(Paging::Shadow),
            None if name == "kvm" => Self::Kvm(Paging::Nested),
            None if name == "vm" => Self::Vm(Rounds::None),
            None if name == "native" => Self::Native,
            _ => return Err(unknown(name)),
        };
        if interval.is_some() && !environment.has_rounds() {
            let line = format!("{environment} has no rounds, so it takes no @TIME");
            return Err(BadEnvironment(line));
        }
        Ok(environment)
    }
}

impl Environment {
    fn has_rounds(&self) -> bool {
        matches!(
            self,
            Self::Tracked { .. } | Self::Vm(Rounds::Writes(_) | Rounds::Accesses(_))
        )
    }
}

fn unknown(name: &str) -> BadEnvironment {
    BadEnvironment(format!(
        "'{name}' is no environment; there are native, tracked:TECHNIQUE[@TIME], heap:N, vm, \
         vm:record[@TIME], vm:access[@TIME], kvm and kvm:shadow"
    ))
}

fn interval_of(text: &str) -> Result<Duration, BadEnvironment> {
    let interval = humantime::parse_duration(text).ok();
    interval
        .filter(|interval| (INTERVAL_MIN..=INTERVAL_MAX).contains(interval))
        .ok_or_else(|| {
            BadEnvironment(format!(
                "'{text}' is no time from 1ms to 1h, as 100ms is one"
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_environments() {
        for word in [
            "native",
            "tracked:pagemap-scan",
            "tracked:compare@10ms",
            "tracked:compare@1m30s",
            "heap:8",
            "vm",
            "vm:record",
            "vm:access@20ms",
            "kvm",
            "kvm:shadow",
        ] {
            let environment: Environment = word.parse().expect(word);
            assert_eq!(environment.to_string(), word);
        }
        let with_default: Environment = "vm:record@100ms".parse().expect("it is one");
        assert_eq!(with_default.to_string(), "vm:record");
    }

    #[test]
    fn what_is_wrong_is_named_with_the_cure() {
        for (word, part) in [
            ("", "there are native"),
            ("nativ", "'nativ' is no environment"),
            ("kvm:nested", "'kvm:nested' is no environment"),
            ("kvm@10ms", "kvm has no rounds"),
            ("vm:recrod", "there are native"),
            ("tracked", "tracked:TECHNIQUE"),
            ("tracked:magic", "magic"),
            ("tracked:", "tracked:TECHNIQUE"),
            ("tracked:compare@", "'' is no time"),
            ("tracked:compare@0ms", "'0ms' is no time from 1ms"),
            ("tracked:compare@10", "'10' is no time"),
            ("heap:3", "1, 2, 4, 8"),
            ("heap", "heap:N"),
            ("native@10ms", "native has no rounds"),
            ("vm@10ms", "vm has no rounds"),
        ] {
            let error = word.parse::<Environment>().expect_err(word).to_string();
            assert!(error.contains(part) && !error.contains('\n'), "{error}");
        }
    }
}
