//! [`CostTable`]: the costs of one machine.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::Metric;
use crate::machine::PAGE_BYTES;

/// A cost, in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub enum Cost {
    /// One value for all programs.
    Fixed(f64),
    /// By memory of the program: pairs of bytes and nanoseconds, sizes ascending.
    BySize(Vec<(u64, f64)>),
}

/// The most that anything can cost: eleven days.
const COST_MAX: f64 = 1e15;
/// The least: a millionth of a nanosecond.
const COST_MIN: f64 = 1e-6;
/// The steepest growth with the size of a program, as the exponent of a power. A reverse mapping
/// has 2.
const EXPONENT_MAX: f64 = 8.0;

impl Cost {
    /// A cost for all of a program's memory that is the same for each page of it.
    pub fn per_page(ns: f64) -> Self {
        let far = 1_u64 << 40;
        Self::BySize(vec![
            (PAGE_BYTES, ns),
            (far, ns * (far / PAGE_BYTES) as f64),
        ])
    }

    /// The cost for a program of `bytes`.
    ///
    /// Between two measured sizes and beyond them, cost is taken to follow a power of the size: the
    /// one through the two nearest points. (Page counts give the exponent 1, the reverse mapping
    /// about 2.)
    pub fn at(&self, bytes: u64) -> f64 {
        let points = match self {
            Self::Fixed(cost) => return *cost,
            Self::BySize(points) => points,
        };
        let [(x0, y0), (x1, y1)] = match points.as_slice() {
            [] => return 0.0,
            [(_, cost)] => return *cost,
            points => {
                let after = points
                    .partition_point(|&(size, _)| size < bytes)
                    .clamp(1, points.len() - 1);
                [points[after - 1], points[after]]
            }
        };
        if bytes == x0 || bytes == x1 {
            return if bytes == x0 { y0 } else { y1 };
        }
        let exponent = exponent((x0, y0), (x1, y1));
        y0 * (bytes.max(1) as f64 / x0 as f64).powf(exponent)
    }
}

/// The power of the size that leads from one point to the other.
fn exponent((x0, y0): (u64, f64), (x1, y1): (u64, f64)) -> f64 {
    (y1 / y0).ln() / (x1 as f64 / x0 as f64).ln()
}

/// The costs that are known about a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct CostTable {
    name: String,
    costs: BTreeMap<Metric, Cost>,
    assumed: BTreeSet<Metric>,
}

/// What is wrong with a table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CostError {
    /// No metric has that name.
    UnknownMetric(String),
    /// A metric has two costs.
    Twice(Metric),
    /// A cost is negative, zero, infinite or not a number.
    BadCost(Metric),
    /// A cost that nothing has: too large, too small, or growing out of all proportion with the
    /// size.
    Absurd(Metric),
    /// The sizes of a cost are not ascending, or there are none.
    BadSizes(Metric),
}

impl fmt::Display for CostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownMetric(name) => write!(f, "cost table: there is no metric {name:?}"),
            Self::Twice(metric) => write!(f, "cost table: {metric} is given twice"),
            Self::BadCost(metric) => write!(f, "cost table: {metric} is not a positive number"),
            Self::Absurd(metric) => {
                write!(
                    f,
                    "cost table: {metric} is out of all proportion (nanoseconds are expected)"
                )
            }
            Self::BadSizes(metric) => {
                write!(
                    f,
                    "cost table: the sizes of {metric} must be positive and ascending"
                )
            }
        }
    }
}

impl std::error::Error for CostError {}

const MIB: u64 = 1 << 20;
/// The sizes of table IVb.
const SIZES: [u64; 7] = [
    MIB,
    10 * MIB,
    50 * MIB,
    100 * MIB,
    250 * MIB,
    500 * MIB,
    1024 * MIB,
];

impl CostTable {
    /// A table from names and costs, as a file would hold them. Metrics may be missing.
    pub fn new(
        name: impl Into<String>,
        costs: impl IntoIterator<Item = (String, Cost)>,
    ) -> Result<Self, CostError> {
        let mut table = Self {
            name: name.into(),
            costs: BTreeMap::new(),
            assumed: BTreeSet::new(),
        };
        for (name, cost) in costs {
            table.insert(named(name)?, cost)?;
        }
        Ok(table)
    }

    /// This table with costs that were not measured on its machine: each is used, and
    /// [marked](Self::is_assumed).
    pub fn assume(
        mut self,
        costs: impl IntoIterator<Item = (String, Cost)>,
    ) -> Result<Self, CostError> {
        for (name, cost) in costs {
            let metric = named(name)?;
            self.insert(metric, cost)?;
            self.assumed.insert(metric);
        }
        Ok(self)
    }

    fn insert(&mut self, metric: Metric, cost: Cost) -> Result<(), CostError> {
        check(metric, &cost)?;
        match self.costs.insert(metric, cost) {
            None => Ok(()),
            Some(_) => Err(CostError::Twice(metric)),
        }
    }

