//! Prices: what events cost on a machine.
//!
//! A [`CostTable`] holds a cost for each [`Metric`] that was measured; [`price`] multiplies the
//! events of a run with them; [`formula`] has the OoH paper's formulas 1 to 4, which reach the same
//! end from fewer inputs. All costs are in nanoseconds.

pub mod formula;
mod metric;
mod price;
mod table;

pub use metric::Metric;
pub use price::{Bill, Item, Payer, price};
pub use table::{Cost, CostError, CostTable};
