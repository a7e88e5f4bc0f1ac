//! [`Stacks`]: samples which code dirties the pages of a recording, where that is asked for and
//! possible. Where it is not, one line says so and the recording goes on without.

use pagetrail::{DirtySource, PageSet, Technique};
use pagetrail_report::words;
use pagetrail_stacks::{Mark, Options, Period, Sampler, Unwind};
use pagetrail_trail::{Attribution, StackTable};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::exit;

/// A sampler of the target's page faults.
pub(crate) struct Stacks(Sampler);

impl Stacks {
    /// Begins to sample the target of a source: one of `period` faults, or as many as cost little.
    pub(crate) fn start(
        source: &dyn DirtySource,
        unwind: Unwind,
        period: Option<u32>,
    ) -> Option<Self> {
        let technique = source.technique_name();
        if !makes_writes_fault(technique) {
            exit::message(&format!(
                "--stacks has no effect with {technique}, which makes no write fault"
            ));
            return None;
        }
        raise_descriptor_limit();
        let options = Options {
            unwind,
            period: period.map_or_else(Period::default, Period::Fixed),
        };
        match Sampler::attach(source.pid(), &options) {
            Ok(sampler) => {
                if !sampler.sees_kernel() {
                    exit::message(
                        "pages that system calls write stay unattributed: sampling them needs \
                         CAP_PERFMON, or kernel.perf_event_paranoid at most 1",
                    );
                }
                Some(Self(sampler))
            }
            Err(error) => {
                exit::message(&format!("recording without stacks: {error}"));
                None
            }
        }
    }

    /// The present, to be taken before a collect.
    pub(crate) fn mark(&self) -> Mark {
        self.0.mark()
    }

    /// Attributes the dirty pages of the round that was collected since `began`. Returns with it
    /// the stacks that are new.
    pub(crate) fn attribute(&mut self, began: Mark, dirty: &PageSet) -> (Attribution, StackTable) {
        self.0.attribute(began, dirty)
    }

    /// One line about what was sampled.
    pub(crate) fn summary(&self) -> String {
        let summary = self.0.summary();
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

/// Each thread takes descriptors on each processor. Programs that are started have been by now.
fn raise_descriptor_limit() {
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
