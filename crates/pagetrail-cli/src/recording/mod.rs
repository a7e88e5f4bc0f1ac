//! What surrounds a recording that `pagetrail-recorder` writes.
//!
//! [`output::Output`] is the file that receives the trail, [`stacks::Sampling`] starts the samplers
//! of its processes, [`metrics::Metrics`] serves its counts, and [`progress::Progress`] shows a
//! line on the terminal. The command decides when to take a round.

pub(crate) mod metrics;
pub(crate) mod output;
pub(crate) mod progress;
pub(crate) mod stacks;
