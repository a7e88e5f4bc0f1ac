//! The flags of `pagetrail compare`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use pagetrail_compare::condition::Condition;
use pagetrail_compare::environment::Environment;
use pagetrail_compare::method::ROUNDS_MAX;
use pagetrail_compare::suite::{Part, Suite};
use pagetrail_probes::Interval;

use super::guest_args::LinuxArgs;
use crate::args::duration;

/// Rounds if neither `--runs` nor `--for` is given: as many as the Xen study has, and enough for
/// intervals of 98 % confidence.
pub(super) const RUNS: u32 = 7;

/// Arguments of `compare`.
#[derive(Args, Debug)]
#[expect(
    rustdoc::broken_intra_doc_links,
    reason = "brackets in help texts are no links"
)]
pub(crate) struct CompareArgs {
    /// Environments, all on the same processors and with the same variables (heap:N adds those of
    /// the allocator): native, tracked:TECHNIQUE[@TIME] (tracked in rounds of TIME, 100ms if none
    /// is named), heap:N (on the sub-page allocator with N sub-pages a page), vm (as a guest of
    /// KVM), vm:record[@TIME] and vm:access[@TIME] (with rounds of the pages that it writes, or
    /// also accesses), kvm (in a guest of KVM with a Linux kernel of its own), kvm:shadow (the same
    /// where KVM is set to have shadow page tables)
    #[arg(
        value_name = "ENVIRONMENTS",
        value_delimiter = ',',
        required_unless_present_any = ["as_work", "as_guest"]
    )]
    pub(crate) environments: Vec<Environment>,
    /// Measure these tests instead of a program: processor, calls, memory, ipc, disk, net, library,
    /// apps, or all; or one test of them, as memory/motion
    #[arg(
        long,
        value_name = "SUITES",
        value_delimiter = ',',
        value_parser = suites,
        conflicts_with = "command"
    )]
    pub(crate) suite: Vec<Suites>,
    /// The environment that the others are compared with
    #[arg(long, value_name = "ENVIRONMENT", default_value = "native")]
    pub(crate) against: Environment,
    /// Rounds, each with a run in every environment, and pairs of runs before them that measure the
    /// noise
    #[arg(
        long,
        value_name = "N",
        default_value_t = RUNS,
        value_parser = clap::value_parser!(u32).range(1..=ROUNDS_MAX as i64)
    )]
    pub(crate) runs: u32,
    /// As many rounds as fit into this time, but no fewer than six, however long they take
    #[arg(long = "for", value_name = "TIME", value_parser = duration, conflicts_with = "runs")]
    pub(crate) length: Option<Duration>,
    /// End the first run of a program, or of a test, that takes longer than this; it is said not to
    /// be here then. Later runs may take 50 times as long as the first one, and a minute at least
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1h")]
    pub(crate) timeout: Duration,
    /// Run everything once more in each environment, and count exits of virtual machines by
    /// reason, page faults, system calls and other events meanwhile; this takes root. Times of that
    /// run do not count
    #[arg(long)]
    pub(crate) probe: bool,
    /// In that run, count the calls of these functions of the kernel, and time some of them, as
    /// kvm_mmu_page_fault,x86_emulate_instruction
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) functions: Vec<String>,
    /// Time one call of N, or of a number that is drawn anew each time between two
    #[arg(long, value_name = "N|LOW-HIGH", default_value_t = Interval::SHORT_RUNS)]
    pub(crate) every: Interval,
    /// Draw the order of runs, and the calls that are timed, from this number, as a comparison
    /// before it did
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Exit with 1 if this holds: [SUITE/]ENVIRONMENT OPERATOR Nx, where OPERATOR is one of > >= <
    /// <=: 'tracked:pagemap-scan>1.1x'. What is within noise never holds; fewer than six rounds
    /// decide nothing, which is exit code 3. It can be given several times
    #[arg(long, value_name = "CONDITION")]
    pub(crate) fail_if: Vec<Condition>,
    /// Write one JSON document to standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a self-contained page: bars by subsystem, tables below
    #[arg(long, value_name = "OUT")]
    pub(crate) html: Option<PathBuf>,
    /// The machine of kvm and kvm:shadow
    #[command(flatten)]
    pub(crate) linux: LinuxArgs,
    /// Be a test of a suite, which `compare` itself starts
    #[arg(long, hide = true, value_name = "SUITE/TEST", conflicts_with_all = ["environments", "suite", "command"])]
    pub(crate) as_work: Option<String>,
    /// Where that test has its files
    #[arg(long, hide = true, value_name = "DIR", requires = "as_work")]
    pub(crate) as_work_in: Option<PathBuf>,
    /// Run in a guest what its host orders, which `compare` itself starts
    #[arg(long, hide = true, conflicts_with_all = ["environments", "suite", "as_work"])]
    pub(crate) as_guest: bool,
    /// The program to measure, and its arguments; it gets no input
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// A suite, a test of one, or all of them.
#[derive(Clone, Debug)]
pub(crate) struct Suites(pub(crate) Vec<Part>);

fn suites(text: &str) -> Result<Suites, String> {
    match text {
        "all" => Ok(Suites(Suite::ALL.map(Part::from).into())),
        name => name
            .parse()
            .map(|part| Suites(vec![part]))
            .map_err(|error: pagetrail_compare::suite::UnknownPart| error.to_string()),
    }
}