    /// Whose costs these are.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All costs, in the order of the metrics.
    pub fn iter(&self) -> impl Iterator<Item = (Metric, &Cost)> {
        self.costs.iter().map(|(&metric, cost)| (metric, cost))
    }

    /// The cost of `metric`, if it is known.
    pub fn get(&self, metric: Metric) -> Option<&Cost> {
        self.costs.get(&metric)
    }

    /// The cost of `metric` for a program of `bytes`, if it is known.
    pub fn at(&self, metric: Metric, bytes: u64) -> Option<f64> {
        self.get(metric).map(|cost| cost.at(bytes))
    }

    /// Whether the cost of `metric` was not measured but put in the place of one that was.
    pub fn is_assumed(&self, metric: Metric) -> bool {
        self.assumed.contains(&metric)
    }

    /// Table IV of the OoH paper (Core i7-8565U, Xen 4.10, Linux 4.15).
    ///
    /// It gives no cost for M2, none for a log-full exit, none for an exit of a write-protected
    /// page and none for clearing dirty flags. The log-full exit is assumed to cost what M14 does,
    /// since both copy a log to the ring buffer. The exit of a write-protected page lies between
    /// M13, a bare hypercall (0.3 us), and 11.6 times M1: `cargo xtask bench vm` counts 3,791
    /// instructions for an exit to user space and 328 for a system call. The dearer end is assumed.
    /// The others stay unpriced.
    pub fn ooh_paper() -> Self {
        let us = 1e3;
        let fixed = [
            (Metric::ContextSwitch, 0.315),
            (Metric::StartIoctl, 5651.0),
            (Metric::StopIoctl, 2816.0),
            (Metric::Vmread, 0.936),
            (Metric::Vmwrite, 0.801),
            (Metric::InitPml, 5495.0),
            (Metric::InitShadowing, 5878.0),
            (Metric::StopPml, 2060.0),
            (Metric::StopShadowing, 2755.0),
            (Metric::EnableLogging, 0.3),
            (Metric::EptWriteFault, 11.6 * 0.315),
        ];
        let disable_logging = [0.042, 0.047, 0.138, 0.156, 0.189, 0.203, 0.208];
        let by_size = [
            (
                Metric::ClearRefs,
                [0.032, 0.0912, 0.174, 0.288, 0.613, 1.153, 2.234],
            ),
            (
                Metric::PagemapWalk,
                [1.912, 14.479, 41.832, 82.289, 161.973, 307.109, 594.187],
            ),
            (
                Metric::FaultKernel,
                [0.003, 0.3, 1.68, 3.34, 8.39, 16.79, 33.58],
            ),
            (
                Metric::FaultUser,
                [2.5, 27.3, 152.3, 347.1, 882.8, 1585.0, 3483.0],
            ),
            (Metric::DisableLogging, disable_logging),
            (Metric::LogFullExit, disable_logging),
            (
                Metric::RingCopy,
                [0.003, 0.01, 0.03, 0.048, 0.109, 0.383, 0.671],
            ),
            (
                Metric::ReverseMapping,
                [6.183, 24.653, 85.117, 255.437, 1211.0, 4123.0, 15738.0],
            ),
        ];
        let ms = |costs: [f64; 7]| {
            SIZES
                .into_iter()
                .zip(costs.map(|cost| cost * 1e6))
                .collect()
        };
        let fixed = fixed
            .into_iter()
            .map(|(metric, cost)| (metric, Cost::Fixed(cost * us)));
        let by_size = by_size
            .into_iter()
            .map(|(metric, costs)| (metric, Cost::BySize(ms(costs))));
        Self {
            name: "OoH paper, table IV".to_owned(),
            costs: fixed.chain(by_size).collect(),
            assumed: BTreeSet::from([Metric::LogFullExit, Metric::EptWriteFault]),
        }
    }

    /// The Xen study's means for MemoryMotion under Debian (tables 10 and 13; Core 2 Duo E6300).
    ///
    /// The time of a fixed fault is taken not to contain the emulator's: only then do the parts (49
    /// s and 38 s) come near the 92 s by which the virtual machine is slower. The study's total for
    /// `sh_page_fault`, from another run, is 100 s.
    pub fn xen_study() -> Self {
        let fixed = [
            (Metric::ShadowFixed, 2141.3),
            (Metric::ShadowNotShadow, 290.8),
            (Metric::ShadowMmio, 4027.5),
            (Metric::ShadowEmulateWrite, 1890.1),
            (Metric::ShadowEmulateCmpxchg, 1606.7),
        ];
        Self {
            name: "Xen study, tables 10 and 13".to_owned(),
            costs: fixed
                .map(|(metric, cost)| (metric, Cost::Fixed(cost)))
                .into(),
            assumed: BTreeSet::new(),
        }
    }
}

fn named(name: String) -> Result<Metric, CostError> {
    let metric = Metric::ALL.iter().find(|metric| metric.name() == name);
    metric.copied().ok_or(CostError::UnknownMetric(name))
}

