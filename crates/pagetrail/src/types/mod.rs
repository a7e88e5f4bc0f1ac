//! The vocabulary of the public interface: plain values, apart from the machinery that makes them.
//!
//! These files import nothing but each other and [`crate::region`], so that every other module can
//! import them without a circle.

mod inherited;
mod kernel_state;
mod overhead;
mod round;
mod settings;
mod technique;
mod untracked;

pub use inherited::Inherited;
pub use kernel_state::{KernelState, PendingSignal, RseqArea, SignalAction, ThreadState};
pub use overhead::Overhead;
pub use round::{AccessKind, Event, PredictionStats, RoundCost};
pub use settings::{
    AtExit, Children, Choice, CollectAt, IfAbandoned, ReportPages, TrackMode, UntrackedPolicy,
};
pub use technique::{Status, Technique, UnknownTechnique};
pub use untracked::UntrackedRegion;
