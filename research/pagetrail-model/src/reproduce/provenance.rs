//! Numbers that know whether they come from a paper or from a run, and [`Provenance`].
//!
//! A [`Printed`] number never becomes a [`Modelled`] one: only what a run of the model left behind
//! (its report, events or bill) makes those. So a row that is arithmetic on a paper's own numbers
//! cannot be labelled as a result of the model.

use std::fmt;
use std::ops::{Add, Div, Mul, Sub};

use crate::cost::Bill;
use crate::{Events, Report};

/// How a value beside a paper's came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Provenance {
    /// The run is given the paper's value, which can only come out again.
    Input,
    /// The value cannot differ from the paper's but by rounding or by the paper's own
    /// contradictions; the text says why.
    Identity(&'static str),
    /// A parameter was chosen so that this value, or one that implies it, agrees with the paper's;
    /// the text says which.
    Fitted(&'static str),
    /// The algorithm ran on the machine in software, and its events were counted or priced.
    Modelled,
    /// A simulator computed it from prices that a paper prints; the recording says when.
    Simulated,
    /// It follows from values that were measured on a real kernel.
    Measured,
}

impl Provenance {
    /// Whether the value could have come out differently from the paper's.
    pub fn is_independent(self) -> bool {
        matches!(self, Self::Modelled | Self::Simulated | Self::Measured)
    }

    /// One word for a column.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Identity(_) => "identity",
            Self::Fitted(_) => "fitted",
            Self::Modelled => "modelled",
            Self::Simulated => "simulated",
            Self::Measured => "measured",
        }
    }

    /// Why the value is not independent of the paper's.
    pub const fn because(self) -> Option<&'static str> {
        match self {
            Self::Input => Some("the run is given this value"),
            Self::Identity(why) | Self::Fitted(why) => Some(why),
            Self::Modelled | Self::Simulated | Self::Measured => None,
        }
    }
}

impl fmt::Display for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A number that a paper prints, or arithmetic on such numbers alone.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Printed(pub f64);

impl Printed {
    /// Arithmetic on numbers that a paper prints.
    pub fn arithmetic<const N: usize>(of: [Self; N], f: impl FnOnce([f64; N]) -> f64) -> Self {
        Self(f(of.map(|number| number.0)))
    }
}

/// A number that depends on what a run of the model did.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Modelled(f64);

impl Modelled {
    /// A figure of what a run left behind.
    pub fn of<R: OfRun + ?Sized>(run: &R, figure: impl FnOnce(&R) -> f64) -> Self {
        Self(figure(run))
    }
}

/// What only a run of the model leaves behind.
pub trait OfRun {}

impl OfRun for Report {}
impl OfRun for Events {}
impl OfRun for Bill {}
impl<T: OfRun> OfRun for [T] {}
impl<T: OfRun> OfRun for &T {}
impl<A: OfRun, B: OfRun> OfRun for (A, B) {}

/// A number that a [`Row`](super::Row) can show.
pub trait Number: Copy {
    /// Its value.
    fn value(self) -> f64;
}

impl Number for Printed {
    fn value(self) -> f64 {
        self.0
    }
}

impl Number for Modelled {
    fn value(self) -> f64 {
        self.0
    }
}

macro_rules! arithmetic {
    ($($trait:ident $method:ident $op:tt;)+) => {
        $(
            impl $trait for Printed {
                type Output = Self;

                fn $method(self, other: Self) -> Self {
                    Self(self.0 $op other.0)
                }
            }

            impl<N: Number> $trait<N> for Modelled {
                type Output = Self;

                fn $method(self, other: N) -> Self {
                    Self(self.0 $op other.value())
                }
            }
        )+
    };
}

arithmetic! {
    Add add +;
    Sub sub -;
    Mul mul *;
    Div div /;
}