fn check(metric: Metric, cost: &Cost) -> Result<(), CostError> {
    let check_one = |cost: f64| match cost {
        _ if cost.is_nan() || cost <= 0.0 || cost.is_infinite() => Err(CostError::BadCost(metric)),
        _ if (COST_MIN..=COST_MAX).contains(&cost) => Ok(()),
        _ => Err(CostError::Absurd(metric)),
    };
    let points = match cost {
        Cost::Fixed(cost) => return check_one(*cost),
        Cost::BySize(points) => points,
    };
    if points.first().is_none_or(|&(size, _)| size == 0) || !points.is_sorted_by(|a, b| a.0 < b.0) {
        return Err(CostError::BadSizes(metric));
    }
    points.iter().try_for_each(|&(_, cost)| check_one(cost))?;
    let is_steep = |pair: &[(u64, f64)]| exponent(pair[0], pair[1]).abs() > EXPONENT_MAX;
    match points.windows(2).any(is_steep) {
        true => Err(CostError::Absurd(metric)),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_go_through_the_measured_points_and_follow_powers_between_and_beyond() {
        let table = CostTable::ooh_paper();
        for (size, ms) in SIZES
            .into_iter()
            .zip([6.183, 24.653, 85.117, 255.437, 1211.0, 4123.0, 15738.0])
        {
            let cost = table.at(Metric::ReverseMapping, size).unwrap();
            assert!((cost / 1e6 - ms).abs() < 1e-6 * ms);
        }
        let square = Cost::BySize(vec![(10, 100.0), (100, 10_000.0)]);
        for size in [1, 10, 30, 100, 1000] {
            let expected = (size * size) as f64;
            assert!(
                (square.at(size) - expected).abs() < 1e-9 * expected,
                "{size}"
            );
        }
        assert_eq!(Cost::BySize(vec![(10, 7.0)]).at(1_000_000), 7.0);
    }

    #[test]
    fn bad_tables_are_refused_with_one_line() {
        let table = |name: &str, cost| CostTable::new("test", [(name.to_owned(), cost)]);
        let by_size = |points: &[(u64, f64)]| Cost::BySize(points.to_vec());
        assert!(table("vmread", Cost::Fixed(1.5)).is_ok());
        assert_eq!(
            table("M7", Cost::Fixed(1.0)),
            Err(CostError::UnknownMetric("M7".into()))
        );
        for cost in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(
                table("vmread", Cost::Fixed(cost)),
                Err(CostError::BadCost(Metric::Vmread))
            );
            let cost = by_size(&[(1, 1.0), (2, cost)]);
            assert_eq!(
                table("vmread", cost),
                Err(CostError::BadCost(Metric::Vmread))
            );
        }
        for absurd in [
            Cost::Fixed(1e300),
            Cost::Fixed(1e-300),
            by_size(&[(1 << 20, 1.0), ((1 << 20) + 1, 1e9)]),
        ] {
            assert_eq!(
                table("vmread", absurd),
                Err(CostError::Absurd(Metric::Vmread))
            );
        }
        for sizes in [
            &[][..],
            &[(0, 1.0)],
            &[(2, 1.0), (2, 1.0)],
            &[(2, 1.0), (1, 1.0)],
        ] {
            assert_eq!(
                table("vmread", by_size(sizes)),
                Err(CostError::BadSizes(Metric::Vmread))
            );
        }
        let twice = ["vmread", "vmread"].map(|name| (name.to_owned(), Cost::Fixed(1.0)));
        assert_eq!(
            CostTable::new("test", twice),
            Err(CostError::Twice(Metric::Vmread))
        );
    }

    #[test]
    fn what_is_assumed_is_used_and_marked() {
        let cost = |metric: Metric, ns| [(metric.name().to_owned(), Cost::Fixed(ns))];
        let table = CostTable::new("test", cost(Metric::Vmread, 5.0)).unwrap();
        let table = table.assume(cost(Metric::Vmwrite, 7.0)).unwrap();
        assert_eq!(table.at(Metric::Vmwrite, 1), Some(7.0));
        assert!(table.is_assumed(Metric::Vmwrite) && !table.is_assumed(Metric::Vmread));
        let twice = table.assume(cost(Metric::Vmread, 1.0));
        assert_eq!(twice, Err(CostError::Twice(Metric::Vmread)));
    }

    #[test]
    fn a_cost_per_page_is_the_same_for_each() {
        for pages in [1, 256, 1 << 20] {
            let cost = Cost::per_page(3.0).at(pages * PAGE_BYTES);
            assert!((cost / pages as f64 - 3.0).abs() < 1e-9);
        }
    }

    #[test]
    fn all_metrics_of_the_paper_have_a_cost_but_m2() {
        let table = CostTable::ooh_paper();
        let missing: Vec<u8> = Metric::ALL
            .iter()
            .filter(|&&metric| table.get(metric).is_none())
            .filter_map(|metric| metric.in_ooh_paper())
            .collect();
        assert_eq!(missing, [2]);
        assert_eq!(
            Metric::ALL
                .iter()
                .filter(|metric| metric.in_ooh_paper().is_some())
                .count(),
            18
        );
    }
}
