//! What the measured words mean, in one place for the help, the tables and the page.

/// For `--help`.
pub const HELP: &str = "\
What is measured: a program writes one word to each page of its memory, in order, over and over (Listing 1 of \
\"Out of Hypervisor\", SC'22); its memory is populated, locked where that is permitted, and of small pages. \
It is tracked in its own process, and by another one. A round is one pass over the memory and one collect. \
Every round is checked first: a page that was written and not reported ends the benchmark with exit code 1.

Overhead on tracked: how much longer a pass takes when tracked, with the stops that the collect makes, in percent of \
the same program's untracked pass. The stop to attach comes once per watch and stands among the steps.
Overhead on tracker: arm, one tracked pass and one collect, against the untracked pass: the paper's tracker, which \
ideally lasts as long as the program itself.

Each run measures untracked and tracked passes of one process right after one another; the techniques take turns. A run \
takes the median of its rounds (16 for small sizes, 2 for large), and the tables show the median of the runs.";

/// Under the table of overheads.
pub(crate) const OVERHEAD: &str = "on tracked: a tracked pass and the stops of its collect, against the untracked pass; \
on tracker: arm, tracked pass and collect, against the untracked pass";

/// Under the table of steps.
pub(crate) const STEPS: &str = "fault: what a tracked pass takes longer, per page; clean collect: nothing was written; \
take and re-arm: collect less clean collect, per page (re-arming is part of taking in every technique)";

/// Under the table of what was predicted.
pub(crate) const PREDICTED: &str = "pages predicted: reported without a fault; of them faults avoided, which were written, and reported \
falsely, which were not, as the technique estimates them; means of a run's rounds. A page is predicted after a dozen rounds, and runs of \
large sizes are shorter";
