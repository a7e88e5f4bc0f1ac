//! [`Goals`]: what a suite comes to, in the figures that a technique is to be judged by.

use super::results::{Measured, Paired, ProgramMeasured, Suite, TurnsRow};

/// The technique that others are held against.
const BASE: &str = "pagemap-scan";

/// The figures of a technique; `None` where nothing tells.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Goals {
    pub(crate) technique: &'static str,
    /// Pages reported over pages written, over the workloads.
    pub(crate) reported_mean: Option<f64>,
    pub(crate) reported_most: Option<f64>,
    /// Processor time of an operation over that by the best other technique: the most over the
    /// workloads.
    pub(crate) against_best_most: Option<f64>,
    /// Over the programs.
    pub(crate) programs_overhead_percent: Option<f64>,
    /// Collect time over that of the technique that others are held against, over workloads and
    /// programs.
    pub(crate) collect_median: Option<f64>,
    pub(crate) collect_most: Option<f64>,
}

impl Goals {
    /// Of each technique of the suite.
    pub(crate) fn of(suite: &Suite) -> Vec<Self> {
        let mut names: Vec<&'static str> = Vec::new();
        let of_rows = suite.rows.iter().flat_map(|row| &row.techniques);
        let of_programs = suite.programs.iter().flat_map(|row| &row.techniques);
        for name in of_rows
            .map(|m| m.technique)
            .chain(of_programs.map(|m| m.technique))
        {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
            .into_iter()
            .map(|name| Self::of_one(suite, name))
            .collect()
    }

    fn of_one(suite: &Suite, technique: &'static str) -> Self {
        let mut reported = Vec::new();
        let mut against = Vec::new();
        let mut collect = Vec::new();
        for row in &suite.rows {
            let cost = |measured: &Measured| 1.0 + measured.overhead_percent.median / 100.0;
            let others = row.techniques.iter().filter(|m| m.technique != technique);
            let best = others.map(cost).min_by(f64::total_cmp);
            let base = row.techniques.iter().find(|m| m.technique == BASE);
            for measured in row.techniques.iter().filter(|m| m.technique == technique) {
                reported.push(measured.reported_per_written.median);
                against.extend(best.map(|best| cost(measured) / best));
                collect
                    .extend(base.map(|base| measured.collect_us.median / base.collect_us.median));
            }
        }
        let mut overhead = Vec::new();
        for row in &suite.programs {
            let base: Option<&ProgramMeasured> =
                row.techniques.iter().find(|m| m.technique == BASE);
            for measured in row.techniques.iter().filter(|m| m.technique == technique) {
                overhead.push(measured.overhead_percent.median);
                collect
                    .extend(base.map(|base| measured.collect_us.median / base.collect_us.median));
            }
        }
        collect.retain(|ratio| ratio.is_finite());
        Self {
            technique,
            reported_mean: mean(&reported),
            reported_most: most(&reported),
            against_best_most: most(&against),
            programs_overhead_percent: mean(&overhead),
            collect_median: median(&collect),
            collect_most: most(&collect),
        }
    }
}

/// What a technique comes to over programs in turns.
#[derive(Clone, Debug)]
pub(crate) struct TurnsSum<'a> {
    pub(crate) technique: &'static str,
    /// Over the programs, of which each has an error of its own.
    pub(crate) mean: Paired,
    pub(crate) worst: Paired,
    pub(crate) worst_name: &'a str,
}

impl<'a> TurnsSum<'a> {
    /// Of each technique of the suite.
    pub(crate) fn of(suite: &'a Suite) -> Vec<Self> {
        let names = suite.turns.first().into_iter();
        let names = names.flat_map(|row| &row.techniques).map(|m| m.technique);
        names
            .filter_map(|technique| Self::of_one(suite, technique))
            .collect()
    }

    fn of_one(suite: &'a Suite, technique: &'static str) -> Option<Self> {
        let of_row = |row: &'a TurnsRow| {
            let mut measured = row.techniques.iter();
            let measured = measured.find(|m| m.technique == technique)?;
            Some((measured.overhead_percent, &row.name[..]))
        };
        let all: Vec<(Paired, &str)> = suite.turns.iter().filter_map(of_row).collect();
        let means: Vec<f64> = all.iter().map(|(of, _)| of.mean).collect();
        let squares = all.iter().map(|(of, _)| of.standard_error.powi(2));
        let (worst, worst_name) = all
            .iter()
            .copied()
            .max_by(|one, other| one.0.mean.total_cmp(&other.0.mean))?;
        Some(Self {
            technique,
            mean: Paired {
                standard_error: squares.sum::<f64>().sqrt() / means.len() as f64,
                ..Paired::of(&means)
            },
            worst,
            worst_name,
        })
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn most(values: &[f64]) -> Option<f64> {
    values.iter().copied().max_by(f64::total_cmp)
}

fn median(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| crate::results::Spread::of(values.iter().copied()).median)
}

#[cfg(test)]
mod tests {
    use super::super::results::Row;
    use super::*;
    use crate::results::Spread;

    fn measured(technique: &'static str, overhead: f64, ratio: f64, collect: f64) -> Measured {
        let exactly = |value| Spread::of([value]);
        Measured {
            technique,
            overhead_percent: exactly(overhead),
            faults_per_round: exactly(1.0),
            written_per_round: exactly(1.0),
            reported_per_round: exactly(ratio),
            reported_per_written: exactly(ratio),
            collect_us: exactly(collect),
            prediction: None,
        }
    }

    #[test]
    fn figures_are_held_against_the_best_and_against_the_base() {
        let row = |techniques| Row {
            name: "w".into(),
            round_ms: 10,
            runs: 1,
            untracked_per_cpu_second: Spread::of([1.0]),
            techniques,
        };
        let suite = Suite {
            schema: 2,
            kernel: String::new(),
            cpus: 2,
            page_size: 4096,
            false_positive_ns: 1500,
            block_pages: 1,
            absent: Vec::new(),
            rows: vec![
                row(vec![
                    measured("pagemap-scan", 20.0, 1.0, 10.0),
                    measured("adaptive", 5.0, 1.2, 15.0),
                ]),
                row(vec![
                    measured("pagemap-scan", 0.0, 1.0, 10.0),
                    measured("adaptive", 10.0, 1.0, 30.0),
                ]),
            ],
            programs: Vec::new(),
            turns: Vec::new(),
            missing: Vec::new(),
        };
        let goals = Goals::of(&suite);
        assert_eq!(goals.len(), 2);
        let adaptive = goals[1];
        assert_eq!(adaptive.technique, "adaptive");
        assert_eq!(adaptive.reported_mean, Some(1.1));
        assert_eq!(adaptive.reported_most, Some(1.2));
        assert_eq!(adaptive.against_best_most, Some(1.1));
        assert_eq!(adaptive.programs_overhead_percent, None);
        assert_eq!(
            (adaptive.collect_median, adaptive.collect_most),
            (Some(2.25), Some(3.0))
        );
    }
}
