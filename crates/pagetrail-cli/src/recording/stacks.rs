//! [`Sampling`]: samples which code dirties the pages of a recording, where that is asked for and
//! possible. Where it is not, one line says so and the recording goes on without.

use std::collections::BTreeSet;

use pagetrail::{DirtySource, Technique};
use pagetrail_report::words;
use pagetrail_stacks::{Options, Period, Sampler, Summary, Unwind};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::exit;

/// How the processes of a recording are sampled.
pub(crate) struct Sampling {
    options: Options,
    /// What has been said, so that it is said once and not for each process.
    said: BTreeSet<String>,
}

impl Sampling {
    /// Samples one of `period` faults, or as many as cost little.
    pub(crate) fn new(unwind: Unwind, period: Option<u32>) -> Self {
        Self {
            options: Options {
                unwind,
                period: period.map_or_else(Period::default, Period::Fixed),
            },
            said: BTreeSet::new(),
        }
    }

    /// Begins to sample the target of a source.
    pub(crate) fn start(&mut self, source: &dyn DirtySource) -> Option<Sampler> {
        let technique = source.technique_name();
        if !makes_writes_fault(technique) {
            self.say(format!(
                "--stacks has no effect with {technique}, which makes no write fault"
            ));
            return None;
        }
        raise_descriptor_limit();
        match Sampler::attach(source.pid(), &self.options) {
            Ok(sampler) => {
                if !sampler.sees_kernel() {
                    self.say(
                        "pages that system calls write stay unattributed: sampling them needs \
                         CAP_PERFMON, or kernel.perf_event_paranoid at most 1"
                            .into(),
                    );
                }
                Some(sampler)
            }
            // A child that has ended already has nothing to sample.
            Err(pagetrail_stacks::Error::Gone { .. }) => None,
            Err(error) => {
                self.say(format!("recording without stacks: {error}"));
                None
            }
        }
    }

    fn say(&mut self, line: String) {
        if !self.said.contains(&line) {
            exit::message(&line);
            self.said.insert(line);
        }
    }
}

/// One line about what was sampled, in one process or several.
pub(crate) fn line(summary: Summary) -> String {
    let period = match summary.period {
        1 => "each fault".into(),
        n => format!("one of {} faults", words::count(n.into())),
    };
    format!(
        "sampled {} with stacks ({period} at the end), {} lost; one costs {}",
        words::plural(summary.samples, "page fault"),
        words::count(summary.lost),
        words::time(summary.sample_ns)
    )
}

/// Whether the first write to a page in a round is a page fault of the thread that writes. The
/// writes of a guest of KVM are logged by the processor.
fn makes_writes_fault(technique: &str) -> bool {
    use Technique::{Adaptive, PagemapScan, SoftDirty, Userfaultfd};
    let technique = technique.parse();
    matches!(
        technique,
        Ok(PagemapScan | Adaptive | SoftDirty | Userfaultfd)
    )
}

/// Raises the limit of descriptors: each tracked process takes some, and each sampled thread some
/// on each processor. Programs that are started have been by now.
pub(crate) fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // If it fails, the sampler says what is missing.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
}
