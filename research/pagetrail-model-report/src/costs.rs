//! Cost tables as users write them: TOML, described in docs/model-format.md.
//!
//! Whatever the file holds, the answer is a table or one line that says what is wrong with it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use pagetrail_model::cost::{Cost, CostError, CostTable, Metric};
use serde::Deserialize;

use pagetrail_bench::infile;
use pagetrail_report::size::Size;

/// More than any table needs.
const BYTES_MAX: u64 = 1 << 20;

/// The key of a cost that is the same for each page.
const PER_PAGE: &str = "per-page";

/// What cannot be read as a cost table.
#[derive(Debug, thiserror::Error)]
pub enum BadTable {
    /// Not TOML, or not of this form.
    #[error("not a cost table: {0}")]
    Syntax(String),
    /// A key that is no size.
    #[error("cost table: {metric}: '{key}' is no size such as \"10M\": {reason}")]
    Size {
        /// The metric that it is for.
        metric: String,
        /// The key.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Two ways at once to give a cost.
    #[error("cost table: {0}: {PER_PAGE} and sizes exclude one another")]
    Mixed(String),
    /// No cost at all.
    #[error("a cost table without costs")]
    Empty,
    /// A cost that cannot be.
    #[error(transparent)]
    Cost(#[from] CostError),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    name: Option<String>,
    #[serde(default)]
    costs: BTreeMap<String, Entry>,
    #[serde(default)]
    assumed: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "a cost is a number of nanoseconds, or a table of them"
)]
enum Entry {
    Fixed(f64),
    Table(BTreeMap<String, f64>),
}

/// The table of a name: `ooh`, `xen`, `papers` (both together), or a file. Fails where that is no
/// table.
pub fn load(named: &Path) -> Result<CostTable> {
    match named.to_str() {
        Some("ooh") => return Ok(CostTable::ooh_paper()),
        Some("xen") => return Ok(CostTable::xen_study()),
        Some("papers") => return Ok(papers()?),
        _ => {}
    }
    let text = infile::text(named, "cost table", BYTES_MAX)?;
    let name = named.display().to_string();
    parse(&text, &name).context(name)
}

/// The OoH paper's costs, and the Xen study's for what that paper does not have.
fn papers() -> Result<CostTable, CostError> {
    let ooh = CostTable::ooh_paper();
    let of = |table: &CostTable, assumed: bool| -> Vec<(String, Cost)> {
        let costs = table.iter();
        let costs = costs.filter(|&(metric, _)| table.is_assumed(metric) == assumed);
        costs
            .map(|(metric, cost)| (metric.name().to_owned(), cost.clone()))
            .collect()
    };
    let name = "OoH paper, table IV; shadow paging: Xen study";
    CostTable::new(name, of(&ooh, false))?
        .assume(of(&ooh, true))?
        .assume(of(&CostTable::xen_study(), false))
}

/// Reads a table; `name` is its name where it gives itself none.
pub fn parse(text: &str, name: &str) -> Result<CostTable, BadTable> {
    let document: Document = toml::from_str(text).map_err(|error| {
        // Its own words would show the place in three lines.
        let at = error.span().map(|span| line_of(text, span.start));
        let place = at.map(|line| format!("line {line}: ")).unwrap_or_default();
        BadTable::Syntax(place + &error.message().replace('\n', "; "))
    })?;
    if document.costs.is_empty() && document.assumed.is_empty() {
        return Err(BadTable::Empty);
    }
    let name = document.name.unwrap_or_else(|| name.to_owned());
    let table = CostTable::new(name, costs(document.costs)?)?;
    Ok(table.assume(costs(document.assumed)?)?)
}

fn line_of(text: &str, at: usize) -> usize {
    let before = text.as_bytes().iter().take(at);
    before.filter(|&&byte| byte == b'\n').count() + 1
}

fn costs(entries: BTreeMap<String, Entry>) -> Result<Vec<(String, Cost)>, BadTable> {
    let entries = entries.into_iter();
    entries
        .map(|(metric, entry)| {
            let cost = match entry {
                Entry::Fixed(cost) => Cost::Fixed(cost),
                Entry::Table(points) => by_size(&metric, points)?,
            };
            Ok((metric, cost))
        })
        .collect()
}

fn by_size(metric: &str, points: BTreeMap<String, f64>) -> Result<Cost, BadTable> {
    if let Some(&cost) = points.get(PER_PAGE) {
        return match points.len() {
            1 => Ok(Cost::per_page(cost)),
            _ => Err(BadTable::Mixed(metric.to_owned())),
        };
    }
    let points = points.into_iter().map(|(key, cost)| {
        let size: Size = key.parse().map_err(|reason| BadTable::Size {
            metric: metric.to_owned(),
            key: key.clone(),
            reason,
        })?;
        Ok((size.bytes(), cost))
    });
    let mut points = points.collect::<Result<Vec<_>, BadTable>>()?;
    points.sort_by_key(|&(size, _)| size);
    Ok(Cost::BySize(points))
}

/// The table as a file that [`parse`] reads.
pub fn render(table: &CostTable) -> String {
    let mut out = format!(
        "# Costs in nanoseconds; docs/model-format.md says what each is.\nname = {}\n",
        quoted(table.name())
    );
    section(table, "costs", false, &mut out);
    section(table, "assumed", true, &mut out);
    let missing: Vec<&str> = Metric::ALL
        .iter()
        .filter(|&&metric| table.get(metric).is_none())
        .map(|metric| metric.name())
        .collect();
    if !missing.is_empty() {
        out += &format!("\n# No cost is known for: {}\n", missing.join(", "));
    }
    out
}

fn section(table: &CostTable, name: &str, assumed: bool, out: &mut String) {
    let costs = table.iter();
    let mut costs = costs
        .filter(|&(metric, _)| table.is_assumed(metric) == assumed)
        .peekable();
    if costs.peek().is_none() {
        return;
    }
    *out += match assumed {
        true => "\n# Not measured on that machine; used, and marked in every bill.\n",
        false => "\n",
    };
    *out += &format!("[{name}]\n");
    for (metric, cost) in costs {
        match cost {
            Cost::Fixed(cost) => *out += &format!("{metric} = {cost:?}\n"),
            Cost::BySize(points) if *cost == Cost::per_page(points[0].1) => {
                *out += &format!("{metric} = {{ {PER_PAGE} = {:?} }}\n", points[0].1);
            }
            Cost::BySize(points) => {
                let mut sizes = String::new();
                for (size, cost) in points {
                    let comma = if sizes.is_empty() { "" } else { ", " };
                    write!(sizes, "{comma}{} = {cost:?}", quoted(&Size::shown(*size)))
                        .expect("a String takes all");
                }
                *out += &format!("{metric} = {{ {sizes} }}\n");
            }
        }
    }
}

/// A basic string of TOML.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out += &format!("\\u{:04X}", u32::from(c)),
            c => out.push(c),
        }
    }
    out + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        let error = parse(text, "x").expect_err(text).to_string();
        assert_eq!(error.lines().count(), 1, "{error}");
        error
    }

    #[test]
    fn what_is_written_is_read_back() {
        for table in [
            CostTable::ooh_paper(),
            CostTable::xen_study(),
            papers().unwrap(),
        ] {
            let text = render(&table);
            assert_eq!(parse(&text, "x").unwrap(), table, "{text}");
        }
        let odd = "a \"name\" with \\ and \u{1} in it";
        let vmread = ("vmread".to_owned(), Cost::Fixed(0.1 + 0.2));
        let table = CostTable::new(odd, [vmread]).unwrap();
        assert_eq!(parse(&render(&table), "x").unwrap(), table);
    }

    #[test]
    fn all_ways_to_give_a_cost() {
        let text = "[costs]\nvmread = 936\nclear-refs = { \"1M\" = 32e3, \"10M\" = 91.2e3 }\n\
                    [costs.ring-copy]\nper-page = 2.5\n[assumed]\nvmwrite = 1.0\n";
        let table = parse(text, "mine").unwrap();
        assert_eq!(table.name(), "mine");
        assert_eq!(table.at(Metric::Vmread, 1), Some(936.0));
        assert_eq!(table.at(Metric::ClearRefs, 10 << 20), Some(91.2e3));
        let ring = table.at(Metric::RingCopy, 1 << 20).unwrap();
        assert!((ring - 640.0).abs() < 1e-6, "{ring}");
        assert!(table.is_assumed(Metric::Vmwrite));
        assert_eq!(table.get(Metric::RingCopy), Some(&Cost::per_page(2.5)));
    }

    #[test]
    fn what_is_wrong_is_said_in_one_line() {
        for (text, part) in [
            ("", "without costs"),
            ("name = \"x\"", "without costs"),
            ("costs = 5", "line 1"),
            ("[costs]\nvmread = ", "line 2"),
            ("[costs]\nvmread = \"1\"", "number of nanoseconds"),
            ("[costs]\nvmread = 1\nvmread = 2", "line 3: duplicate key"),
            ("[costs]\nvmread = -1", "vmread is not a positive number"),
            ("[costs]\nvmread = 0", "vmread is not a positive number"),
            ("[costs]\nvmread = nan", "vmread is not a positive number"),
            ("[costs]\nvmread = 1e30", "vmread is out of all proportion"),
            ("[costs]\nm7 = 1", "no metric \"m7\""),
            ("[cost]\nvmread = 1", "unknown field"),
            (
                "[costs]\nclear-refs = { \"10\" = 1 }",
                "clear-refs: '10' is no size",
            ),
            ("[costs]\nclear-refs = {}", "sizes of clear-refs"),
            (
                "[costs]\nclear-refs = { per-page = 1, \"1M\" = 1 }",
                "exclude one another",
            ),
            (
                "[costs]\nclear-refs = { \"1M\" = 1, \"1028K\" = 1e9 }",
                "out of all proportion",
            ),
            (
                "[costs]\nclear-refs = { \"1M\" = 1, \"1024K\" = 2 }",
                "ascending",
            ),
            (
                "[costs]\nvmread = 1\n[assumed]\nvmread = 2",
                "vmread is given twice",
            ),
        ] {
            let error = refused(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    /// Mutations of good tables: an answer to each, never a panic, and prices that are numbers.
    #[test]
    fn fuzz() {
        let good = [
            render(&papers().unwrap()),
            "[costs]\nvmread = 936\nclear-refs = { \"1M\" = 3, \"9M\" = 4 }\n".into(),
        ];
        crate::fuzzing::for_seeds(4000, |random| {
            let mut text = good[random.usize(0..good.len())].clone().into_bytes();
            crate::fuzzing::mutate(random, &mut text);
            let text = String::from_utf8_lossy(&text).into_owned();
            match parse(&text, "x") {
                Ok(table) => {
                    for &metric in Metric::ALL {
                        for bytes in [0, 1, 4096, 1 << 30, 1 << 50] {
                            let cost = table.at(metric, bytes).unwrap_or(0.0);
                            assert!(cost.is_finite() && cost >= 0.0, "{metric}: {cost}");
                        }
                    }
                    assert_eq!(parse(&render(&table), "x").ok().as_ref(), Some(&table));
                }
                Err(error) => assert_eq!(error.to_string().lines().count(), 1, "{error}"),
            }
        });
    }
}
